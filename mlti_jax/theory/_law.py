r"""The distribution of $\lambda$: quadrature for the Beta distribution, and moments."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from mlti_jax._internal.checks import check_positive
from mlti_jax.types import Array


class Law(NamedTuple):
    r"""A discrete distribution of $\lambda$.

    Attributes:
      lam: values `[Q]` in [0, 1].
      probability: `[Q]`, with sum 1.
    """

    lam: Array
    probability: Array


class Moments(NamedTuple):
    r"""The moments of $\lambda$ in a second-order expansion.

    Attributes:
      mean: $\bar\lambda = \mathrm{E}\lambda$.
      variance: $\mathrm{Var}(\lambda)$.
      partner: $\mathrm{E}[(1-\lambda)^2]$.
    """

    mean: Array
    variance: Array
    partner: Array


def beta_law(
    alpha: float | Array, beta: float | Array | None = None, num_nodes: int = 32
) -> Law:
    r"""Discretize Beta($\alpha$, $\beta$) with Gauss-Jacobi quadrature.

    Expectations are exact for polynomials of degree below `2 * num_nodes`; for analytic
    functions the error decreases geometrically. The nodes are eigenvalues of the Jacobi
    matrix (Golub and Welsch 1969), so the result can be differentiated with respect to
    `alpha` and `beta`.

    Args:
      alpha: first parameter, positive.
      beta: second parameter, positive; equal to `alpha` if None.
      num_nodes: number Q of nodes.

    Returns:
      The nodes and their probabilities, `[Q]` each.

    Raises:
      InputError: if a parameter is not positive and finite.
    """
    beta = alpha if beta is None else beta
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_positive(name, value)
    total = jnp.asarray(alpha + beta, float)
    n = jnp.arange(1, num_nodes)
    s = 2 * n + total - 2
    first = (alpha - beta) / total
    diagonal = (alpha - beta) * (total - 2) / (s * (s + 2))
    # At n = 1 both factors are equal, and vanish together if alpha + beta = 1.
    ratio = jnp.where(n == 1, 1.0, (n + total - 2) / jnp.where(n == 1, 1.0, s - 1))
    square = 4 * n * (n + alpha - 1) * (n + beta - 1) * ratio / (s**2 * (s + 1))
    off_diagonal = jnp.sqrt(square)
    jacobi = jnp.diag(jnp.append(first, diagonal))
    jacobi += jnp.diag(off_diagonal, 1) + jnp.diag(off_diagonal, -1)
    points, vectors = jnp.linalg.eigh(jacobi)
    return Law((1 + points) / 2, vectors[0] ** 2)


def moments(law: Law) -> Moments:
    """Compute the moments of a law; exact for `beta_law` with two or more nodes."""
    lam, probability = law
    mean = probability @ lam
    return Moments(mean, probability @ (lam - mean) ** 2, probability @ (1 - lam) ** 2)
