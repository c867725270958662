"""The standard four-block convolutional network (App. D.1 and E.1)."""

from __future__ import annotations

from mlti_jax.backbones._layers import ConvBlock
from mlti_jax.backbones._stack import Stack
from mlti_jax.errors import InputError


def conv4(filters: int = 32, blocks: int = 4) -> Stack:
    """Four convolution blocks; 28x28 images end at 1x1, 84x84 at 5x5 positions.

    Args:
      filters: output channels of every block; the paper's value is 32.
      blocks: number of blocks.
    """
    if filters < 1 or blocks < 1:
        raise InputError(
            f"conv4 needs filters and blocks >= 1, got {filters}, {blocks}"
        )
    return Stack(tuple(ConvBlock(filters) for _ in range(blocks)))
