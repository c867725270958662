"""Meta-learners. A new one is one file and one line in `LEARNERS`."""

from collections.abc import Callable

from mlti_jax.backbones import Stack
from mlti_jax.errors import check_options, unknown_name
from mlti_jax.learners.base import (
    CLASSIFICATION,
    REGRESSION,
    Aux,
    Learner,
    Objective,
    Variables,
)
from mlti_jax.learners.gradient import (
    GradientLearner,
    adapt,
    anil,
    gradient_learner,
    maml,
    meta_curvature,
    metasgd,
)
from mlti_jax.learners.metric import MetricLearner, matchingnet, protonet, prototypes
from mlti_jax.learners.update_rules import UpdateRule

LEARNERS: dict[str, Callable[..., Learner]] = {
    "maml": maml,
    "anil": anil,
    "metasgd": metasgd,
    "meta_curvature": meta_curvature,
    "protonet": protonet,
    "matchingnet": matchingnet,
}


def make(name: str, backbone: Stack, outputs: int, **options) -> Learner:
    """Builds a learner by its name.

    Args:
      name: one of `LEARNERS`.
      backbone: the network without a head.
      outputs: classes of a task, or length of a regression target.
      **options: the learner's hyper-parameters.
    """
    if name not in LEARNERS:
        raise unknown_name("learner", name, LEARNERS)
    check_options(f"learner {name}", LEARNERS[name], options, gradient_learner)
    return LEARNERS[name](backbone, outputs, **options)


__all__ = [
    "CLASSIFICATION",
    "LEARNERS",
    "REGRESSION",
    "Aux",
    "GradientLearner",
    "Learner",
    "MetricLearner",
    "Objective",
    "UpdateRule",
    "Variables",
    "adapt",
    "anil",
    "make",
    "maml",
    "matchingnet",
    "meta_curvature",
    "metasgd",
    "protonet",
    "prototypes",
]
