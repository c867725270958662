"""The few kernels that decide the speed: convolution, pooling, normalisation.

Few-shot learning runs one network on many small sets, with kernels that all tasks
share (frozen layers, metric-based learners) or that every task has its own (adapted
layers). Under `jax.vmap` plain convolutions serve neither well: kernels that differ by
task make a grouped convolution, up to a hundred times slower than the matrix products
it amounts to, and on CPU the gradient with respect to a shared kernel is slow as well.
So `conv2d` brings rules of its own, for batching and for differentiation.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from mlti_jax.types import Array

# On CPU, patches are made for as many images at a time as stay in the cache.
CACHE_BYTES = 1 << 20


# --------------------------------------------------------------------- convolution


def conv2d(
    x: Array, kernel: Array, *, strides: int = 1, padding: str = "SAME"
) -> Array:
    r"""Convolution :math:`y_{nhwo} = \sum_{ijc} x_{n,h+i,w+j,c} k_{ijco}`.

    Differentiable to any order in reverse mode (no forward mode where the stride is 1
    and the size of the kernel odd).

    Args:
      x: `[N, H, W, C]`.
      kernel: `[kh, kw, C, O]`.
      strides: of both axes.
      padding: `SAME` or `VALID`, as in `lax.conv_general_dilated`.

    Returns:
      `[N, H', W', O]`.
    """
    size = kernel.shape[:2]
    if strides == 1 and padding == "SAME" and all(k % 2 for k in size):
        return _conv(x, kernel)
    pads = lax.padtype_to_pads(x.shape[1:3], size, (strides, strides), padding)
    return _patches(x, size, strides, pads) @ kernel.reshape(-1, kernel.shape[-1])


# A convolution and its kernel's gradient are bilinear, and the derivatives of each are
# the other again. So two rules give all orders, and no derivative is left to JAX's own
# rules, whose convolutions fall out of XLA's fast layout inside loops.


@jax.custom_vjp
def _conv(x: Array, kernel: Array) -> Array:
    """Stride 1, zero padding, odd kernel."""
    return _conv_batched(x, kernel)


def _conv_forward(x: Array, kernel: Array):
    return _conv(x, kernel), (x, kernel)


def _conv_backward(saved, g: Array):
    x, kernel = saved
    return _conv(g, _turned(kernel)), _kernel_gradient(x, g, kernel.shape[:2])


_conv.defvjp(_conv_forward, _conv_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    """The gradient `[kh, kw, C, O]` of `sum(conv(x, kernel) * g)` in the kernel."""
    return _kernel_gradient_batched(size)(x, g)


def _kernel_gradient_forward(x: Array, g: Array, size: tuple[int, int]):
    return _kernel_gradient(x, g, size), (x, g)


def _kernel_gradient_backward(size: tuple[int, int], saved, k: Array):
    del size
    x, g = saved
    return _conv(g, _turned(k)), _conv(x, k)


_kernel_gradient.defvjp(_kernel_gradient_forward, _kernel_gradient_backward)


def _turned(kernel: Array) -> Array:
    """The kernel that takes gradients back: turned by 180 degrees, C and O swapped."""
    return kernel[::-1, ::-1].swapaxes(2, 3)


# ------------------------------------------------------------------------ batching


@custom_vmap
def _conv_batched(x: Array, kernel: Array) -> Array:
    return _lax_conv(x, kernel)


@_conv_batched.def_vmap
def _conv_rule(axis_size: int, in_batched, x: Array, kernel: Array):
    x_batched, kernel_batched = in_batched
    if not kernel_batched:  # one kernel: the tasks are more images
        y = _conv_batched(x.reshape(-1, *x.shape[2:]), kernel)
        return y.reshape(axis_size, -1, *y.shape[1:]), True
    if x_batched:  # a kernel for each task: a batched product of matrices
        return jax.vmap(_patches_conv)(x, kernel), True
    # The same images under several kernels: more output channels.
    *size, channels, outputs = kernel.shape[1:]
    wide = jnp.moveaxis(kernel, 0, -2).reshape(*size, channels, -1)
    y = _conv_batched(x, wide)
    return jnp.moveaxis(y.reshape(*y.shape[:-1], axis_size, outputs), -2, 0), True


def _kernel_gradient_batched(size: tuple[int, int]):
    @custom_vmap
    def gradient(x: Array, g: Array) -> Array:
        return lax.platform_dependent(
            x,
            g,
            cpu=partial(_cpu_kernel_gradient, size=size),
            default=partial(_patches_kernel_gradient, size=size),
        )

    @gradient.def_vmap
    def rule(axis_size: int, in_batched, x: Array, g: Array):
        x, g = (
            a if batched else jnp.broadcast_to(a, (axis_size, *a.shape))
            for a, batched in zip((x, g), in_batched, strict=True)
        )
        together = jax.vmap(partial(_patches_kernel_gradient, size=size))
        in_turn = together
        if _patch_bytes(x.shape[1:], size) > CACHE_BYTES:

            def in_turn(x: Array, g: Array) -> Array:
                return lax.map(lambda xg: _cpu_kernel_gradient(*xg, size), (x, g))

        return lax.platform_dependent(x, g, cpu=in_turn, default=together), True

    return gradient


# --------------------------------------------------------------------- the kernels


def _lax_conv(x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _patches(x: Array, size, strides: int, pads) -> Array:
    """The window of every output position: `[N, H', W', kh * kw * C]`."""
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = ((x.shape[1 + a] - size[a]) // strides + 1 for a in (0, 1))
    windows = [
        x[:, i : i + strides * (height - 1) + 1 : strides][
            :, :, j : j + strides * (width - 1) + 1 : strides
        ]
        for i in range(size[0])
        for j in range(size[1])
    ]
    return jnp.concatenate(windows, axis=-1)


def _same_patches(x: Array, size: tuple[int, int]) -> Array:
    """`[N * H * W, kh * kw * C]`."""
    patches = _patches(x, size, 1, tuple((k // 2, k // 2) for k in size))
    return patches.reshape(-1, patches.shape[-1])


def _patches_conv(x: Array, kernel: Array) -> Array:
    y = _same_patches(x, kernel.shape[:2]) @ kernel.reshape(-1, kernel.shape[-1])
    return y.reshape(*x.shape[:3], -1)


def _patches_kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    gradient = _same_patches(x, size).T @ g.reshape(-1, g.shape[-1])
    return gradient.reshape(*size, x.shape[-1], g.shape[-1])


def _patch_bytes(shape, size) -> int:
    n, h, w, c = shape
    return n * h * w * c * size[0] * size[1] * 4


def _row_kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    """The same with x shifted along rows and g along columns: `[kw C, kh O]`.

    Three plus three shifted copies for a 3x3 kernel rather than nine of x, and a
    product of better proportions.
    """
    (kh, kw), (_, height, width, channels) = size, x.shape
    outputs = g.shape[-1]
    x = jnp.pad(x, ((0, 0), (0, 0), (kw // 2, kw // 2), (0, 0)))
    g = jnp.pad(g, ((0, 0), (kh // 2, kh // 2), (0, 0), (0, 0)))
    x = jnp.concatenate([x[:, :, j : j + width] for j in range(kw)], axis=-1)
    g = jnp.concatenate([g[:, i : i + height] for i in reversed(range(kh))], axis=-1)
    gradient = x.reshape(-1, kw * channels).T @ g.reshape(-1, kh * outputs)
    return gradient.reshape(kw, channels, kh, outputs).transpose(2, 0, 1, 3)


def _cpu_kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    """Chunk by chunk, so that the shifted copies stay in the cache."""
    few_channels = x.shape[-1] < 8
    gradient = _patches_kernel_gradient if few_channels else _row_kernel_gradient
    number = min(x.shape[0], -(-_patch_bytes(x.shape, size) // CACHE_BYTES))
    if number == 1:
        return gradient(x, g, size)
    each = -(-x.shape[0] // number)
    number = -(-x.shape[0] // each)

    def divide(a: Array) -> Array:
        padded = jnp.pad(a, ((0, number * each - len(a)), *((0, 0),) * (a.ndim - 1)))
        return padded.reshape(number, each, *a.shape[1:])

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + gradient(*part, size), None

    zeros = jnp.zeros((*size, x.shape[-1], g.shape[-1]), x.dtype)
    return lax.scan(add, zeros, (divide(x), divide(g)))[0]


# ----------------------------------------------------- pooling and normalisation


def max_pool(x: Array) -> Array:
    """2x2 max-pooling, stride 2: `[N, H, W, C]` to `[N, H // 2, W // 2, C]`.

    Of an odd side the last row is dropped. Pairwise maxima over strided slices, since
    the gradient of `reduce_window` is slow; ties share the gradient.
    """
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])


def batch_moments(x: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """Mean and biased variance over all axes but the last.

    In one pass, as the mean of squares minus the square of the mean, of the distance
    to one of the values: without that, a mean much larger than the deviation would
    take all digits. What rounding takes below zero is cut off there.

    Args:
      x: `[N, ..., C]`.
      weight: `[N]`, 0 for samples that don't count; None if all do.

    Returns:
      `(mean [C], variance [C])`.
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
    x: Array, mean: Array, var: Array, scale: Array, offset: Array, epsilon: float
) -> Array:
    r""":math:`(x - \mu) / \sqrt{\sigma^2 + \epsilon} \cdot scale + offset`.

    As one multiply-add over x `[N, ..., C]`; all other arguments are `[C]`.
    """
    factor = scale * lax.rsqrt(var + epsilon)
    return x * factor + (offset - mean * factor)
