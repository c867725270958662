"""Meta-learners. A new one is one file and one line in `FAMILIES`."""

import inspect
from collections.abc import Callable, Mapping

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.backbones import Stack
from mlti_jax.learners._base import (
    CLASSIFICATION,
    REGRESSION,
    Aux,
    Learner,
    Objective,
    Perturbation,
    Variables,
)
from mlti_jax.learners._gradient import GradientLearner
from mlti_jax.learners._inner_loop import adapt
from mlti_jax.learners._maml import (
    anil,
    gradient_learner,
    maml,
    meta_curvature,
    metasgd,
)
from mlti_jax.learners._metric import MetricLearner, matchingnet, protonet, prototypes
from mlti_jax.learners._supervised import (
    MultiTaskLearner,
    SupervisedLearner,
    logistic_regression,
    mtl,
    sl,
)
from mlti_jax.learners._update_rules import UpdateRule

# By family, as in each learner's `family`.
FAMILIES: dict[str, dict[str, Callable[..., Learner]]] = {
    "gradient": {
        "maml": maml,
        "anil": anil,
        "metasgd": metasgd,
        "meta_curvature": meta_curvature,
    },
    "metric": {"protonet": protonet, "matchingnet": matchingnet},
    "supervised": {"sl": sl, "mtl": mtl},
}
LEARNERS = {name: make for group in FAMILIES.values() for name, make in group.items()}


def make(
    name: str,
    backbone: Stack,
    outputs: int,
    *,
    facts: Mapping[str, int] | None = None,
    **options,
) -> Learner:
    """Builds a learner by its name.

    Args:
      name: one of `LEARNERS`.
      backbone: the network without a head.
      outputs: classes of a task, or length of a regression target.
      facts: of the training data, `base_classes` and `base_groups`; a learner is given
        those that its function names.
      **options: the learner's hyper-parameters.
    """
    if name not in LEARNERS:
        raise unknown_name("learner", name, LEARNERS)
    function = LEARNERS[name]
    check_options(f"learner {name}", function, options, gradient_learner)
    known = inspect.signature(function).parameters
    given = {fact: v for fact, v in (facts or {}).items() if fact in known}
    return function(backbone, outputs, **given, **options)


__all__ = [
    "CLASSIFICATION",
    "FAMILIES",
    "LEARNERS",
    "REGRESSION",
    "Aux",
    "GradientLearner",
    "Learner",
    "MetricLearner",
    "MultiTaskLearner",
    "Objective",
    "Perturbation",
    "SupervisedLearner",
    "UpdateRule",
    "Variables",
    "adapt",
    "anil",
    "logistic_regression",
    "make",
    "maml",
    "matchingnet",
    "meta_curvature",
    "metasgd",
    "mtl",
    "protonet",
    "prototypes",
    "sl",
]
