"""What the PyTorch sides of the benchmark read of a case, checked and completed."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

GRADIENT_LEARNERS = ("maml", "anil", "metasgd", "meta_curvature")
METRIC_LEARNERS = ("protonet", "matchingnet")
# What of ours is written in PyTorch too,
WRITTEN = {
    "learner": (*GRADIENT_LEARNERS, *METRIC_LEARNERS),
    "backbone": ("conv4", "mlp", "pose", "resnet12"),
    "strategy": ("mlti", "vanilla"),
}
# and what there is at all.
CHOICES = {
    "setting": ("label_sharing", "non_label_sharing", "regression"),
    "interpolation": (None, "cutmix", "mixup"),
}
REQUIRED = (
    "learner", "backbone", "setting", "image_shape", "ways", "shots", "queries",
    "interpolation",
)  # fmt: skip
DEFAULTS = {
    "strategy": "mlti",
    "layers": (0,),
    "first_adapted": 3,
    "filters": 32,
    "hidden": (500, 500),
    "slope": 0.01,
    "dropout": 0.0,
    "block_filters": (64, 160, 320, 640),
    "width": 1.0,
    "tasks": 4,
    "inner_steps": 5,
    "inner_lr": 0.01,
    "outer_lr": 1e-3,
    "alpha": 2.0,
}


def read_case(case: Any) -> SimpleNamespace:
    """Takes from a case what a step needs, and refuses what it can't run.

    Args:
      case: a mapping, or an object with attributes: `learner`, `backbone`, `setting`,
        `image_shape` ((height, width, channels), or (features,)), `ways`, `shots`,
        `queries`, `interpolation` (None, cutmix, mixup) and, if they are not to be
        `DEFAULTS`, `strategy` (mlti; vanilla: no interpolation), `layers` (from which
        the interpolation layer is drawn; 0 is the input), `alpha` (of the Beta
        distribution), `first_adapted` (layer of the inner loop; ANIL's is the head),
        `inner_steps`, `inner_lr`, `outer_lr`, `tasks`, and the size of the network:
        `filters` (conv4), `hidden`, `slope`, `dropout` (mlp), `block_filters`
        (resnet12), `width` (pose).

    Returns:
      All these as attributes, and `adapts`: whether the learner has an inner loop.
      `NotImplementedError` says what is not written in PyTorch, `ValueError` what is
      wrong.
    """
    is_mapping = isinstance(case, Mapping)
    known = (*REQUIRED, *DEFAULTS)
    unknown = [name for name in case if name not in known] if is_mapping else []
    if unknown:
        raise ValueError(f"unknown fields {unknown}; expected some of {known}.")
    given = SimpleNamespace(**case) if is_mapping else case
    missing = [name for name in REQUIRED if not hasattr(given, name)]
    if missing:
        raise ValueError(f"the case lacks {missing}.")
    fields = {name: getattr(given, name) for name in REQUIRED}
    fields |= {name: getattr(given, name, value) for name, value in DEFAULTS.items()}
    for name, written in WRITTEN.items():
        if fields[name] not in written:
            raise NotImplementedError(
                f"{name} {fields[name]!r} is not written in PyTorch here, only "
                f"{', '.join(written)} are."
            )
    for name, allowed in CHOICES.items():
        if fields[name] not in allowed:
            raise ValueError(f"{name} is {fields[name]!r}; expected one of {allowed}.")
    read = SimpleNamespace(**fields, adapts=fields["learner"] in GRADIENT_LEARNERS)
    _complete(read)
    _check_together(read)
    return read


def number_of_blocks(case: Any) -> int:
    """Layers of a case's network, without its head."""
    counts = {
        "conv4": 4,
        "mlp": len(case.hidden),
        "pose": 8,
        "resnet12": len(case.block_filters),
    }
    return counts[case.backbone]


def _complete(case: SimpleNamespace) -> None:
    if case.strategy == "vanilla":
        case.interpolation = None
    if case.interpolation is None:
        case.layers = (0,)
    if case.learner == "anil":
        case.first_adapted = number_of_blocks(case)


def _check_together(case: SimpleNamespace) -> None:
    """Refuses fields that are right each by itself, but not together."""
    if case.setting == "regression" and (not case.adapts or case.ways != 1):
        raise ValueError(
            f"regression has no classes: learner is {case.learner!r} and ways "
            f"{case.ways}; expected one of {GRADIENT_LEARNERS} and 1."
        )
    blocks = number_of_blocks(case)
    if case.adapts and not 0 <= case.first_adapted <= blocks:
        raise ValueError(
            f"first_adapted is {case.first_adapted}; expected 0 to {blocks}, the head."
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
