r"""Expected loss of one sample and its partners, and its second-order expansion.

See the package docstring for the formulas. All functions handle *one* sample and its M
possible partners. A point holds P = 2 numbers, score and label, so the expansion covers
both arguments of the loss.
"""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from mlti_jax.theory._law import Law, moments
from mlti_jax.types import Array

# (score, label) -> loss, for scalars or arrays of one shape
PointLoss = Callable[[Array, Array], Array]
# `expected_loss` or `second_order`
Form = Callable[..., Array]


def logistic(score: Array, label: Array) -> Array:
    r"""Logistic loss $\ell(u, y) = \log(1 + e^u) - y u$."""
    return jax.nn.softplus(score) - label * score


def with_own_label(own: Array, partners: Array, label: Array) -> tuple[Array, Array]:
    """Points `[2]` and `[M, 2]` of scores with a label that is not mixed."""
    labels = jnp.broadcast_to(label, partners.shape)
    return jnp.stack([own, label]), jnp.stack([partners, labels], axis=1)


def mixture_mean(own: Array, partners: Array, weight: Array, law: Law) -> Array:
    r"""Mean mixture $m = \bar\lambda p + (1-\bar\lambda)\,\bar q$, `[P]`.

    Args:
      own: `[P]`, the sample's point $p$.
      partners: `[M, P]`, the partners' points $q$.
      weight: `[M]`, probabilities of the partners.
      law: distribution of $\lambda$.
    """
    mean = moments(law).mean
    return mean * own + (1 - mean) * weight @ partners


def mixture_covariance(own: Array, partners: Array, weight: Array, law: Law) -> Array:
    r"""Covariance of $\lambda p + (1-\lambda) q$, `[P, P]`.

    $$C = \mathrm{Var}(\lambda)\,(p-\bar q)(p-\bar q)^\top
      + \mathrm{E}[(1-\lambda)^2]\,\mathrm{Cov}(q)$$

    Args:
      own: as in `mixture_mean`.
      partners: as in `mixture_mean`.
      weight: as in `mixture_mean`.
      law: as in `mixture_mean`.
    """
    _, variance, partner = moments(law)
    center = weight @ partners
    deviation = partners - center
    covariance = (weight[:, None] * deviation).T @ deviation
    return variance * jnp.outer(own - center, own - center) + partner * covariance


def expected_loss(
    loss: PointLoss,
    own: Array,
    partners: Array,
    weight: Array,
    law: Law,
    spread: float | Array = 1.0,
) -> Array:
    r"""Expected loss over $\lambda$ and partners, computed by enumeration.

    $$\mathrm{E}\;\ell\big(m + t\,(\lambda p + (1-\lambda) q - m)\big)$$

    Args:
      loss: function of score and label.
      own: `[2]`, score and label of the sample.
      partners: `[M, 2]`, scores and labels of its partners; a label that is not mixed
        is repeated here.
      weight: `[M]`, probabilities of the partners.
      law: distribution of $\lambda$.
      spread: factor $t$ of the deviations from the mean mixture. 1 is interpolation as
        in training; for small $t$ the remainder of the second-order expansion is
        $O(t^3)$.
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
    r"""Second-order expansion of `expected_loss` around the mean mixture $m$.

    $$\ell(m) + \tfrac{t^2}{2}\,\mathrm{tr}\big(\nabla^2\ell(m)\,C\big)$$

    The second derivatives of the logistic loss are $\psi(m_u)$ with respect to the
    score, -1 with respect to score and label, and 0 with respect to the label.

    Args:
      loss: as in `expected_loss`.
      own: as in `expected_loss`.
      partners: as in `expected_loss`.
      weight: as in `expected_loss`.
      law: as in `expected_loss`.
      spread: as in `expected_loss`.
    """
    chex.assert_rank([own, partners, weight], [1, 2, 1])
    mean = mixture_mean(own, partners, weight, law)
    covariance = mixture_covariance(own, partners, weight, law)
    hessian = jax.hessian(lambda point: loss(point[0], point[1]))(mean)
    return loss(mean[0], mean[1]) + spread**2 / 2 * jnp.sum(hessian * covariance)
