"""Standardized regression targets: learned without units, reported in the user's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlti_jax.errors import InputError

# Targets larger than this, or smaller than its inverse, do not suit the default
# learning rates.
FAR_FROM_ONE = 100.0
# The square of a smaller scale vanishes in float32, and so does the squared error.
SMALLEST_SCALE = 1e-18


class TargetScaling(NamedTuple):
    r"""The map between targets in the user's units and those that networks learn.

    A target y becomes $(y - \mathrm{mean}) / \mathrm{scale}$, per output.

    Attributes:
      mean: one number per output; empty if targets are not standardized.
      scale: one positive number per output; empty if targets are not standardized.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @classmethod
    def of(cls, y: np.ndarray) -> TargetScaling:
        """Return mean and standard deviation of the training targets `[M, Dy]`.

        The scale of a constant target is 1.

        Raises:
          InputError: if a standard deviation is too small for float32.
        """
        y = y.astype(np.float64)
        mean, scale = y.mean(axis=0), y.std(axis=0)
        # Rounding can give equal numbers a tiny deviation.
        scale[y.min(axis=0) == y.max(axis=0)] = 1.0
        if scale.min() < SMALLEST_SCALE:
            raise InputError(
                f"targets have the standard deviation {scale.min():.3g} in the training"
                f" tasks; expected at least {SMALLEST_SCALE:.0e}, since squared errors"
                " vanish otherwise. Use another unit"
            )
        return cls(tuple(mean.tolist()), tuple(scale.tolist()))

    def standardise(self, y: np.ndarray) -> np.ndarray:
        """Convert targets `[N, Dy]` to those that networks learn, float32."""
        if not self.scale:
            return y.astype(np.float32)
        y = y.astype(np.float64)
        with np.errstate(over="ignore"):  # `check_magnitude` reports it.
            return ((y - np.array(self.mean)) / np.array(self.scale)).astype(np.float32)

    def restore(self, outputs: np.ndarray) -> np.ndarray:
        """Convert outputs of a network `[N, Dy]` to the user's units, float64."""
        outputs = outputs.astype(np.float64)
        if not self.scale:
            return outputs
        return outputs * np.array(self.scale) + np.array(self.mean)


def describe_targets(y: np.ndarray, scaling: TargetScaling) -> list[str]:
    """Return sentences on the range of the training targets `[M, Dy]`."""
    y = y.astype(np.float64)
    text = (
        f"targets of the training tasks: from {y.min():.3g} to {y.max():.3g}, mean"
        f" {y.mean():.3g}, standard deviation {y.std():.3g}"
    )
    if scaling.scale:
        return [
            f"{text}; standardized for training, while metric and predictions are in"
            " the original units"
        ]
    if 1 / FAR_FROM_ONE <= np.abs(y).max() <= FAR_FROM_ONE:
        return [text]
    return [
        text,
        "default learning rates suit targets of about 1: use standardise_targets=True",
    ]
