"""Features of one scale: mean 0 and standard deviation 1 on the training tasks."""

from __future__ import annotations

import dataclasses

import numpy as np

from mlti_jax.data._own.inputs import Inputs

# Spreads of features that differ by more are told of.
WIDE = 100.0
# Pixels of standardised pictures are smaller than this, grey values from 0 to 255 not.
LARGEST_PIXEL = 10.0


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of features.

    Args:
      x: the training tasks' samples, `[M, D]`.

    Returns:
      Mean and standard deviation, `[D]`; 0 and 1 for features that are 0 or 1 only,
      which stay as they are, and a scale of 1 for constant ones.
    """
    x = x.astype(np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    # Rounding may give equal numbers a tiny deviation, and a huge standard score.
    scale[x.min(axis=0) == x.max(axis=0)] = 1.0
    unchanged = _binary(x)
    mean[unchanged], scale[unchanged] = 0.0, 1.0
    return mean, scale


def standardising(inputs: Inputs, x: np.ndarray) -> tuple[Inputs, str]:
    """The record of inputs with the statistics of the training tasks, and words.

    Args:
      inputs: of vectors.
      x: the training tasks' samples, `[M, D]`.
    """
    mean, scale = statistics(x)
    leaf = inputs.leaves[0]._replace(dtype="float32")
    inputs = dataclasses.replace(
        inputs, leaves=(leaf,), mean=tuple(mean.tolist()), scale=tuple(scale.tolist())
    )
    binary, constant = int(_binary(x).sum()), x.min(axis=0) == x.max(axis=0)
    words = f"standardised: {x.shape[1] - binary} of {x.shape[1]} features"
    if binary:
        words += f", the other {binary} are 0 or 1"
    if constant.any():
        words += f"; {int(constant.sum())} are constant in the training tasks"
    return inputs, words


def scale_advice(x: np.ndarray) -> list[str]:
    """What to say of features that were left as they are, `[M, D]`."""
    spread = x.astype(np.float64).std(axis=0)
    spread = spread[spread > 0]
    if not len(spread) or spread.max() <= WIDE * spread.min():
        return []
    return [
        f"features differ in spread by a factor of {spread.max() / spread.min():,.0f};"
        " standardise=True gives them one scale"
    ]


def pixel_advice(x: np.ndarray) -> list[str]:
    """What to say of pictures of floats, `[M, H, W, C]`."""
    largest = float(np.abs(x).max())
    if largest <= LARGEST_PIXEL:
        return []
    return [
        f"pictures hold floats up to {largest:.3g}, which are taken as they are; divide"
        " them by 255, or give uint8, which is"
    ]


def _binary(x: np.ndarray) -> np.ndarray:
    return ((x == 0) | (x == 1)).all(axis=0)
