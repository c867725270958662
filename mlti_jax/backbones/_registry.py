"""All backbones by name. A new one is one file and one line in `BACKBONES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.backbones._albert import albert
from mlti_jax.backbones._conv4 import conv4
from mlti_jax.backbones._mlp import mlp
from mlti_jax.backbones._pose import pose
from mlti_jax.backbones._resnet12 import resnet12
from mlti_jax.backbones._stack import Stack
from mlti_jax.backbones._text import word_mean

BACKBONES: dict[str, Callable[..., Stack]] = {
    "albert": albert,
    "conv4": conv4,
    "mlp": mlp,
    "pose": pose,
    "resnet12": resnet12,
    "word_mean": word_mean,
}


def make(name: str, **options: Any) -> Stack:
    """Build a backbone by name.

    Args:
      name: name of a backbone, such as `conv4`.
      **options: arguments of its factory.

    Raises:
      InputError: if the name or an option is unknown.
    """
    if name not in BACKBONES:
        raise unknown_name("backbone", name, BACKBONES)
    check_options(f"backbone {name}", BACKBONES[name], options)
    return BACKBONES[name](**options)
