r"""The law of lambda: quadrature for Beta(alpha, beta), and the moments that matter."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from mlti_jax.interpolation import check_positive
from mlti_jax.types import Array


class Law(NamedTuple):
    """A law of lambda as points and their probabilities.

    Attributes:
      lam: `[Q]`, in [0, 1].
      probability: `[Q]`, of sum 1.
    """

    lam: Array
    probability: Array


class Moments(NamedTuple):
    r"""What a second-order expansion sees of a law.

    Attributes:
      mean: :math:`\bar\lambda = \mathrm{E}\lambda`.
      variance: :math:`\mathrm{Var}(\lambda)`.
      partner: :math:`\mathrm{E}[(1-\lambda)^2]`.
    """

    mean: Array
    variance: Array
    partner: Array


class PrintedConstants(NamedTuple):
    r"""What the paper's lemmas use in the place of `Moments`.

    Attributes:
      mean: :math:`\bar\lambda`.
      c: the constant of the regulariser.
    """

    mean: Array
    c: Array


def beta_law(
    alpha: float | Array, beta: float | Array | None = None, num_nodes: int = 32
) -> Law:
    r"""Beta(alpha, beta) by Gauss-Jacobi quadrature.

    Exact for polynomials of degree below `2 * num_nodes`, and for analytic functions
    with an error that falls geometrically. The points are the eigenvalues of the
    matrix of the Jacobi polynomials' recurrence (Golub and Welsch 1969), so that
    derivatives by alpha and beta exist.

    Args:
      alpha: first parameter, positive.
      beta: second parameter, positive; equal to `alpha` if not given.
      num_nodes: number Q of points.
    """
    beta = alpha if beta is None else beta
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_positive(name, value)
    total = jnp.asarray(alpha + beta, float)
    n = jnp.arange(1, num_nodes)
    s = 2 * n + total - 2
    first = (alpha - beta) / total
    diagonal = (alpha - beta) * (total - 2) / (s * (s + 2))
    # Of equal factors at n = 1, which vanish together where alpha + beta = 1.
    ratio = jnp.where(n == 1, 1.0, (n + total - 2) / jnp.where(n == 1, 1.0, s - 1))
    square = 4 * n * (n + alpha - 1) * (n + beta - 1) * ratio / (s**2 * (s + 1))
    beside = jnp.sqrt(square)
    jacobi = jnp.diag(jnp.append(first, diagonal))
    jacobi += jnp.diag(beside, 1) + jnp.diag(beside, -1)
    points, vectors = jnp.linalg.eigh(jacobi)
    return Law((1 + points) / 2, vectors[0] ** 2)


def exchanged(law: Law) -> Law:
    r"""The law D_lambda of Lemmas 1 and 4, from the law of lambda.

    .. math:: \mathrm{E}_{D_\lambda} f(\lambda)
      = \mathrm{E}[\lambda f(\lambda) + (1-\lambda) f(1-\lambda)]

    For Beta(alpha, beta) it is Beta(alpha+1, beta) with probability
    alpha / (alpha+beta), else Beta(beta+1, alpha). It is the share of the partner that
    gives its label, if of a pair that is mixed by lambda the first gives its label with
    probability lambda, else the second.
    """
    lam, probability = law
    return Law(
        jnp.concatenate([lam, 1 - lam]),
        jnp.concatenate([probability * lam, probability * (1 - lam)]),
    )


def moments(law: Law) -> Moments:
    """The moments of a law; exact for `beta_law` with two points or more."""
    lam, probability = law
    mean = probability @ lam
    return Moments(mean, probability @ (lam - mean) ** 2, probability @ (1 - lam) ** 2)


def printed_constants(
    alpha: float | Array, beta: float | Array | None = None
) -> PrintedConstants:
    r"""The constants of the paper's lemmas and their proofs, in closed form.

    .. math:: \bar\lambda = \mathrm{E}_{D_\lambda}[\lambda], \qquad
      c = \mathrm{E}_{D_\lambda}[(1-\lambda)^2 / \lambda^2]
        = \frac{1}{\alpha+\beta}\Big(\frac{\beta(\beta+1)}{\alpha-1}
          + \frac{\alpha(\alpha+1)}{\beta-1}\Big)

    c is infinite unless alpha and beta are above 1. The proofs of Lemmas 1 and 2 write
    an expectation without a law: under Beta(alpha, beta) it would be infinite unless
    alpha is above 2.

    Args:
      alpha: first parameter, positive.
      beta: second parameter, positive; equal to `alpha` if not given.
    """
    beta = alpha if beta is None else beta
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_positive(name, value)
    alpha, beta = jnp.asarray(alpha, float), jnp.asarray(beta, float)
    total = alpha + beta
    mean = (alpha * (alpha + 1) + beta * (beta + 1)) / (total * (total + 1))
    finite = (alpha > 1) & (beta > 1)
    a, b = jnp.where(finite, alpha, 2.0), jnp.where(finite, beta, 2.0)
    c = (b * (b + 1) / (a - 1) + a * (a + 1) / (b - 1)) / (a + b)
    return PrintedConstants(mean, jnp.where(finite, c, jnp.inf))
