r"""Operations that determine the speed of a convolutional network.

`conv2d` is bilinear, and so is its kernel gradient. The pair is closed under
differentiation: two primitives provide derivatives of every order in forward and
reverse mode. Each has its own batching rule for `vmap` over tasks:

* a kernel shared by all tasks: the tasks are folded into the image axis;
* a kernel per task (an adapted layer): the tasks become *groups*, computed as batched
  products of patch matrices, or in a loop if these would exceed the cache of a CPU.
  JAX's own rule generates a grouped convolution, which is up to 27 times slower on CPU.

The primitives cover odd kernels with stride 1 and "SAME" padding. Other convolutions
are matrix products of patches, which JAX differentiates and batches efficiently.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["batch_moments", "conv2d", "max_pool", "normalise", "unit"]

# The kernel gradient is summed over chunks of images whose operands stay in cache.
_CACHE_BYTES = 2**20

_Size = tuple[int, int]  # of a kernel, in rows and columns


def conv2d(
    x: Array, kernel: Array, *, strides: int = 1, padding: str = "SAME"
) -> Array:
    r"""Two-dimensional convolution (cross-correlation, as usual in deep learning).

    $$y_{nhwo} = \sum_{ijc} x_{n,\, sh + i,\, sw + j,\, c} \; k_{ijco}$$

    It is differentiable any number of times, in forward and reverse mode, and designed
    for calls on one task under `jax.vmap`.

    Args:
      x: images `[N, H, W, C]`.
      kernel: `[kh, kw, C, O]`.
      strides: step $s$ of the window in both directions.
      padding: "SAME" or "VALID", as in `lax.conv_general_dilated`.

    Returns:
      `[N, H', W', O]`.

    Raises:
      AssertionError: if `x` or `kernel` is not of rank 4.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> x = jnp.arange(9.0).reshape(1, 3, 3, 1)
      >>> ops.conv2d(x, jnp.ones((3, 3, 1, 1)))[0, :, :, 0].tolist()
      [[8.0, 15.0, 12.0], [21.0, 36.0, 27.0], [20.0, 33.0, 24.0]]
    """
    chex.assert_rank([x, kernel], 4)
    dtype = jnp.result_type(x, kernel)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    height, width, channels, filters = kernel.shape
    odd = height % 2 == 1 and width % 2 == 1
    if strides == 1 and padding == "SAME" and odd and height * width > 1:
        return _conv(x[None], kernel[None])[0]
    pads = lax.padtype_to_pads(
        x.shape[1:3], (height, width), (strides, strides), padding
    )
    patches = _patches(x, (height, width), strides, pads)
    return patches @ kernel.reshape(height * width * channels, filters)


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
    x = _whole_windows(x)
    x = jnp.maximum(x[:, 0::2], x[:, 1::2])
    return jnp.maximum(x[:, :, 0::2], x[:, :, 1::2])


@max_pool.defjvp
def _max_pool_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    x, tangent = map(_whole_windows, (*primals, *tangents))
    maximum = max_pool(x)
    corners = [x[:, i::2, j::2] for i in range(2) for j in range(2)]
    equal = sum((corner == maximum).astype(x.dtype) for corner in corners)
    images, height, width, channels = maximum.shape
    windows = (images, height, 2, width, 2, channels)
    chosen = x.reshape(windows) == maximum[:, :, None, :, None]
    chosen_tangent = jnp.where(chosen, tangent.reshape(windows), 0)
    return maximum, chosen_tangent.sum((2, 4)) / equal


def _whole_windows(x: Array) -> Array:
    """Drop an odd last row and column."""
    return x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]


def batch_moments(x: Array, weight: Array | None = None) -> tuple[Array, Array]:
    r"""Mean and biased variance over all axes but the last.

    $$\mu_c = \sum_n w_n x_{nc}, \quad
      \sigma^2_c = \sum_n w_n (x_{nc} - \mu_c)^2, \quad \sum_n w_n = 1$$

    Computed in one pass, as the mean of squares minus the square of the mean, after
    subtracting the first value. Without that shift, a mean much larger than the
    deviation would cancel all digits. Negative rounding errors are set to 0.

    Args:
      x: `[N, ..., C]`.
      weight: `[N]`, 0 for samples that do not count; None if all count.

    Returns:
      `(mean [C], variance [C])`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> mean, variance = ops.batch_moments(jnp.array([[1.0], [3.0], [99.0]]),
      ...                                    jnp.array([1.0, 1.0, 0.0]))
      >>> mean.tolist(), variance.tolist()
      ([2.0], [1.0])
    """
    axes = tuple(range(x.ndim - 1))
    pivot = lax.stop_gradient(x[(0,) * (x.ndim - 1)])
    x = x - pivot
    if weight is None:
        mean, square = x.mean(axes), (x * x).mean(axes)
    else:
        share = weight / jnp.maximum(weight.sum() * (x[0].size // x.shape[-1]), 1e-12)
        share = share.reshape(-1, *(1,) * (x.ndim - 1))
        mean, square = (x * share).sum(axes), (x * x * share).sum(axes)
    return pivot + mean, jnp.maximum(square - mean * mean, 0.0)


def normalise(
    x: Array,
    mean: Array,
    var: Array,
    scale: Array,
    offset: Array,
    epsilon: float = 1e-5,
) -> Array:
    r"""Batch normalization with given moments, as one multiply-add.

    $$(x - \mu) \, s / \sqrt{\sigma^2 + \epsilon} + b = x a + (b - \mu a), \quad
      a = s / \sqrt{\sigma^2 + \epsilon}$$

    Args:
      x: `[..., C]`.
      mean: $\mu$, `[C]`.
      var: $\sigma^2$, `[C]`.
      scale: $s$, `[C]`.
      offset: $b$, `[C]`.
      epsilon: keeps the result finite if a channel is constant.

    Returns:
      The normalized `x`, with the same shape.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> x = jnp.array([[1.0], [5.0]])
      >>> one, zero = jnp.ones(1), jnp.zeros(1)
      >>> ops.normalise(x, 3 * one, 4 * one, one, zero, epsilon=0.0).tolist()
      [[-1.0], [1.0]]
    """
    factor = scale * lax.rsqrt(var + epsilon)
    return x * factor + (offset - mean * factor)


def unit(a: Array) -> Array:
    r"""Scale vectors to length one, $a / \sqrt{\lVert a \rVert^2 + 10^{-12}}$.

    The constant keeps the derivative at 0 finite. Zero vectors remain zero.

    Args:
      a: `[..., D]`.

    Returns:
      Vectors of length one, `[..., D]`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> [round(value, 3) for value in ops.unit(jnp.array([3.0, 4.0])).tolist()]
      [0.6, 0.8]
    """
    return a / jnp.sqrt(jnp.sum(a**2, axis=-1, keepdims=True) + 1e-12)


def _patches(
    x: Array, size: _Size, strides: int, pads: Sequence[tuple[int, int]]
) -> Array:
    """Collect every window as a row: `[N, H, W, C] -> [N, H', W', kh * kw * C]`."""
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    rows = (x.shape[1] - size[0]) // strides + 1
    columns = (x.shape[2] - size[1]) // strides + 1
    shifted = [
        x[:, i : i + (rows - 1) * strides + 1 : strides][
            :, :, j : j + (columns - 1) * strides + 1 : strides
        ]
        for i in range(size[0])
        for j in range(size[1])
    ]
    return shifted[0] if len(shifted) == 1 else jnp.concatenate(shifted, -1)


# The two primitives. Shapes: x [G, N, H, W, C], kernel [G, kh, kw, C, O] and
# gradient g [G, N, H, W, O], each of the G groups with its own kernel.

_conv_p = Primitive("conv2d_same")
_kernel_gradient_p = Primitive("conv2d_same_kernel_gradient")


def _conv(x: Array, kernel: Array) -> Array:
    return _conv_p.bind(*_same_manual_axes(x, kernel))


def _kernel_gradient(x: Array, g: Array, size: _Size) -> Array:
    """`k_ijco = sum_nhw x_{n, h + i, w + j, c} g_nhwo` with the padding of `_conv`."""
    return _kernel_gradient_p.bind(*_same_manual_axes(x, g), size=size)


def _same_manual_axes(*arrays: Array) -> list[Array]:
    """Mark replicated arrays as varying if another one varies (in `shard_map`)."""
    axes = [_varying(a) for a in arrays]
    missing = [tuple(frozenset().union(*axes) - own) for own in axes]
    return [
        lax.pcast(a, m, to="varying") if m else a
        for a, m in zip(arrays, missing, strict=True)
    ]


def _varying(a: Array) -> frozenset[str]:
    """Return the mesh axes along which an array varies (in `shard_map`)."""
    manual = getattr(jax.typeof(a), "manual_axis_type", None)
    return frozenset() if manual is None else frozenset(manual.varying)


@_conv_p.def_impl
@jax.jit
def _conv_impl(x: Array, kernel: Array) -> Array:
    return _conv_p.bind(x, kernel)


@_kernel_gradient_p.def_impl
@partial(jax.jit, static_argnames="size")
def _kernel_gradient_impl(x: Array, g: Array, *, size: _Size) -> Array:
    return _kernel_gradient_p.bind(x, g, size=size)


@_conv_p.def_abstract_eval
def _conv_shape(x: ShapedArray, kernel: ShapedArray) -> ShapedArray:
    chex.assert_equal(x.shape[0], kernel.shape[0])
    chex.assert_equal(x.shape[-1], kernel.shape[-2])
    return x.update(shape=(*x.shape[:-1], kernel.shape[-1]))


@_kernel_gradient_p.def_abstract_eval
def _kernel_gradient_shape(
    x: ShapedArray, g: ShapedArray, *, size: _Size
) -> ShapedArray:
    chex.assert_equal(x.shape[:-1], g.shape[:-1])
    return x.update(shape=(x.shape[0], *size, x.shape[-1], g.shape[-1]))


def _mirror(kernel: Array) -> Array:
    """Return the kernel for gradients: flipped in space, C and O exchanged."""
    return jnp.flip(kernel, (1, 2)).swapaxes(3, 4)


# T(x, k, g) = <conv(x, k), g> is linear in each argument. Every rule below is the
# derivative of T with respect to the argument missing on its right-hand side.
ad.defbilinear(
    _conv_p,
    lambda g, x, kernel: _conv(g, _mirror(kernel)),
    lambda g, x, kernel: _kernel_gradient(x, g, kernel.aval.shape[1:3]),
)
ad.defbilinear(
    _kernel_gradient_p,
    lambda kernel, x, g, size: _conv(g, _mirror(kernel)),
    lambda kernel, x, g, size: _conv(x, kernel),
)


_Operands = Sequence[Array]
_Axes = Sequence[int | None]


def _as_groups(operands: _Operands, axes: _Axes) -> tuple[list[Array], int]:
    """Fold the mapped axis of both operands into their groups; return its length."""
    length = next(
        a.shape[i] for a, i in zip(operands, axes, strict=True) if i is not None
    )
    folded = []
    for a, i in zip(operands, axes, strict=True):
        a = batching.bdim_at_front(a, i, length)
        folded.append(a.reshape(length * a.shape[1], *a.shape[2:]))
    return folded, length


def _split_groups(y: Array, length: int) -> Array:
    return y.reshape(length, y.shape[0] // length, *y.shape[1:])


def _conv_batched(operands: _Operands, axes: _Axes) -> tuple[Array, int]:
    x, kernel = operands
    x_axis, kernel_axis = axes
    if x_axis is not None and kernel_axis is None:
        # A shared kernel: more images, not more groups.
        x = jnp.moveaxis(x, x_axis, 1)
        y = _conv(x.reshape(x.shape[0], -1, *x.shape[3:]), kernel)
        return y.reshape(*x.shape[:-1], y.shape[-1]), 1
    (x, kernel), length = _as_groups(operands, axes)
    return _split_groups(_conv(x, kernel), length), 0


def _kernel_gradient_batched(
    operands: _Operands, axes: _Axes, *, size: _Size
) -> tuple[Array, int]:
    (x, g), length = _as_groups(operands, axes)
    return _split_groups(_kernel_gradient(x, g, size), length), 0


for _primitive, _rule in (
    (_conv_p, _conv_batched),
    (_kernel_gradient_p, _kernel_gradient_batched),
):
    batching.primitive_batchers[_primitive] = _rule


# Implementations for CPU and for accelerators.


def _lax_conv(x: Array, kernel: Array) -> Array:
    """Convolve images `[N, H, W, C]` with one kernel."""
    # NHWC / HWIO is the only layout that XLA's CPU backend runs fast inside the body of
    # a loop, as training steps are.
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _centered(size: _Size) -> tuple[tuple[int, int], ...]:
    """Return the "SAME" padding of an odd kernel."""
    return tuple((s // 2, s // 2) for s in size)


def _chunk_kernel_gradient(x: Array, g: Array, size: _Size) -> Array:
    """Compute the kernel gradient of images `[n, H, W, C]` as one matrix product.

    The product is either patches of x times g, or x shifted along its rows times g
    shifted along its columns. In the second form every pair of shifts is one tap,
    `[n H W, kw C]^T [n H W, kh O] = [kw C, kh O]`. It copies fewer numbers unless C is
    small, and its shape is faster (96 x 96 runs at 1.5 times the rate of 288 x 32).
    """
    (height, width), (c, o) = size, (x.shape[-1], g.shape[-1])
    if height * width * c + o <= width * c + height * o:
        rows = _patches(x, size, 1, _centered(size)).reshape(-1, height * width * c)
        return (rows.T @ g.reshape(-1, o)).reshape(height, width, c, o)
    x = _patches(x, (1, width), 1, _centered((1, width)))
    g = _patches(g, (height, 1), 1, _centered((height, 1)))
    taps = x.reshape(-1, width * c).T @ g.reshape(-1, height * o)
    taps = taps.reshape(width, c, height, o).transpose(2, 0, 1, 3)
    # A shift down in x corresponds to a shift up in g.
    return jnp.flip(taps, 0)


def _blocked_kernel_gradient(x: Array, g: Array, size: _Size) -> Array:
    """Sum `_chunk_kernel_gradient` over chunks of images that fit into the cache."""
    images, height, width, c = x.shape
    o = g.shape[-1]
    columns = min(prod(size) * c + o, size[1] * c + size[0] * o)
    chunk = _CACHE_BYTES // (height * width * columns * x.dtype.itemsize)
    chunk = min(max(chunk, 1), images)
    steps, rest = divmod(images, chunk)

    def part(start: int | Array, length: int) -> Array:
        x_part, g_part = (lax.dynamic_slice_in_dim(a, start, length) for a in (x, g))
        return _chunk_kernel_gradient(x_part, g_part, size)

    total = part(steps * chunk, rest) if rest else None
    if steps == 1:
        return part(0, chunk) if total is None else total + part(0, chunk)
    if total is None:
        total = jnp.zeros((*size, c, o), x.dtype)
    return lax.fori_loop(0, steps, lambda i, t: t + part(i * chunk, chunk), total)


def _grouped_conv(x: Array, kernel: Array) -> Array:
    """Compute all groups as one batched product of patches and kernels."""
    size = kernel.shape[1], kernel.shape[2]
    patches = jax.vmap(lambda x: _patches(x, size, 1, _centered(size)))(x)
    flat = kernel.reshape(kernel.shape[0], -1, kernel.shape[-1])
    return jnp.einsum("gnhwk,gko->gnhwo", patches, flat)


def _patches_fit(x: Array, size: _Size) -> bool:
    """Whether the patches of one group fit into the cache."""
    return prod(x.shape[1:]) * prod(size) * x.dtype.itemsize <= _CACHE_BYTES


def _padded_conv(x: Array, kernel: Array) -> Array:
    """Convolve with few channels (colors) padded to a multiple of 4.

    A CPU is three times faster on these.
    """
    missing = -x.shape[-1] % 4 if x.shape[-1] < 8 else 0
    if missing:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing)))
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return _lax_conv(x, kernel)


def _conv_cpu(x: Array, kernel: Array) -> Array:
    if x.shape[0] == 1:
        return _padded_conv(x[0], kernel[0])[None]
    # Small groups are one batched product, because the overhead of a loop would
    # dominate. For large groups, copying the patches costs more than the product: 33 ms
    # for 4 tasks of 80 images 10x10x32, compared with 9 ms for a loop of convolutions.
    if _patches_fit(x, (kernel.shape[1], kernel.shape[2])):
        return _grouped_conv(x, kernel)
    return lax.map(lambda pair: _padded_conv(*pair), (x, kernel))


def _kernel_gradient_cpu(x: Array, g: Array, *, size: _Size) -> Array:
    if x.shape[0] > 1 and _patches_fit(x, size):
        return jax.vmap(partial(_chunk_kernel_gradient, size=size))(x, g)
    blocked = partial(_blocked_kernel_gradient, size=size)
    if x.shape[0] == 1:
        return blocked(x[0], g[0])[None]
    return lax.map(lambda pair: blocked(*pair), (x, g))


def _conv_accelerator(x: Array, kernel: Array) -> Array:
    if x.shape[0] == 1:
        return _lax_conv(x[0], kernel[0])[None]
    return _grouped_conv(x, kernel)


def _kernel_gradient_accelerator(x: Array, g: Array, *, size: _Size) -> Array:
    if x.shape[0] == 1:
        kernel = jnp.zeros((*size, x.shape[-1], g.shape[-1]), x.dtype)
        return jax.vjp(partial(_lax_conv, x[0]), kernel)[1](g[0])[0][None]
    return jax.vmap(partial(_chunk_kernel_gradient, size=size))(x, g)


for _primitive, _cpu, _other in (
    (_conv_p, _conv_cpu, _conv_accelerator),
    (_kernel_gradient_p, _kernel_gradient_cpu, _kernel_gradient_accelerator),
):
    mlir.register_lowering(_primitive, mlir.lower_fun(_other, multiple_results=False))
    mlir.register_lowering(
        _primitive, mlir.lower_fun(_cpu, multiple_results=False), platform="cpu"
    )
