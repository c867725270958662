"""Which strategies apply to which learners."""

from __future__ import annotations

from collections.abc import Iterable

from mlti_jax.errors import InputError
from mlti_jax.learners import FAMILIES

GRADIENT = frozenset({"gradient"})
EPISODIC = frozenset({"gradient", "metric"})
ANY = frozenset({"gradient", "metric", "supervised"})

APPLIES: dict[str, frozenset[str]] = {
    "vanilla": ANY,
    "mlti": EPISODIC,
    "intra": EPISODIC,
    "cross": EPISODIC,
    "metamix": EPISODIC,
    "maxup": EPISODIC,
    "metaaug": EPISODIC,
    "metareg": GRADIENT,
    "taml": GRADIENT,
    "metadropout": GRADIENT,
}

REASONS = {
    "metareg": "it regularises the weights that an inner loop does not adapt",
    "taml": "it compares a model before and after adaptation",
    "metadropout": "it perturbs the support set in an inner loop",
}
NOT_EPISODIC = "it changes how tasks are learned from, and this learner does not adapt"


def check_applicable(names: Iterable[str], learner: str, family: str) -> None:
    """Refuses strategies that a learner can't be trained with.

    Args:
      names: of the strategies.
      learner: its name, for the error.
      family: the learner's.
    """
    for name in names:
        if family in APPLIES[name]:
            continue
        reason = REASONS.get(name, NOT_EPISODIC)
        fitting = [other for other in APPLIES if family in APPLIES[other]]
        raise InputError(
            f"strategy {name} does not apply to learner {learner}: {reason}; "
            f"{learner} goes with: {', '.join(fitting)}"
        )


def table() -> str:
    """Strategies by kinds of learners, as text."""
    width = max(map(len, APPLIES)) + 2
    heads = [f"{family} ({', '.join(names)})" for family, names in FAMILIES.items()]
    lines = [" " * width + "  ".join(heads)]
    for name, applies in APPLIES.items():
        cells = [
            f"{'yes' if family in applies else '-':{len(head)}}"
            for family, head in zip(FAMILIES, heads, strict=True)
        ]
        lines.append(f"{name:{width}}" + "  ".join(cells).rstrip())
    return "\n".join(lines)
