"""Checks that the strategies that mix samples share."""

from __future__ import annotations

from collections.abc import Callable

from mlti_jax import interpolation
from mlti_jax._internal.checks import check_positive, unknown_name
from mlti_jax.errors import InputError
from mlti_jax.interpolation import Method
from mlti_jax.types import Task

METHODS: dict[str, Method] = {
    "mixup": interpolation.mixup,
    "cutmix": interpolation.cutmix,
}

# How two tasks are interpolated in each setting.
PAIR_FUNCTIONS: dict[str, Callable[..., Task]] = {
    "label_sharing": interpolation.label_sharing,
    "non_label_sharing": interpolation.non_label_sharing,
    "regression": interpolation.label_sharing,
}


def check_setting(setting: str) -> None:
    """Raise `InputError` if the setting is unknown."""
    if setting not in PAIR_FUNCTIONS:
        raise unknown_name("setting", setting, PAIR_FUNCTIONS)


def check_mixing(
    setting: str, method: str, layers: tuple[int, ...], alpha: float
) -> Method:
    """Check the arguments of a strategy that mixes samples.

    Args:
      setting: `label_sharing`, `non_label_sharing` or `regression`.
      method: `mixup` or `cutmix`.
      layers: the layers to draw from; cutmix works only on the input.
      alpha: parameter of Beta(alpha, alpha).

    Returns:
      The mixing method.

    Raises:
      InputError: if one of them is unknown, or they do not fit together.
    """
    check_setting(setting)
    if method not in METHODS:
        raise unknown_name("mixing method", method, METHODS)
    if method == "cutmix" and tuple(layers) != (0,):
        raise InputError(
            f"cutmix works on images, so on layer 0 only, got layers {tuple(layers)}; "
            "use mixup for hidden layers"
        )
    check_positive("alpha", alpha)
    return METHODS[method]


def check_boxes(boxes: str, method: str) -> None:
    """Raise `InputError` if the boxes are unknown, or if the method cuts none."""
    if boxes not in interpolation._BOXES:
        raise unknown_name("choice of boxes", boxes, interpolation._BOXES)
    if boxes != "shared" and method != "cutmix":
        raise InputError(
            f"boxes={boxes!r} is for cutmix, and interpolation.method is {method!r}; "
            "set boxes='shared', or interpolate images with cutmix"
        )
