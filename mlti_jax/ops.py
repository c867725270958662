"""The few operations that decide the speed of a convolutional embedding.

`conv2d` is bilinear, and so is its kernel gradient. The pair is closed under
differentiation, so two primitives give derivatives of every order in both modes, and
each of them knows what to do when `vmap` puts tasks in front:

* a kernel that all tasks share: the tasks are folded into the image axis;
* a kernel per task (an adapted layer): the tasks become *groups*, multiplied as
  batched patch matrices, or looped over where these would leave a CPU's cache. JAX's
  own rule makes a grouped convolution, which is up to 27 times slower on CPU.

The pair is written for odd kernels, stride 1, "SAME"; others are matrix products of
patches, which JAX differentiates and batches well by itself.
"""

from functools import partial
from math import prod

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# The kernel gradient is summed over chunks of images whose operands stay in cache.
CACHE_BYTES = 2**20


def conv2d(
    x: Array, kernel: Array, *, strides: int = 1, padding: str = "SAME"
) -> Array:
    r"""Two-dimensional convolution (a cross-correlation, as everywhere in learning).

    .. math:: y_{nhwo} = \sum_{ijc} x_{n, sh + i, sw + j, c} \, k_{ijco}

    Differentiable any number of times, in forward and reverse mode, and meant to be
    called for one task under `jax.vmap`.

    Args:
      x: images `[N, H, W, C]`.
      kernel: `[kh, kw, C, O]`.
      strides: step `s` of the window in both directions.
      padding: "SAME" or "VALID", as `lax.conv_general_dilated` understands them.

    Returns:
      `[N, H', W', O]`.
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
    """Maximum over 2x2 windows with stride 2; an odd last row or column is dropped.

    Pairwise maxima of strided slices. The derivative is a comparison with the maximum,
    where that of `lax.reduce_window` is a much slower select-and-scatter; the equal
    entries of a window share it equally.

    Args:
      x: `[N, H, W, C]`.

    Returns:
      `[N, H // 2, W // 2, C]`.
    """
    chex.assert_rank(x, 4)
    x = _whole_windows(x)
    x = jnp.maximum(x[:, 0::2], x[:, 1::2])
    return jnp.maximum(x[:, :, 0::2], x[:, :, 1::2])


@max_pool.defjvp
def _(primals, tangents):
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
    return x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]


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
    x: Array,
    mean: Array,
    var: Array,
    scale: Array,
    offset: Array,
    epsilon: float = 1e-5,
) -> Array:
    r"""Batch normalisation with the given moments, as one multiply-add.

    .. math:: (x - \mu) \, s / \sqrt{\sigma^2 + \epsilon} + b = x a + (b - \mu a)

    Args:
      x: `[..., C]`.
      mean: `[C]`, and likewise `var`, `scale` and `offset`.
      epsilon: keeps a constant channel finite.

    Returns:
      The normalised `x`, of its shape.
    """
    factor = scale * lax.rsqrt(var + epsilon)
    return x * factor + (offset - mean * factor)


def unit(a: Array) -> Array:
    """Vectors `[..., D]` scaled to length one; zeros stay zeros."""
    # The square root of 0 has no derivative: a constant is added below it.
    return a / jnp.sqrt(jnp.sum(a**2, axis=-1, keepdims=True) + 1e-12)


def _patches(x: Array, size: tuple[int, int], strides: int, pads) -> Array:
    """Every window as a row: `[N, H, W, C] -> [N, H', W', kh * kw * C]`."""
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
# gradient g [G, N, H, W, O], each of the G groups with a kernel of its own.

_conv_p = Primitive("conv2d_same")
_kernel_gradient_p = Primitive("conv2d_same_kernel_gradient")


def _conv(x: Array, kernel: Array) -> Array:
    return _conv_p.bind(*_same_manual_axes(x, kernel))


def _kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    """`k_ijco = sum_nhw x_{n, h + i, w + j, c} g_nhwo` with the padding of `_conv`."""
    return _kernel_gradient_p.bind(*_same_manual_axes(x, g), size=size)


def _same_manual_axes(*arrays: Array) -> list[Array]:
    """Marks replicated arrays as varying if another varies (inside `shard_map`)."""
    axes = [_varying(a) for a in arrays]
    missing = [tuple(frozenset().union(*axes) - own) for own in axes]
    return [
        lax.pcast(a, m, to="varying") if m else a
        for a, m in zip(arrays, missing, strict=True)
    ]


def _varying(a: Array) -> frozenset[str]:
    manual = getattr(jax.typeof(a), "manual_axis_type", None)
    return frozenset() if manual is None else frozenset(manual.varying)


@_conv_p.def_impl
@jax.jit
def _(x, kernel):
    return _conv_p.bind(x, kernel)


@_kernel_gradient_p.def_impl
@partial(jax.jit, static_argnames="size")
def _(x, g, *, size):
    return _kernel_gradient_p.bind(x, g, size=size)


@_conv_p.def_abstract_eval
def _(x, kernel):
    chex.assert_equal(x.shape[0], kernel.shape[0])
    chex.assert_equal(x.shape[-1], kernel.shape[-2])
    return x.update(shape=(*x.shape[:-1], kernel.shape[-1]))


@_kernel_gradient_p.def_abstract_eval
def _(x, g, *, size):
    chex.assert_equal(x.shape[:-1], g.shape[:-1])
    return x.update(shape=(x.shape[0], *size, x.shape[-1], g.shape[-1]))


def _mirror(kernel: Array) -> Array:
    """The kernel that carries gradients back: flipped in space, C and O exchanged."""
    return jnp.flip(kernel, (1, 2)).swapaxes(3, 4)


# With T(x, k, g) = <conv(x, k), g>, linear in each: every rule below is the
# derivative of T by the argument that is missing on its right-hand side.
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


def _as_groups(operands, axes) -> tuple[list[Array], int]:
    """Moves the mapped axis of both operands into their groups; also its length."""
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


def _conv_batched(operands, axes):
    x, kernel = operands
    if axes[1] is None:
        # One kernel for all: more images, not more groups.
        x = jnp.moveaxis(x, axes[0], 1)
        y = _conv(x.reshape(x.shape[0], -1, *x.shape[3:]), kernel)
        return y.reshape(*x.shape[:-1], y.shape[-1]), 1
    (x, kernel), length = _as_groups(operands, axes)
    return _split_groups(_conv(x, kernel), length), 0


def _kernel_gradient_batched(operands, axes, *, size):
    (x, g), length = _as_groups(operands, axes)
    return _split_groups(_kernel_gradient(x, g, size), length), 0


batching.primitive_batchers[_conv_p] = _conv_batched
batching.primitive_batchers[_kernel_gradient_p] = _kernel_gradient_batched


# What they compute, on CPU and elsewhere.


def _lax_conv(x: Array, kernel: Array) -> Array:
    # NHWC / HWIO is the one layout that XLA's CPU backend runs fast inside the body of
    # a loop, which is where training steps are.
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _centred(size: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((s // 2, s // 2) for s in size)


def _chunk_kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    """Kernel gradient of images `[n, H, W, C]` as one matrix product.

    Either patches of x times g, or, with fewer numbers to copy unless C is small, x
    shifted along its rows times g shifted along its columns: every pair of shifts is
    one tap, `[n H W, kw C]^T [n H W, kh O] = [kw C, kh O]`. The second is also the
    better shaped product (96 x 96 instead of 288 x 32 runs at 1.5 times the rate).
    """
    (height, width), (c, o) = size, (x.shape[-1], g.shape[-1])
    if height * width * c + o <= width * c + height * o:
        rows = _patches(x, size, 1, _centred(size)).reshape(-1, height * width * c)
        return (rows.T @ g.reshape(-1, o)).reshape(height, width, c, o)
    x = _patches(x, (1, width), 1, _centred((1, width)))
    g = _patches(g, (height, 1), 1, _centred((height, 1)))
    taps = x.reshape(-1, width * c).T @ g.reshape(-1, height * o)
    taps = taps.reshape(width, c, height, o).transpose(2, 0, 1, 3)
    # A tap that looks down in x looks up in g.
    return jnp.flip(taps, 0)


def _blocked_kernel_gradient(x: Array, g: Array, size: tuple[int, int]) -> Array:
    """The same, summed over chunks of images that fit into the cache."""
    images, height, width, c = x.shape
    o = g.shape[-1]
    columns = min(prod(size) * c + o, size[1] * c + size[0] * o)
    chunk = CACHE_BYTES // (height * width * columns * x.dtype.itemsize)
    chunk = min(max(chunk, 1), images)
    steps, rest = divmod(images, chunk)

    def part(start, length):
        slices = (lax.dynamic_slice_in_dim(a, start, length) for a in (x, g))
        return _chunk_kernel_gradient(*slices, size)

    total = part(steps * chunk, rest) if rest else None
    if steps == 1:
        return part(0, chunk) if total is None else total + part(0, chunk)
    if total is None:
        total = jnp.zeros((*size, c, o), x.dtype)
    return lax.fori_loop(0, steps, lambda i, t: t + part(i * chunk, chunk), total)


def _grouped_conv(x: Array, kernel: Array) -> Array:
    """All groups as one batched product of patches and kernels."""
    size = kernel.shape[1:3]
    patches = jax.vmap(lambda x: _patches(x, size, 1, _centred(size)))(x)
    flat = kernel.reshape(kernel.shape[0], -1, kernel.shape[-1])
    return jnp.einsum("gnhwk,gko->gnhwo", patches, flat)


def _patches_fit(x: Array, size: tuple[int, int]) -> bool:
    return prod(x.shape[1:]) * prod(size) * x.dtype.itemsize <= CACHE_BYTES


def _padded_conv(x: Array, kernel: Array) -> Array:
    """With few channels (colours), a CPU is three times faster on a multiple of 4."""
    missing = -x.shape[-1] % 4 if x.shape[-1] < 8 else 0
    if missing:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing)))
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return _lax_conv(x, kernel)


def _conv_cpu(x, kernel):
    if x.shape[0] == 1:
        return _padded_conv(x[0], kernel[0])[None]
    # Tiny groups are one batched product, since a loop's overhead would show. For
    # large ones, making the patches costs more than the product: 33 ms for 4 tasks of
    # 80 images 10x10x32, where a loop of ungrouped convolutions takes 9.
    if _patches_fit(x, kernel.shape[1:3]):
        return _grouped_conv(x, kernel)
    return lax.map(lambda pair: _padded_conv(*pair), (x, kernel))


def _kernel_gradient_cpu(x, g, *, size):
    if x.shape[0] > 1 and _patches_fit(x, size):
        return jax.vmap(partial(_chunk_kernel_gradient, size=size))(x, g)
    blocked = partial(_blocked_kernel_gradient, size=size)
    if x.shape[0] == 1:
        return blocked(x[0], g[0])[None]
    return lax.map(lambda pair: blocked(*pair), (x, g))


def _conv_accelerator(x, kernel):
    if x.shape[0] == 1:
        return _lax_conv(x[0], kernel[0])[None]
    return _grouped_conv(x, kernel)


def _kernel_gradient_accelerator(x, g, *, size):
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
