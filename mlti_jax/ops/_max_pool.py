r"""Max-pooling, whose derivative is the selection of the maxima.

With $S_x$ for the matrix that selects (and, of equal entries, averages) the maxima of
each window, the derivative of $S_x x$ is $S_x$, which is piecewise constant. Two
primitives, the selection $S_x t$ and its transpose $S_x^\top g$, provide derivatives of
every order in forward and reverse mode. They have one form for each kind of platform:

* a CPU computes on windows, `[N, H/2, 2, W/2, 2, C]`;
* an accelerator computes on the four corners of all windows, because the last two axes
  of an array are stored in tiles there, and an axis of length 2 fills a small part of a
  tile. On a TPU v5e, a convolution with pooling took half as many cycles.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from mlti_jax._internal import platforms
from mlti_jax.ops._groups import bind, is_zero, register


@jax.custom_jvp
def max_pool(x: Array) -> Array:
    r"""Maximum over windows of 2 x 2 with stride 2; drops an odd last row or column.

    $$y_{nhwc} = \max_{i, j \in \{0, 1\}} x_{n,\, 2h + i,\, 2w + j,\, c}$$

    Computed as pairwise maxima of strided slices. The derivative compares with the
    maximum, and equal entries of a window share it equally; the select-and-scatter of
    `lax.reduce_window` is much slower.

    Args:
      x: `[N, H, W, C]`.

    Returns:
      `[N, H // 2, W // 2, C]`.

    Raises:
      AssertionError: if `x` is not of rank 4.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> x = jnp.array([[1.0, 2.0, 5.0], [4.0, 3.0, 6.0]])[None, :, :, None]
      >>> ops.max_pool(x).shape, float(ops.max_pool(x)[0, 0, 0, 0])
      ((1, 1, 1, 1), 4.0)
    """
    chex.assert_rank(x, 4)
    x = whole_windows(x)
    x = jnp.maximum(x[:, 0::2], x[:, 1::2])
    return jnp.maximum(x[:, :, 0::2], x[:, :, 1::2])


@max_pool.defjvp
def _max_pool_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    maximum = max_pool(*primals)
    operands = (*primals, maximum, *tangents)
    if platforms.target() == "cpu":
        # JAX then keeps the positions of the maxima for the backward pass. To find them
        # again takes 3 % of a step of ResNet-12.
        return maximum, _select_windows(*operands)
    return maximum, select(*(operand[None] for operand in operands))[0]


def select(x: Array, pooled: Array, t: Array) -> Array:
    """Average `t` over the entries of each window of `x` that equal its maximum.

    Args:
      x: `[G, N, H, W, C]`.
      pooled: maxima (or minima) of its windows, `[G, N, H // 2, W // 2, C]`.
      t: `[G, N, H, W, C]`.

    Returns:
      `[G, N, H // 2, W // 2, C]`.
    """
    return bind(_select_p, x, pooled, t)


def scatter(x: Array, pooled: Array, g: Array) -> Array:
    """Transpose of `select`: `g [G, N, H // 2, W // 2, C]` to `[G, N, H, W, C]`."""
    return bind(_scatter_p, x, pooled, g)


def whole_windows(x: Array) -> Array:
    """Drop an odd last row and column of `[..., H, W, C]`."""
    height, width = (x.shape[axis] // 2 * 2 for axis in (-3, -2))
    return x[..., :height, :width, :]


# The form for CPUs.


def _windows(x: Array) -> Array:
    """Separate windows: `[G, N, H / 2, 2, W / 2, 2, C]`."""
    *batch, height, width, channels = x.shape
    windows = (*batch, height // 2, 2, width // 2, 2, channels)
    return whole_windows(x).reshape(windows)


def _chosen(x: Array, pooled: Array) -> tuple[Array, Array]:
    """Return where the maxima are, as windows, and their number."""
    chosen = _windows(x) == pooled[..., :, None, :, None, :]
    return chosen, chosen.sum((-4, -2)).astype(x.dtype)


def _select_windows(x: Array, pooled: Array, t: Array) -> Array:
    chosen, count = _chosen(x, pooled)
    return jnp.where(chosen, _windows(t), 0).sum((-4, -2)) / count


def _scatter_windows(x: Array, pooled: Array, g: Array) -> Array:
    chosen, count = _chosen(x, pooled)
    share = (g / count)[..., :, None, :, None, :]
    scattered = jnp.where(chosen, share, 0).reshape(whole_windows(x).shape)
    rows, columns = x.shape[-3] % 2, x.shape[-2] % 2
    pads = ((0, 0),) * (x.ndim - 3)
    return jnp.pad(scattered, (*pads, (0, rows), (0, columns), (0, 0)))


# The form for accelerators.


def _corners(x: Array) -> list[Array]:
    """Return the entries at each corner of all windows, as in `_CORNERS`."""
    x = whole_windows(x)
    return [x[..., i::2, j::2, :] for i, j in _CORNERS]


_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))


def _add(arrays: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, arrays)


def _chosen_corners(x: Array, pooled: Array) -> tuple[list[Array], Array]:
    """Return where each corner is a maximum, and the number of maxima per window."""
    chosen = [corner == pooled for corner in _corners(x)]
    return chosen, _add(each.astype(x.dtype) for each in chosen)


def _select_corners(x: Array, pooled: Array, t: Array) -> Array:
    chosen, count = _chosen_corners(x, pooled)
    pairs = zip(chosen, _corners(t), strict=True)
    return _add(jnp.where(each, corner, 0) for each, corner in pairs) / count


def _scatter_corners(x: Array, pooled: Array, g: Array) -> Array:
    chosen, count = _chosen_corners(x, pooled)
    share = g / count
    zero = jnp.zeros((), x.dtype)
    rows, columns = x.shape[-3] % 2, x.shape[-2] % 2

    def place(values: Array, i: int, j: int) -> Array:
        """Put values at corner (i, j) of each window, and zeros elsewhere."""
        pads = ((0, 0, 0),) * (x.ndim - 3)
        places = ((i, 1 - i + rows, 1), (j, 1 - j + columns, 1), (0, 0, 0))
        return lax.pad(values, zero, (*pads, *places))

    pairs = zip(chosen, _CORNERS, strict=True)
    return _add(place(jnp.where(each, share, 0), *corner) for each, corner in pairs)


# The primitives.

_select_p = Primitive("max_pool_select")
_scatter_p = Primitive("max_pool_scatter")


@_select_p.def_abstract_eval
def _select_shape(x: ShapedArray, pooled: ShapedArray, t: ShapedArray) -> ShapedArray:
    chex.assert_equal(x.shape, t.shape)
    return pooled.update(dtype=t.dtype)


@_scatter_p.def_abstract_eval
def _scatter_shape(x: ShapedArray, pooled: ShapedArray, g: ShapedArray) -> ShapedArray:
    chex.assert_equal(pooled.shape, g.shape)
    return x.update(dtype=g.dtype)


def _linear_jvp(
    primitive: Primitive, primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[Array, Any]:
    """Differentiate by the last operand; positions of maxima are constant."""
    x, pooled, t = primals
    out = bind(primitive, x, pooled, t)
    if is_zero(tangents[2]):
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, bind(primitive, x, pooled, tangents[2])


def _select_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> Any:
    return _linear_jvp(_select_p, primals, tangents)


def _scatter_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> Any:
    return _linear_jvp(_scatter_p, primals, tangents)


register(_select_p, _select_corners, None, _select_jvp)
register(_scatter_p, _scatter_corners, None, _scatter_jvp)
for _primitive, _form in ((_select_p, _select_windows), (_scatter_p, _scatter_windows)):
    _lowering = mlir.lower_fun(_form, multiple_results=False)
    mlir.register_lowering(_primitive, _lowering, platform="cpu")
ad.primitive_transposes[_select_p] = lambda cotangent, x, pooled, t: [
    *(None, None),
    scatter(x, pooled, ad.instantiate_zeros(cotangent)),
]
ad.primitive_transposes[_scatter_p] = lambda cotangent, x, pooled, g: [
    *(None, None),
    select(x, pooled, ad.instantiate_zeros(cotangent)),
]
