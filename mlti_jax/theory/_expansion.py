r"""One sample and its partners: the expected loss, and its second-order expansion.

The formulas stand in the package's docstring. Everything here speaks of *one* sample
and its M possible partners. What is mixed is a point of P numbers, here score and
label, so that the expansion is one in all arguments of the loss.
"""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from mlti_jax.theory._law import Law, moments
from mlti_jax.types import Array

# (score, label) -> loss, of scalars or of arrays of one shape
PointLoss = Callable[[Array, Array], Array]
# `expected_loss` or `second_order`
Form = Callable[..., Array]


def logistic(score: Array, label: Array) -> Array:
    r"""The logistic loss :math:`\ell(u, y) = \log(1 + e^u) - y u`."""
    return jax.nn.softplus(score) - label * score


def psi(score: Array) -> Array:
    r"""Its second derivative, :math:`\psi(u) = e^u / (1 + e^u)^2`."""
    return jax.nn.sigmoid(score) * jax.nn.sigmoid(-score)


def with_own_label(own: Array, partners: Array, label: Array) -> tuple[Array, Array]:
    """Scores with a label that is not mixed, as points `[2]` and `[M, 2]`."""
    labels = jnp.broadcast_to(label, partners.shape)
    return jnp.stack([own, label]), jnp.stack([partners, labels], axis=1)


def mixture_mean(own: Array, partners: Array, weight: Array, law: Law) -> Array:
    r""":math:`m = \bar\lambda p + (1-\bar\lambda)\,\bar q`, `[P]`.

    Args:
      own: `[P]`, the sample's point p.
      partners: `[M, P]`, the partners' points q.
      weight: `[M]`, their probabilities.
      law: of lambda.
    """
    mean = moments(law).mean
    return mean * own + (1 - mean) * weight @ partners


def mixture_covariance(own: Array, partners: Array, weight: Array, law: Law) -> Array:
    r"""Covariance of :math:`\lambda p + (1-\lambda) q`, `[P, P]`.

    .. math:: C = \mathrm{Var}(\lambda)\,(p-\bar q)(p-\bar q)^\top
      + \mathrm{E}[(1-\lambda)^2]\,\mathrm{Cov}(q)

    Args:
      own, partners, weight, law: as in `mixture_mean`.
    """
    _, variance, partner = moments(law)
    centre = weight @ partners
    away = partners - centre
    covariance = (weight[:, None] * away).T @ away
    return variance * jnp.outer(own - centre, own - centre) + partner * covariance


def expected_loss(
    loss: PointLoss,
    own: Array,
    partners: Array,
    weight: Array,
    law: Law,
    spread: float | Array = 1.0,
) -> Array:
    r"""The loss of a mixture, expected over lambda and partners, by enumeration.

    .. math:: \mathrm{E}\;\ell\big(m + t\,(\lambda p + (1-\lambda) q - m)\big)

    Args:
      loss: of a score and a label.
      own: `[2]`, the sample's score and label.
      partners: `[M, 2]`, those of its partners; a label that is not mixed is its own
        partner.
      weight: `[M]`, the partners' probabilities.
      law: of lambda.
      spread: t, by which the mixtures' deviations from their mean are multiplied. 1 is
        the interpolation itself; for small t the remainder of a second-order expansion
        is O(t^3).
    """
    chex.assert_rank([own, partners, weight], [1, 2, 1])
    mean = mixture_mean(own, partners, weight, law)
    lam = law.lam[:, None, None]
    mixed = mean + spread * (lam * own + (1 - lam) * partners - mean)
    return law.probability @ loss(mixed[..., 0], mixed[..., 1]) @ weight


def second_order(
    loss: PointLoss,
    own: Array,
    partners: Array,
    weight: Array,
    law: Law,
    spread: float | Array = 1.0,
) -> Array:
    r"""`expected_loss` to second order around the mean mixture m.

    .. math:: \ell(m) + \tfrac{t^2}{2}\,\mathrm{tr}\big(\nabla^2\ell(m)\,C\big)

    The second derivatives of the logistic loss are :math:`\psi(m_u)` by the score, -1
    by score and label, and 0 by the label.

    Args:
      loss, own, partners, weight, law, spread: as in `expected_loss`.
    """
    chex.assert_rank([own, partners, weight], [1, 2, 1])
    mean = mixture_mean(own, partners, weight, law)
    covariance = mixture_covariance(own, partners, weight, law)
    hessian = jax.hessian(lambda point: loss(point[0], point[1]))(mean)
    return loss(mean[0], mean[1]) + spread**2 / 2 * jnp.sum(hessian * covariance)
