r"""The lemmas as the paper prints them, to compare with the corrected ones.

`mlti_jax.theory` has the corrected lemmas and explains where the printed ones differ.
Arguments are as in the functions there, except for `constants`, which replace the
distribution of $\lambda$.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax import theory
from mlti_jax.theory._law import Law
from mlti_jax.types import Array


class Constants(NamedTuple):
    r"""The constants of the lemmas, instead of `theory.Moments`.

    Attributes:
      mean: $\bar\lambda$.
      c: factor of the regularizer.
    """

    mean: Array
    c: Array


def lemma_constants(
    alpha: float | Array, beta: float | Array | None = None
) -> Constants:
    r"""The constants of the lemmas and their proofs, in closed form.

    $$\bar\lambda = \mathrm{E}_{D_\lambda}[\lambda], \qquad
      c = \mathrm{E}_{D_\lambda}[(1-\lambda)^2 / \lambda^2]
        = \frac{1}{\alpha+\beta}\Big(\frac{\beta(\beta+1)}{\alpha-1}
          + \frac{\alpha(\alpha+1)}{\beta-1}\Big)$$

    $c$ is infinite unless $\alpha$ and $\beta$ are above 1. The proofs of Lemmas 1 and
    2 do not state the distribution of the expectation; under Beta($\alpha$, $\beta$)
    it is infinite unless $\alpha$ is above 2.

    Args:
      alpha: first parameter of the Beta distribution, positive.
      beta: second parameter, positive; equal to `alpha` if None.
    """
    beta = alpha if beta is None else beta
    alpha, beta = jnp.asarray(alpha, float), jnp.asarray(beta, float)
    total = alpha + beta
    mean = (alpha * (alpha + 1) + beta * (beta + 1)) / (total * (total + 1))
    finite = (alpha > 1) & (beta > 1)
    a, b = jnp.where(finite, alpha, 2.0), jnp.where(finite, beta, 2.0)
    c = (b * (b + 1) / (a - 1) + a * (a + 1) / (b - 1)) / (a + b)
    return Constants(mean, jnp.where(finite, c, jnp.inf))


def psi(score: Array) -> Array:
    r"""Second derivative of the logistic loss, $\psi(u) = e^u / (1 + e^u)^2$."""
    return jax.nn.sigmoid(score) * jax.nn.sigmoid(-score)


def bounded(score: Array, label: Array) -> Array:
    r"""Loss printed in Lemma 2, $1 / (1 + e^z)$, which does not depend on the label.

    Its second derivative is $\psi(z)\tanh(z/2)$, not $\psi(z)$.
    """
    del label
    return jax.nn.sigmoid(-score)


# --------------------------------------------------------------------------- lemmas


def non_label_sharing(
    phi: Array, h: Array, y: Array, constants: Constants, spread: float | Array = 1.0
) -> Array:
    r"""Lemma 1 as printed.

    $$\frac{1}{N|I|}\sum_{i,k} \ell(\bar\lambda\,\phi_i^\top h_{i,k}, y_{i,k})
      + c\,\psi(\phi_i^\top h_{i,k})\;\phi_i^\top \mathrm{E}[h h^\top] \phi_i$$

    with the second moment of a partner's features. The sum over tasks inside of it is
    taken once, as in the middle of the proof.
    """
    return _with_heads(phi, h, y, constants, spread, by_class=True)


def label_sharing(
    phi: Array, h: Array, y: Array, constants: Constants, spread: float | Array = 1.0
) -> Array:
    """Lemma 4 as printed: like Lemma 1, with partners drawn from all samples."""
    return _with_heads(phi, h, y, constants, spread, by_class=False)


def protonet(
    theta: Array,
    x: Array,
    y: Array,
    prototypes: Array,
    constants: Constants,
    spread: float | Array = 1.0,
    loss: Callable[[Array, Array], Array] = bounded,
) -> Array:
    r"""Lemma 2 as printed.

    $$\frac{1}{N|I|}\sum_{i,k} \ell(\bar\lambda z_{i,k})
      + c\,\psi(z_{i,k})\;\theta^\top\mathrm{E}[x x^\top]\theta$$

    with the second moment of $x$ itself. The sum over tasks inside of it is taken once.
    """
    z = (x - prototypes.mean(axis=1, keepdims=True)) @ theta
    second_moment = _partner_weights(y, by_class=True) @ (x @ theta).reshape(-1) ** 2
    regularizer = constants.c * psi(z) * second_moment
    return jnp.mean(loss(constants.mean * z, y) + spread**2 * regularizer)


def _with_heads(
    phi: Array,
    h: Array,
    y: Array,
    constants: Constants,
    spread: float | Array,
    by_class: bool,
) -> Array:
    scores = jnp.einsum("id,ind->in", phi, h)
    weight = _partner_weights(y, by_class)
    features = h.reshape(-1, h.shape[-1])
    second_moment = (phi @ features.T) ** 2 @ weight  # phi_i^T E[h h^T] phi_i
    regularizer = constants.c * psi(scores) * second_moment[:, None]
    loss = theory.logistic(constants.mean * scores, y)
    return jnp.mean(loss + spread**2 * regularizer)


def _partner_weights(y: Array, by_class: bool) -> Array:
    """Probability of each sample, `[I * N]`, to be drawn as a partner."""
    num_tasks, num_samples = y.shape
    tasks = jnp.repeat(jnp.arange(num_tasks), num_samples)
    classes = jnp.asarray(y, int).reshape(-1) if by_class else jnp.zeros_like(tasks)
    return theory.partner_weights(tasks, classes, num_tasks, 2)


# ------------------------------------------------------------- the proof of Lemma 4


def exchanged_law(law: Law) -> Law:
    r"""The distribution $D_\lambda$ of Lemmas 1 and 4.

    $$\mathrm{E}_{D_\lambda} f(\lambda)
      = \mathrm{E}[\lambda f(\lambda) + (1-\lambda) f(1-\lambda)]$$

    For Beta($\alpha$, $\beta$) it is Beta($\alpha+1$, $\beta$) with probability
    $\alpha / (\alpha+\beta)$, else Beta($\beta+1$, $\alpha$). It is the share of the
    sample that provides the label, if of a pair mixed with $\lambda$ the first provides
    it with probability $\lambda$, else the second.
    """
    lam, probability = law
    return Law(
        jnp.concatenate([lam, 1 - lam]),
        jnp.concatenate([probability * lam, probability * (1 - lam)]),
    )


def exchanged_loss(
    phi: Array, h: Array, y: Array, law: Law, spread: float | Array = 1.0
) -> Array:
    r"""The loss that the proof of Lemma 4 substitutes for `theory.label_sharing_loss`.

    The loss is linear in the label, so the mixed label can be replaced with a random
    one: the sample's own with probability $\lambda$, else its partner's. In the second
    case the two samples are swapped, which gives

    $$\frac{1}{N|I|}\sum_{i,k} \mathrm{E}_{D_\lambda}\;
      \ell\big(\phi_i^\top(\lambda h_{i,k} + (1-\lambda) h_{j,k'}),\; y_{i,k}\big)$$

    This equals `theory.label_sharing_loss` if all tasks have the same head. Otherwise
    the swap also turns $\phi_i$ into $\phi_j$, which the proof overlooks. `law` is the
    distribution of $\lambda$, not $D_\lambda$.
    """
    return theory.non_label_sharing_loss(
        phi, h, y, exchanged_law(law), spread, by_class=False
    )


def exchanged_approximation(
    phi: Array, h: Array, y: Array, law: Law, spread: float | Array = 1.0
) -> Array:
    """Second-order approximation of `exchanged_loss`: Lemma 4 for one head."""
    return theory.non_label_sharing_approximation(
        phi, h, y, exchanged_law(law), spread, by_class=False
    )
