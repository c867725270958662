"""The standard four-block convolutional network (App. D.1 and E.1)."""

from __future__ import annotations

from mlti_jax.backbones.layers import ConvBlock
from mlti_jax.backbones.stack import Stack


def conv4(filters: int = 32, blocks: int = 4) -> Stack:
    """Four convolution blocks; 28x28 images end at 1x1, 84x84 at 5x5 positions.

    Args:
      filters: output channels of every block; the paper's value is 32.
      blocks: number of blocks.
    """
    return Stack(tuple(ConvBlock(filters) for _ in range(blocks)))
