r"""Convolution of images with few channels, pooling and moments, in one pass.

In a network for images, the output $y = x * k$ of the first convolution is its largest
array: ten times the images and four times the next layer. On a CPU with native kernels
it is never written. It is computed two rows at a time, which stay in the cache, and
again for the gradient of the kernel. Three primitives as in `_pool_moments`:

* `first_block`: $F(x, k) = (S_y y, \mu, \sigma^2)$;
* its tangent $J(\dot k)$ and cotangent $J^T$, both in the direction of k alone.

All further derivatives, and those by x, are derivatives of the JAX forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import chex
import jax
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad

from mlti_jax._internal import native, platforms
from mlti_jax.ops import _pool_moments
from mlti_jax.ops._convolution import _conv, _kernel_gradient, conv2d
from mlti_jax.ops._groups import bind, is_zero, register
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


# The JAX forms. They compute the maxima and the mean again, because those of the native
# kernel differ by rounding, and positions of maxima are found by comparison.


def _forward(x: Array, kernel: Array, sign: Array) -> list[Array]:
    return bind(_pool_moments._forward_p, _conv(x, kernel), sign)


def _tangent(
    x: Array, kernel: Array, sign: Array, pooled: Array, mean: Array, t: Array
) -> list[Array]:
    del pooled, mean
    y = _conv(x, kernel)
    pooled, mean, _ = bind(_pool_moments._forward_p, y, sign)
    return bind(_pool_moments._tangent_p, y, pooled, mean, _conv(x, t))


def _cotangent(
    x: Array, kernel: Array, sign: Array, pooled: Array, mean: Array, *cotangents: Array
) -> Array:
    del pooled, mean
    y = _conv(x, kernel)
    pooled, mean, _ = bind(_pool_moments._forward_p, y, sign)
    by_y = bind(_pool_moments._cotangent_p, y, pooled, mean, *cotangents)
    return _kernel_gradient(x, by_y, _SIZE)


# The primitives.

_forward_p = Primitive("first_block")
_tangent_p = Primitive("first_block_tangent")
_cotangent_p = Primitive("first_block_cotangent")
_forward_p.multiple_results = _tangent_p.multiple_results = True


@_forward_p.def_abstract_eval
def _forward_shapes(
    x: ShapedArray, kernel: ShapedArray, sign: ShapedArray
) -> list[ShapedArray]:
    groups, images, height, width, channels = x.shape
    chex.assert_shape(kernel, (groups, *_SIZE, channels, None))
    filters = kernel.shape[-1]
    chex.assert_shape(sign, (groups, filters))
    pooled = x.update(shape=(groups, images, height // 2, width // 2, filters))
    return [pooled, sign, sign]


@_tangent_p.def_abstract_eval
def _tangent_shapes(
    x: ShapedArray,
    kernel: ShapedArray,
    sign: ShapedArray,
    pooled: ShapedArray,
    mean: ShapedArray,
    t: ShapedArray,
) -> list[ShapedArray]:
    chex.assert_equal(kernel.shape, t.shape)
    return [pooled, mean, mean]


@_cotangent_p.def_abstract_eval
def _cotangent_shape(
    x: ShapedArray, kernel: ShapedArray, *others: ShapedArray
) -> ShapedArray:
    return kernel


def _forward_jvp(
    primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[list[Array], list[Any]]:
    by_x, by_kernel, _ = tangents
    if not is_zero(by_x):
        full = map(ad.instantiate_zeros, tangents)
        return jax.jvp(_forward, tuple(primals), tuple(full))
    out = bind(_forward_p, *primals)
    if is_zero(by_kernel):
        return out, [ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in out]
    return out, bind(_tangent_p, *primals, *out[:2], by_kernel)


def _linear_jvp(
    primitive: Primitive,
    form: Callable[..., Any],
    primals: Sequence[Array],
    tangents: Sequence[Any],
) -> tuple[Any, Any]:
    """Rule of the tangent and cotangent, which are linear in what follows the mean."""
    out = bind(primitive, *primals)
    full = tuple(map(ad.instantiate_zeros, tangents))
    if all(map(is_zero, tangents[:2])):
        return out, bind(primitive, *primals[:5], *full[5:])
    return out, jax.jvp(form, tuple(primals), full)[1]


def _tangent_transpose(cotangents: Sequence[Any], *operands: Any) -> list[Array | None]:
    values = map(ad.instantiate_zeros, cotangents)
    return [*(None,) * 5, bind(_cotangent_p, *operands[:5], *values)]


def _cotangent_transpose(cotangent: Any, *operands: Any) -> list[Array | None]:
    values = bind(_tangent_p, *operands[:5], ad.instantiate_zeros(cotangent))
    wanted = map(ad.is_undefined_primal, operands[5:])
    linear = (v if w else None for v, w in zip(values, wanted, strict=True))
    return [*(None,) * 5, *linear]


register(_forward_p, _forward, "FirstBlock", _forward_jvp)
register(_tangent_p, _tangent, None, partial(_linear_jvp, _tangent_p, _tangent))
register(
    _cotangent_p,
    _cotangent,
    "FirstBlockCotangent",
    partial(_linear_jvp, _cotangent_p, _cotangent),
)
ad.primitive_transposes[_tangent_p] = _tangent_transpose
ad.primitive_transposes[_cotangent_p] = _cotangent_transpose
