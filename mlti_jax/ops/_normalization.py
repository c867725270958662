"""Pooling, batch normalization and unit length."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax


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
