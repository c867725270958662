"""ResNet-12 as used in few-shot learning (App. E.5, model capacity)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlti_jax import ops
from mlti_jax.backbones._layers import BatchNorm, check_images, uniform_fan_in
from mlti_jax.backbones._stack import Context, Stack, are_sizes
from mlti_jax.errors import InputError
from mlti_jax.types import Array


class ResidualBlock(nn.Module):
    """Three 3x3 convolutions with a 1x1 shortcut, then 2x2 max-pooling.

    Attributes:
      filters: output channels.
      slope: slope of the leaky ReLU.
      drop_rate: fraction of positions that DropBlock sets to zero in training.
      block_size: side length of the squares that DropBlock removes.
      mean: whether to average the output over positions, `[N, filters]`.
    """

    filters: int
    slope: float = 0.1
    drop_rate: float = 0.0
    block_size: int = 5
    mean: bool = False

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        check_images(h)
        out = h
        for index in range(3):
            shape = (3, 3, out.shape[-1], self.filters)
            kernel = self.param(f"kernel{index}", uniform_fan_in, shape)
            # Hooks apply to the last of the three convolutions.
            inner = context if index == 2 else context.replace(hook=None)
            linear = inner.linear(out, kernel, ops.conv2d)
            out = BatchNorm(name=f"norm{index}")(linear, context)
            if index < 2:
                out = nn.leaky_relu(out, self.slope)
        shape = (1, 1, h.shape[-1], self.filters)
        shortcut = ops.conv2d(h, self.param("shortcut", uniform_fan_in, shape))
        out = out + BatchNorm(name="shortcut_norm")(shortcut, context)
        # Leaky ReLU is monotone, so it can run after pooling, on a quarter of the data.
        out = nn.leaky_relu(ops.max_pool(out), self.slope)
        if self.drop_rate > 0 and context.train:
            out = drop_block(
                self.make_rng("dropout"), out, self.drop_rate, self.block_size
            )
        return out.mean(axis=(1, 2)) if self.mean else out


def drop_block(key: Array, x: Array, rate: float, size: int) -> Array:
    """Set random squares of each channel to zero (DropBlock, Ghiasi et al. 2018).

    Args:
      key: PRNG key.
      x: `[N, H, W, C]`.
      rate: approximate fraction of entries that are set to zero.
      size: side length of the squares, at most that of the image.

    Returns:
      `[N, H, W, C]`, scaled so that the expected sum is unchanged.
    """
    height, width = x.shape[1:3]
    size = min(size, height, width)
    corners = (height - size + 1, width - size + 1)
    gamma = rate * height * width / (size**2 * corners[0] * corners[1])
    seeds = jax.random.bernoulli(
        key, min(gamma, 1.0), (x.shape[0], *corners, x.shape[3])
    )
    # A square starts at each seed: take the maximum over the preceding seeds.
    pad = size - 1
    padded = jnp.pad(seeds, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    dropped = jnp.zeros(x.shape, bool)
    for i in range(size):
        for j in range(size):
            dropped |= padded[:, i : i + height, j : j + width]
    kept = (~dropped).astype(x.dtype)
    return x * kept * (kept.size / jnp.maximum(kept.sum(), 1))


def resnet12(
    filters: tuple[int, ...] = (64, 160, 320, 640),
    drop_rate: float = 0.0,
    block_size: int = 5,
) -> Stack:
    """Build a ResNet-12: four residual blocks, then the mean over positions.

    Args:
      filters: output channels of each block.
      drop_rate: fraction of positions that DropBlock removes in every block.
      block_size: side length of the squares that DropBlock removes.

    Returns:
      A stack from images `[N, H, W, C]` to `[N, filters[-1]]`.

    Examples:
      >>> len(resnet12((8, 8)))
      2
    """
    if not are_sizes(filters) or not 0 <= drop_rate < 1 or block_size < 1:
        raise InputError(
            "resnet12 needs filters and block_size >= 1 and a drop_rate in [0, 1), got "
            f"{tuple(filters)}, {block_size} and {drop_rate}"
        )
    last = len(filters) - 1
    return Stack(
        tuple(
            ResidualBlock(
                size, drop_rate=drop_rate, block_size=block_size, mean=i == last
            )
            for i, size in enumerate(filters)
        )
    )
