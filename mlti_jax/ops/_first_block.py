r"""Convolution of images with few channels, pooling and moments, in one pass.

In a network for images, the output $y = x * k$ of the first convolution is its largest
array: ten times the images and four times the next layer. On a CPU with native kernels
it is never written. It is computed two rows at a time, which stay in the cache, and
again for the gradient of the kernel (see `_fused.py`).

All further derivatives, and those by x, are derivatives of the JAX forms.
"""

from __future__ import annotations

import chex
from jax import Array
from jax.core import ShapedArray

from mlti_jax._internal import native, platforms
from mlti_jax.ops import _pool_moments
from mlti_jax.ops._convolution import _conv, conv2d
from mlti_jax.ops._fused import fused_block
from mlti_jax.ops._groups import bind
from mlti_jax.ops._pool_moments import pool_moments

_SIZE = (3, 3)
_MOST_CHANNELS = 8
_FILTERS = 32  # The native kernel processes multiples of them.


def conv_pool_moments(
    x: Array, kernel: Array, sign: Array
) -> tuple[Array, Array, Array]:
    r"""Convolve, pool the output, and compute its moments.

    The same as `pool_moments(conv2d(x, kernel), sign)`. On a CPU, the output of the
    convolution is not stored if x has few channels (colors).

    Args:
      x: images `[N, H, W, C]`.
      kernel: `[kh, kw, C, O]`.
      sign: `[O]`: 1 for the maximum, -1 for the minimum of a channel.

    Returns:
      `(pooled [N, H // 2, W // 2, O], mean [O], variance [O])`.

    Raises:
      AssertionError: if `x` or `kernel` is not of rank 4, or `sign` is not of rank 1.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> x = jnp.array([[1.0, 2.0], [4.0, 5.0]])[None, :, :, None]
      >>> kernel = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(2.0)
      >>> [a.ravel().tolist() for a in ops.conv_pool_moments(x, kernel, jnp.ones(1))]
      [[10.0], [6.0], [10.0]]
    """
    chex.assert_rank([x, kernel, sign], [4, 4, 1])
    *size, channels, filters = kernel.shape
    if not (
        tuple(size) == _SIZE
        and channels <= _MOST_CHANNELS
        and filters % _FILTERS == 0
        and x.dtype == kernel.dtype
        and platforms.target() == "cpu"
        and native.available(x)
    ):
        return pool_moments(conv2d(x, kernel), sign)
    out = bind(_forward_p, x[None], kernel[None], sign.astype(x.dtype)[None])
    pooled, mean, variance = (leaf[0] for leaf in out)
    return pooled, mean, variance


def _form(x: Array, kernel: Array, sign: Array) -> list[Array]:
    return bind(_pool_moments._forward_p, _conv(x, kernel), sign)


def _shapes(
    x: ShapedArray, kernel: ShapedArray, sign: ShapedArray
) -> list[ShapedArray]:
    groups, images, height, width, channels = x.shape
    chex.assert_shape(kernel, (groups, *_SIZE, channels, None))
    filters = kernel.shape[-1]
    chex.assert_shape(sign, (groups, filters))
    pooled = x.update(shape=(groups, images, height // 2, width // 2, filters))
    return [pooled, sign, sign]


_forward_p = fused_block("first_block", _form, _shapes, "FirstBlock")
