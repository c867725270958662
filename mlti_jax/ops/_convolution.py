r"""Convolution with fast derivatives of every order.

`conv2d` is bilinear, and so are its derivatives by the images, a convolution with the
mirrored kernel, and by the kernel. These are closed under differentiation: two
primitives provide derivatives of every order in forward and reverse mode. Each has its
own batching rule for `vmap` over tasks:

* a kernel shared by all tasks: the tasks are folded into the image axis;
* a kernel per task (an adapted layer): the tasks become *groups*, computed as batched
  products of patch matrices, or in a loop if these would exceed the cache of a CPU.
  JAX's own rule generates a grouped convolution, which is up to 27 times slower on CPU.

The primitives cover odd kernels with stride 1 and "SAME" padding. Other convolutions
are matrix products of patches, which JAX differentiates and batches efficiently.

On a CPU with native kernels, convolutions with enough channels use Winograd's
algorithm, or one product per tap where images are too small for it (`_native_kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from mlti_jax._internal import native
from mlti_jax.ops._groups import (
    Axes,
    Operands,
    as_groups,
    same_manual_axes,
    split_groups,
)

# The kernel gradient is summed over chunks of images whose operands stay in cache.
_CACHE_BYTES = 2**20

# Native kernels process vectors of channels and of filters. With fewer than these, too
# much of a vector is empty.
_NATIVE_CHANNELS = 16
# Images with fewer rows or columns have too many incomplete tiles for Winograd.
_WINOGRAD_SIZE = 4

_Size = tuple[int, ...]  # of a kernel or an image, in rows and columns


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
    if strides == 1 and padding == "SAME" and odd:
        return _conv(x[None], kernel[None])[0]
    pads = lax.padtype_to_pads(
        x.shape[1:3], (height, width), (strides, strides), padding
    )
    patches = _patches(x, (height, width), strides, pads)
    return patches @ kernel.reshape(height * width * channels, filters)


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


def _conv(x: Array, kernel: Array, mirrored: bool = False) -> Array:
    """Convolve; if `mirrored`, with the kernel for gradients (`_mirror`)."""
    return _conv_p.bind(*same_manual_axes(x, kernel), mirrored=mirrored)


def _kernel_gradient(x: Array, g: Array, size: _Size) -> Array:
    """`k_ijco = sum_nhw x_{n, h + i, w + j, c} g_nhwo` with the padding of `_conv`."""
    return _kernel_gradient_p.bind(*same_manual_axes(x, g), size=size)


@_conv_p.def_impl
@partial(jax.jit, static_argnames="mirrored")
def _conv_impl(x: Array, kernel: Array, *, mirrored: bool) -> Array:
    return _conv_p.bind(x, kernel, mirrored=mirrored)


@_kernel_gradient_p.def_impl
@partial(jax.jit, static_argnames="size")
def _kernel_gradient_impl(x: Array, g: Array, *, size: _Size) -> Array:
    return _kernel_gradient_p.bind(x, g, size=size)


@_conv_p.def_abstract_eval
def _conv_shape(x: ShapedArray, kernel: ShapedArray, *, mirrored: bool) -> ShapedArray:
    channels, filters = reversed(kernel.shape[3:]) if mirrored else kernel.shape[3:]
    chex.assert_equal(x.shape[0], kernel.shape[0])
    chex.assert_equal(x.shape[-1], channels)
    return x.update(shape=(*x.shape[:-1], filters))


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
# derivative of T with respect to the argument missing on its right-hand side. A
# convolution with the mirrored kernel, of g, is the derivative with respect to x.
def _conv_by_images(g: Array, x: Any, kernel: Array, *, mirrored: bool) -> Array:
    del x
    return _conv(g, kernel, not mirrored)


def _conv_by_kernel(g: Array, x: Array, kernel: Any, *, mirrored: bool) -> Array:
    x, g = (g, x) if mirrored else (x, g)
    return _kernel_gradient(x, g, kernel.aval.shape[1:3])


ad.defbilinear(_conv_p, _conv_by_images, _conv_by_kernel)
ad.defbilinear(
    _kernel_gradient_p,
    lambda kernel, x, g, size: _conv(g, kernel, mirrored=True),
    lambda kernel, x, g, size: _conv(x, kernel),
)


def _conv_batched(
    operands: Operands, axes: Axes, *, mirrored: bool
) -> tuple[Array, int]:
    x, kernel = operands
    x_axis, kernel_axis = axes
    if x_axis is not None and kernel_axis is None:
        # A shared kernel: more images, not more groups.
        x = jnp.moveaxis(x, x_axis, 1)
        y = _conv(x.reshape(x.shape[0], -1, *x.shape[3:]), kernel, mirrored)
        return y.reshape(*x.shape[:-1], y.shape[-1]), 1
    (x, kernel), length = as_groups(operands, axes)
    return split_groups(_conv(x, kernel, mirrored), length), 0


def _kernel_gradient_batched(
    operands: Operands, axes: Axes, *, size: _Size
) -> tuple[Array, int]:
    (x, g), length = as_groups(operands, axes)
    return split_groups(_kernel_gradient(x, g, size), length), 0


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


def _native_kernels(
    image: _Size, size: _Size, channels: int, filters: int
) -> str | None:
    """Return the name of the native kernels for a convolution, or None."""
    if min(channels, filters) < _NATIVE_CHANNELS:
        return None
    if size == (3, 3) and min(image) >= _WINOGRAD_SIZE:
        return "Winograd"
    return "Tap"


def _conv_cpu(x: Array, kernel: Array, *, mirrored: bool) -> Array:
    size = kernel.shape[1], kernel.shape[2]
    if size == (1, 1):
        products = "gnhwo,gco->gnhwc" if mirrored else "gnhwc,gco->gnhwo"
        return jnp.einsum(products, x, kernel[:, 0, 0])
    kernels = _native_kernels(x.shape[2:4], size, *kernel.shape[3:])
    if kernels and native.available(x, kernel):
        filters = kernel.shape[-2 if mirrored else -1]
        out = jax.ShapeDtypeStruct((*x.shape[:-1], filters), x.dtype)
        name = kernels + ("Mirrored" if mirrored else "Convolution")
        return native.call(name, out, x, kernel)
    if mirrored:
        kernel = _mirror(kernel)
    if x.shape[0] == 1:
        return _padded_conv(x[0], kernel[0])[None]
    # Small groups are one batched product, because the overhead of a loop would
    # dominate. For large groups, copying the patches costs more than the product: 33 ms
    # for 4 tasks of 80 images 10x10x32, compared with 9 ms for a loop of convolutions.
    if _patches_fit(x, size):
        return _grouped_conv(x, kernel)
    return lax.map(lambda pair: _padded_conv(*pair), (x, kernel))


def _kernel_gradient_cpu(x: Array, g: Array, *, size: _Size) -> Array:
    c, o = x.shape[-1], g.shape[-1]
    if x.size == 0:
        return jnp.zeros((x.shape[0], *size, c, o), x.dtype)
    kernels = _native_kernels(x.shape[2:4], size, c, o)
    if size == (3, 3) and kernels is None:  # few channels
        kernels = "Kernel"
    if kernels and native.available(x, g):
        out = jax.ShapeDtypeStruct((x.shape[0], *size, c, o), x.dtype)
        return native.call(kernels + "Gradient", out, x, g)
    if x.shape[0] > 1 and _patches_fit(x, size):
        return jax.vmap(partial(_chunk_kernel_gradient, size=size))(x, g)
    single = partial(_blocked_kernel_gradient, size=size)
    if x.shape[0] == 1:
        return single(x[0], g[0])[None]
    return lax.map(lambda pair: single(*pair), (x, g))


def _conv_accelerator(x: Array, kernel: Array, *, mirrored: bool) -> Array:
    if mirrored:
        kernel = _mirror(kernel)
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
