"""Convolution, pooling and batch normalisation for few-shot embeddings."""

import jax.numpy as jnp
from jax import Array, lax


def _patches(x: Array, size: tuple[int, int], strides: int, padding) -> Array:
    """[N, H, W, C] -> [N, H', W', kh * kw * C]."""
    pads = lax.padtype_to_pads(x.shape[1:3], size, (strides, strides), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    kh, kw = size
    h = (x.shape[1] - kh) // strides + 1
    w = (x.shape[2] - kw) // strides + 1
    taps = [
        x[:, i : i + (h - 1) * strides + 1 : strides][
            :, :, j : j + (w - 1) * strides + 1 : strides
        ]
        for i in range(kh)
        for j in range(kw)
    ]
    return taps[0] if len(taps) == 1 else jnp.concatenate(taps, axis=-1)


def conv2d(x: Array, kernel: Array, *, strides: int = 1, padding="SAME") -> Array:
    """Convolution of x [N, H, W, C] with kernel [kh, kw, C, O]."""
    kh, kw, c, o = kernel.shape
    p = _patches(x, (kh, kw), strides, padding)
    return p @ kernel.reshape(kh * kw * c, o)


def max_pool(x: Array) -> Array:
    """2x2 max-pooling, stride 2: [N, H, W, C] -> [N, H // 2, W // 2, C]."""
    h, w = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:h:2], x[:, 1:h:2])
    return jnp.maximum(x[:, :, 0:w:2], x[:, :, 1:w:2])


def batch_moments(x: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """Mean and biased variance [C] of x [N, ..., C]; weight [N]."""
    axes = tuple(range(x.ndim - 1))
    if weight is None:
        mean = jnp.mean(x, axes)
        return mean, jnp.maximum(jnp.mean(x * x, axes) - mean * mean, 0.0)
    weight = weight.reshape(-1, *[1] * (x.ndim - 1))
    total = jnp.sum(jnp.broadcast_to(weight, (*x.shape[:-1], 1)))
    mean = jnp.sum(x * weight, axes) / total
    square = jnp.sum(x * x * weight, axes) / total
    return mean, jnp.maximum(square - mean * mean, 0.0)


def normalise(x, mean, var, scale, offset, epsilon: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + epsilon) * scale + offset, as x * a + b."""
    a = scale * lax.rsqrt(var + epsilon)
    return x * a + (offset - mean * a)
