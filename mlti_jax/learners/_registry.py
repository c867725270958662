"""All learners by name. A new one is one file and one line in `FAMILIES`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.backbones import Stack
from mlti_jax.learners._base import Learner
from mlti_jax.learners._maml import (
    anil,
    gradient_learner,
    maml,
    meta_curvature,
    metasgd,
)
from mlti_jax.learners._metric import matchingnet, protonet
from mlti_jax.learners._supervised import mtl, sl

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
    **options: Any,
) -> Learner:
    """Build a learner by name.

    Args:
      name: name of a learner, such as `maml`.
      backbone: the network without a head.
      outputs: number of classes per task, or length of a regression target.
      facts: facts of the training data, `base_classes` and `base_groups`; passed to
        the factories that have such a parameter.
      **options: hyper-parameters of the learner.

    Raises:
      InputError: if the name or an option is unknown.

    Examples:
      >>> from mlti_jax import backbones
      >>> make("maml", backbones.mlp((32, 32)), outputs=5, steps=3).steps
      3
    """
    if name not in LEARNERS:
        raise unknown_name("learner", name, LEARNERS)
    function = LEARNERS[name]
    check_options(f"learner {name}", function, options, gradient_learner)
    known = inspect.signature(function).parameters
    given = {fact: v for fact, v in (facts or {}).items() if fact in known}
    return function(backbone, outputs, **given, **options)
