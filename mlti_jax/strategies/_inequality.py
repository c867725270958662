r"""Measures of inequality from economics (Jamal and Qi 2019, Sec. 3.2).

Each is a function of positive numbers $\ell_1, \dots, \ell_M$ with mean $\bar\ell$. It
is 0 if all are equal, and invariant to a common factor.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from mlti_jax.types import Array

GENERALISED_ENTROPY_ALPHA = 2.0
ATKINSON_EPSILON = 0.5


def _shares(values: Array) -> Array:
    """Divide values by their mean; clip at 1e-12, so that logarithms are finite."""
    return jnp.maximum(values / values.mean(), 1e-12)


def theil(values: Array) -> Array:
    r"""$\frac1M \sum_i \frac{\ell_i}{\bar\ell} \ln \frac{\ell_i}{\bar\ell}$."""
    share = _shares(values)
    return jnp.mean(share * jnp.log(share))


def generalised_entropy(
    values: Array, alpha: float = GENERALISED_ENTROPY_ALPHA
) -> Array:
    r"""$\frac{1}{M\alpha(\alpha-1)} \sum_i [(\ell_i/\bar\ell)^\alpha - 1]$.

    The limits are the Theil index for alpha = 1 and
    $-\frac1M \sum_i \ln(\ell_i/\bar\ell)$ for alpha = 0.
    """
    share = _shares(values)
    if alpha == 0:
        return -jnp.mean(jnp.log(share))
    if alpha == 1:
        return theil(values)
    return jnp.mean(share**alpha - 1) / (alpha * (alpha - 1))


def atkinson(values: Array, epsilon: float = ATKINSON_EPSILON) -> Array:
    r"""$1 - (\frac1M \sum_i (\ell_i/\bar\ell)^{1-\epsilon})^{1/(1-\epsilon)}$.

    For epsilon = 1 it is one minus the ratio of geometric and arithmetic mean.
    """
    share = _shares(values)
    if epsilon == 1:
        return 1 - jnp.exp(jnp.mean(jnp.log(share)))
    power = 1 - epsilon
    return 1 - jnp.mean(share**power) ** (1 / power)


def gini(values: Array) -> Array:
    r"""$\frac{1}{2 M^2 \bar\ell} \sum_i \sum_j |\ell_i - \ell_j|$."""
    differences = jnp.abs(values[:, None] - values[None, :])
    return differences.mean() / (2 * values.mean())


def variance_of_logarithms(values: Array) -> Array:
    r"""$\frac1M \sum_i (\ln \ell_i - \ln g)^2$ with the geometric mean g."""
    return jnp.var(jnp.log(_shares(values)))


MEASURES: dict[str, Callable[..., Array]] = {
    "theil": theil,
    "generalised_entropy": generalised_entropy,
    "gini": gini,
    "atkinson": atkinson,
    "variance_of_logarithms": variance_of_logarithms,
}
