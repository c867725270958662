r"""Metric-based learners: Lemma 2, a ProtoNet with a linear embedding.

Tasks are binary, $f(x) = \theta^\top x$, and the score of a sample is
$z = \theta^\top(x - (c_1 + c_2)/2)$ with the prototypes of its task. Samples and
prototypes are mixed at the input (layer 0), class $r$ of task $i$ with class $r'$ of
task $j$. Both classes get a partner, in either order, so

$$\tilde x - \tfrac12(\tilde c_1 + \tilde c_2)
  = \lambda\big(x_{i,k} - \tfrac12(c_{i,1} + c_{i,2})\big)
  + (1-\lambda)\big(x_{j,k'} - \tfrac12(c_{j,1} + c_{j,2})\big).$$

Scores are mixed as in Lemma 1, but *relative to the prototypes of each task*. The
location of a task in feature space cancels: if prototypes are the class means of the
scored samples, the relative samples have mean 0 in every task, and partners from other
tasks add no variance between tasks (App. B.3).

ProtoNet's logit is $2\,\theta^\top(c_1 - c_2)\,z$; the paper omits the factor.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from mlti_jax.theory._expansion import (
    Form,
    PointLoss,
    expected_loss,
    logistic,
    second_order,
    with_own_label,
)
from mlti_jax.theory._law import Law
from mlti_jax.theory._partners import class_weights
from mlti_jax.types import Array


def relative_to_prototypes(x: Array, prototypes: Array) -> Array:
    """Samples minus the midpoint of their task's prototypes, `[I, N, D]`."""
    chex.assert_rank([x, prototypes], 3)
    return x - prototypes.mean(axis=1, keepdims=True)


def protonet_loss(
    theta: Array,
    x: Array,
    y: Array,
    prototypes: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = logistic,
) -> Array:
    r"""Interpolated loss of Lemma 2.

    $$\frac{1}{N|I|}\sum_{i,k}
      \mathrm{E}\;\ell(\lambda z_{i,k} + (1-\lambda) z_{j,k'},\; y_{i,k})$$

    The expectation is over $\lambda$ and a partner: a task $j$, one of its classes, and
    a sample of that class. With the logistic loss, Lemma 2 is Lemma 1 with a single
    head, for samples relative to their prototypes.

    Args:
      theta: embedding `[D]`.
      x: samples `[I, N, D]`.
      y: their classes `[I, N]`, 0 or 1.
      prototypes: `[I, 2, D]`.
      law: distribution of $\lambda$, see `beta_law`.
      spread: factor of the mixtures' deviations from their mean; 1 is interpolation as
        in training.
      loss: function of score and label. The paper prints one that does not depend on
        the label, $1 / (1 + e^z)$.

    Returns:
      The loss, a scalar.
    """
    scores = relative_to_prototypes(x, prototypes) @ theta
    return _mean(expected_loss, loss, scores, y, law, spread)


def protonet_approximation(
    theta: Array,
    x: Array,
    y: Array,
    prototypes: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = logistic,
) -> Array:
    r"""Second-order approximation of `protonet_loss`: Lemma 2, corrected.

    $$\frac{1}{N|I|}\sum_{i,k} \Big[\ell(m) + \tfrac12\ell''(m)\big(
      \mathrm{Var}(\lambda)\,(z_{i,k}-\bar z)^2
      + \mathrm{E}[(1-\lambda)^2]\;\theta^\top\Sigma\,\theta\big)\Big]$$

    with $m = \bar\lambda z_{i,k} + (1-\bar\lambda)\bar z$ and the covariance $\Sigma$
    of a partner relative to its prototypes. For the logistic loss $\ell'' = \psi > 0$,
    so the correction regularizes. For the loss that the paper prints, $\ell'' =
    \psi\tanh(\cdot/2)$ is negative for half of all scores.

    Args:
      theta: as in `protonet_loss`.
      x: as in `protonet_loss`.
      y: as in `protonet_loss`.
      prototypes: as in `protonet_loss`.
      law: as in `protonet_loss`.
      spread: as in `protonet_loss`.
      loss: as in `protonet_loss`.

    Returns:
      The approximate loss, a scalar.
    """
    scores = relative_to_prototypes(x, prototypes) @ theta
    return _mean(second_order, loss, scores, y, law, spread)


def _mean(
    form: Form,
    loss: PointLoss,
    scores: Array,
    y: Array,
    law: Law,
    spread: float | Array,
) -> Array:
    """Mean of `form` over all samples; scores `[I, N]`."""
    weight, partners = class_weights(y), scores.reshape(-1)

    def one(own: Array, label: Array) -> Array:
        return form(loss, *with_own_label(own, partners, label), weight, law, spread)

    return jax.vmap(one)(partners, jnp.asarray(y, scores.dtype).reshape(-1)).mean()
