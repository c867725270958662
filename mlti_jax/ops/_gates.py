r"""Gates with noise, $v = a \circ \mathrm{softplus}(b + d + \epsilon)$.

Meta-Dropout multiplies the output of every block with such gates and draws the noise
$\epsilon$ many times. With pooling and moments of batch-norm to follow, v is not
stored on a CPU with native kernels (see `_fused.py`), and draws of the noise for the
same a and b share one pass over these.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.interpreters import batching

from mlti_jax._internal import native, platforms
from mlti_jax.ops import _pool_moments
from mlti_jax.ops._fused import fused_block
from mlti_jax.ops._groups import Axes, Operands, as_groups, bind, split_groups
from mlti_jax.ops._pool_moments import pool_moments
from mlti_jax.types import PyTree


class Gated(NamedTuple):
    r"""A product with gates, $a \circ \mathrm{softplus}(b + d + \epsilon)$.

    Attributes:
      y: `[..., 2 C]`, a and b.
      bias: `[C]`, d.
      noise: `[..., C]`, $\epsilon$.
    """

    y: Array
    bias: Array
    noise: Array

    def value(self) -> Array:
        """Compute the product, `[..., C]`."""
        a, b = jnp.split(self.y, 2, -1)
        return a * jax.nn.softplus(b + self.bias + self.noise)


def gated_pool_moments(gated: Gated, sign: Array) -> tuple[Array, Array, Array]:
    r"""Pool a product with gates, and compute its moments.

    The same as `pool_moments(gated.value(), sign)`.

    Args:
      gated: with y `[N, H, W, 2 C]`, bias `[C]` and noise `[N, H, W, C]`.
      sign: `[C]`: 1 for the maximum, -1 for the minimum of a channel.

    Returns:
      `(pooled [N, H // 2, W // 2, C], mean [C], variance [C])`.

    Raises:
      AssertionError: if the shapes differ from these.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> y = jnp.array([[1.0, 2.0], [4.0, 5.0]])[None, :, :, None]
      >>> gated = ops.Gated(jnp.concatenate([y, 0 * y], -1), jnp.zeros(1), 0 * y)
      >>> [round(a.item(), 3) for a in ops.gated_pool_moments(gated, jnp.ones(1))]
      [3.466, 2.079, 1.201]
    """
    y, bias, noise = gated
    chex.assert_rank([y, noise, sign], [4, 4, 1])
    chex.assert_shape(y, (*noise.shape[:3], 2 * noise.shape[3]))
    one_dtype = y.dtype == bias.dtype == noise.dtype
    if not (one_dtype and are_native_images(y)):
        return pool_moments(gated.value(), sign)
    sign = sign.astype(y.dtype)
    out = bind(_forward_p, noise[None, None], y[None], bias[None], sign[None])
    pooled, mean, variance = (leaf[0, 0] for leaf in out)
    return pooled, mean, variance


def are_native_images(x: PyTree) -> bool:
    """Whether the blocks of a network use native kernels for an input `x`."""
    return (
        getattr(x, "ndim", 0) == 4
        and platforms.target() == "cpu"
        and native.available(x)
    )


# Shapes: noise [G, S, N, H, W, C], S draws for y [G, N, H, W, 2 C], bias and sign
# [G, C]; the results have [G, S, ...].


def _form(noise: Array, y: Array, bias: Array, sign: Array) -> list[Array]:
    draws = noise.shape[1]
    v = Gated(y[:, None], bias[:, None, None, None, None], noise).value()
    out = bind(
        _pool_moments._forward_p,
        v.reshape(-1, *v.shape[2:]),
        jnp.repeat(sign, draws, axis=0),
    )
    return [leaf.reshape(-1, draws, *leaf.shape[1:]) for leaf in out]


def _shapes(
    noise: ShapedArray, y: ShapedArray, bias: ShapedArray, sign: ShapedArray
) -> list[ShapedArray]:
    groups, draws, images, height, width, channels = noise.shape
    chex.assert_shape(y, (groups, images, height, width, 2 * channels))
    chex.assert_shape([bias, sign], (groups, channels))
    size = (groups, draws, images, height // 2, width // 2, channels)
    moments = noise.update(shape=(groups, draws, channels))
    return [noise.update(shape=size), moments, moments]


_forward_p = fused_block("gated_pool_moments", _form, _shapes, "GatedPool", inputs=2)


def _batched(operands: Operands, axes: Axes) -> tuple[list[Array], list[int]]:
    noise, *others = operands
    if axes[0] is not None and all(axis is None for axis in axes[1:]):
        noise = jnp.moveaxis(noise, axes[0], 1)  # more draws, not more groups
        folded = noise.reshape(noise.shape[0], -1, *noise.shape[3:])
        out = bind(_forward_p, folded, *others)
        length = noise.shape[1:3]
        return [a.reshape(a.shape[0], *length, *a.shape[2:]) for a in out], [1] * 3
    groups, number = as_groups(operands, axes)
    out = bind(_forward_p, *groups)
    return [split_groups(leaf, number) for leaf in out], [0] * 3


batching.primitive_batchers[_forward_p] = _batched
