"""What the strategies that mix samples check alike."""

from __future__ import annotations

from mlti_jax import interpolation
from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.interpolation import Method


def check_mixing(
    method: str, layers: tuple[int, ...], alpha: float, form: str | None = None
) -> Method:
    """Refuses what can't be mixed; returns the mixing method.

    Args:
      method: `mixup` or `cutmix`.
      layers: the layers to draw from; cutmix works on the input only.
      alpha: of Beta(alpha, alpha).
      form: `label_sharing` or `non_label_sharing`, where it matters.
    """
    if form is not None and form not in interpolation.FORMS:
        raise unknown_name("form of interpolation", form, interpolation.FORMS)
    if method not in interpolation.METHODS:
        raise unknown_name("mixing method", method, interpolation.METHODS)
    if method == "cutmix" and tuple(layers) != (0,):
        raise InputError(
            f"cutmix works on images, so on layer 0 only, got layers {tuple(layers)}; "
            "use mixup for hidden layers"
        )
    interpolation.check_positive("alpha", alpha)
    return interpolation.METHODS[method]
