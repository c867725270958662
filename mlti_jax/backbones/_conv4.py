"""The standard four-block convolutional network (App. D.1 and E.1)."""

from __future__ import annotations

from mlti_jax.backbones._layers import ConvBlock
from mlti_jax.backbones._stack import Stack, check_depth
from mlti_jax.errors import InputError


def conv4(filters: int = 32, blocks: int = 4) -> Stack:
    """Build a stack of convolution blocks; each one halves the image.

    With four blocks, 28x28 images end at 1x1 and 84x84 images at 5x5 positions.

    Args:
      filters: output channels of every block; the paper uses 32.
      blocks: number of blocks.

    Returns:
      A stack from images `[N, H, W, C]` to `[N, H', W', filters]`.

    Examples:
      >>> len(conv4())
      4
    """
    if filters < 1 or blocks < 1:
        raise InputError(
            f"conv4 needs filters and blocks >= 1, got {filters}, {blocks}"
        )
    check_depth(blocks)
    return Stack(tuple(ConvBlock(filters) for _ in range(blocks)))
