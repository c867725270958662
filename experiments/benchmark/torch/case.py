"""Validation of a case for the PyTorch sides."""

from __future__ import annotations

from dataclasses import replace

from experiments.benchmark.cases import Case

# Implemented in PyTorch,
IMPLEMENTED = {
    "learner": (
        "maml", "anil", "metasgd", "meta_curvature", "protonet", "matchingnet",
    ),
    "backbone": ("conv4", "mlp", "pose", "resnet12"),
    "strategy": ("mlti", "vanilla"),
}  # fmt: skip
# and all possible values.
CHOICES = {
    "setting": ("label_sharing", "non_label_sharing", "regression"),
    "interpolation": (None, "cutmix", "mixup"),
}


def check_case(case: Case) -> Case:
    """Validate a case for PyTorch and fill in the fields that follow from others.

    Returns:
      The case, without interpolation if the strategy is vanilla, and with the head as
      ANIL's first adapted layer.

    Raises:
      NotImplementedError: if a part of the case is not implemented in PyTorch.
      ValueError: if a field, or a combination of fields, is wrong.
    """
    for name, implemented in IMPLEMENTED.items():
        if getattr(case, name) not in implemented:
            raise NotImplementedError(
                f"{name} {getattr(case, name)!r} is not implemented in PyTorch;"
                f" implemented: {', '.join(implemented)}."
            )
    for name, allowed in CHOICES.items():
        value = getattr(case, name)
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of {allowed}.")
    if case.strategy == "vanilla":
        case = replace(case, interpolation=None)
    if case.interpolation is None:
        case = replace(case, layers=(0,))
    if case.learner == "anil":
        case = replace(case, first_adapted=num_blocks(case))
    _check_combinations(case)
    return case


def num_blocks(case: Case) -> int:
    """Number of layers of a case's network, without the head."""
    counts = {
        "conv4": 4,
        "mlp": len(case.hidden),
        "pose": 8,
        "resnet12": len(case.block_filters),
    }
    return counts[case.backbone]


def _check_combinations(case: Case) -> None:
    if case.setting == "regression" and (not case.adapts or case.ways != 1):
        raise ValueError(
            f"regression has no classes: learner is {case.learner!r} and ways is"
            f" {case.ways}; expected a learner with an inner loop, and ways 1."
        )
    blocks = num_blocks(case)
    if case.adapts and not 0 <= case.first_adapted <= blocks:
        raise ValueError(
            f"first_adapted is {case.first_adapted}; expected 0 to {blocks} (the head)."
        )
    deepest = case.first_adapted if case.adapts else blocks - 1
    if not case.layers or min(case.layers) < 0 or max(case.layers) > deepest:
        raise ValueError(
            f"layers is {case.layers}; {case.learner} mixes at layers 0 to {deepest}."
        )
    if case.interpolation == "cutmix" and tuple(case.layers) != (0,):
        raise ValueError(f"layers is {case.layers}; cutmix works on layer 0 only.")
    rank = 1 if case.backbone == "mlp" else 3
    if len(case.image_shape) != rank:
        raise ValueError(
            f"image_shape is {case.image_shape}; {case.backbone} takes {rank} axes."
        )
