"""The network for Pose (App. D.1; Yin et al. 2020)."""

from __future__ import annotations

from mlti_jax.backbones._layers import PlainConvBlock, ReshapingDense
from mlti_jax.backbones._stack import Stack
from mlti_jax.errors import InputError

FIXED_FILTERS = (32, 48, 64)
ADAPTIVE_FILTERS = 64
ADAPTIVE_BLOCKS = 4
INNER_SIZE = 14
# Of the network with its head: the adaptive blocks and the head.
ADAPTED_LAYERS = tuple(range(-ADAPTIVE_BLOCKS - 1, 0))


def pose(width: float = 1.0) -> Stack:
    """Three fixed blocks, a fixed linear layer, and four adaptive blocks.

    An image `[128, 128, 1]` becomes `[8, 8, 64]` by the fixed blocks, whose
    convolutions have stride 2, with pooling after the second; then 196 numbers, taken
    as a small image `[14, 14, 1]`; then `[14, 14, 64]`, of which the mean over
    positions is the output. `ADAPTED_LAYERS` are the ones that MAML adapts.

    Args:
      width: factor on all numbers of filters; 1 is the paper's network.
    """
    if not width > 0:
        raise InputError(f"pose needs a positive width, got {width}")
    fixed = [max(1, round(width * filters)) for filters in FIXED_FILTERS]
    adaptive = max(1, round(width * ADAPTIVE_FILTERS))
    last = ADAPTIVE_BLOCKS - 1
    return Stack(
        (
            PlainConvBlock(fixed[0], strides=2),
            PlainConvBlock(fixed[1], strides=2, pool=True),
            PlainConvBlock(fixed[2], strides=2),
            ReshapingDense((INNER_SIZE, INNER_SIZE, 1)),
            *(PlainConvBlock(adaptive, mean=i == last) for i in range(last + 1)),
        )
    )
