"""Batch normalization and unit length."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


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
