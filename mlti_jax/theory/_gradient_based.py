r"""Gradient-based learners: Lemmas 1 (non-label-sharing) and 4 (label-sharing).

The network has two layers and one head per task, $f_i(x) = \phi_i^\top h$ with
$h = \sigma(W x)$. The hidden features $h$ are mixed (layer 1), with the logistic loss.
"""

from __future__ import annotations

from collections.abc import Callable

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


def non_label_sharing_loss(
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array = 1.0,
    *,
    by_class: bool = True,
) -> Array:
    r"""Interpolated loss of Lemma 1.

    $$\frac{1}{N|I|}\sum_{i,k} \mathrm{E}\;
      \ell\big(\phi_i^\top(\lambda h_{i,k} + (1-\lambda) h_{j,k'}),\; y_{i,k}\big)$$

    The expectation is over $\lambda$ and a partner: a task $j$, one of its classes, and
    a sample $k'$ of that class. A mixed class keeps its index, so the label is that of
    sample $k$.

    Args:
      phi: heads `[I, D]`.
      h: hidden features `[I, N, D]`, centered or not.
      y: labels `[I, N]`, 0 or 1.
      law: distribution of $\lambda$, see `beta_law`.
      spread: factor of the mixtures' deviations from their mean; 1 is interpolation as
        in training.
      by_class: whether the partner's class is drawn before the sample; otherwise the
        sample is drawn uniformly from its task.

    Returns:
      The loss, a scalar.
    """
    return _unmixed_labels(expected_loss, phi, h, y, law, spread, by_class)


def non_label_sharing_approximation(
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array = 1.0,
    *,
    by_class: bool = True,
) -> Array:
    r"""Second-order approximation of `non_label_sharing_loss`: Lemma 1, corrected.

    $$\frac{1}{N|I|}\sum_{i,k} \Big[\ell(m, y_{i,k}) + \tfrac12\psi(m)\big(
      \mathrm{Var}(\lambda)\,(\phi_i^\top(h_{i,k}-\mu))^2
      + \mathrm{E}[(1-\lambda)^2]\;\phi_i^\top\Sigma\,\phi_i\big)\Big]$$

    with $m = \phi_i^\top(\bar\lambda h_{i,k} + (1-\bar\lambda)\mu)$, the second
    derivative $\psi$ of the loss, and the mean $\mu$ and covariance $\Sigma$ of a
    partner's features. Only for centered features, $\mu = 0$, is the first term the
    loss of the tasks scaled by $\bar\lambda$.

    Args:
      phi: as in `non_label_sharing_loss`.
      h: as in `non_label_sharing_loss`.
      y: as in `non_label_sharing_loss`.
      law: as in `non_label_sharing_loss`.
      spread: as in `non_label_sharing_loss`.
      by_class: as in `non_label_sharing_loss`.

    Returns:
      The approximate loss, a scalar.
    """
    return _unmixed_labels(second_order, phi, h, y, law, spread, by_class)


def label_sharing_loss(
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = logistic,
) -> Array:
    r"""Interpolated loss of Lemma 4, where labels are mixed as well.

    $$\frac{1}{N|I|}\sum_{i,k} \mathrm{E}\;
      \ell\big(\phi_i^\top(\lambda h_{i,k} + (1-\lambda) h_{j,k'}),\;
        \lambda y_{i,k} + (1-\lambda) y_{j,k'}\big)$$

    The expectation is over $\lambda$ and a partner, drawn uniformly from all samples of
    all tasks.

    Args:
      phi: heads `[I, D]`.
      h: hidden features `[I, N, D]`, centered or not.
      y: labels `[I, N]`, 0 or 1; any targets for a regression loss.
      law: distribution of $\lambda$, see `beta_law`.
      spread: factor of the mixtures' deviations from their mean; 1 is interpolation as
        in training.
      loss: function of score and label.

    Returns:
      The loss, a scalar.
    """
    return _mixed_labels(expected_loss, phi, h, y, law, spread, loss)


def label_sharing_approximation(
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = logistic,
) -> Array:
    r"""Second-order approximation of `label_sharing_loss`: Lemma 4, corrected.

    $$\frac{1}{N|I|}\sum_{i,k} \Big[\ell(m, \bar\lambda y_{i,k}
        + (1-\bar\lambda)\bar y)
      + \tfrac12\psi(m)\,\mathrm{Var}\,\tilde u
      - \mathrm{Var}(\lambda)\,\phi_i^\top(h_{i,k}-\mu)\,(y_{i,k}-\bar y)
      - \mathrm{E}[(1-\lambda)^2]\;\phi_i^\top\mathrm{Cov}(h, y)\Big]$$

    with $m$ and $\mathrm{Var}\,\tilde u$ as in Lemma 1. Holds for any heads. Labels
    are smoothed, and their covariance with the features is rewarded; both parts are
    exact, because the loss is linear in the label. With a squared error (regression)
    the whole formula is exact.

    Args:
      phi: as in `label_sharing_loss`.
      h: as in `label_sharing_loss`.
      y: as in `label_sharing_loss`.
      law: as in `label_sharing_loss`.
      spread: as in `label_sharing_loss`.
      loss: as in `label_sharing_loss`.

    Returns:
      The approximate loss, a scalar.
    """
    return _mixed_labels(second_order, phi, h, y, law, spread, loss)


def _unmixed_labels(
    form: Form,
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array,
    by_class: bool,
) -> Array:
    weight = class_weights(y, by_class)

    def one(own: Array, partners: Array, label: Array, labels: Array) -> Array:
        del labels
        points = with_own_label(own, partners, label)
        return form(logistic, *points, weight, law, spread)

    return _mean_over_samples(one, phi, h, y)


def _mixed_labels(
    form: Form,
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array,
    loss: PointLoss,
) -> Array:
    weight = class_weights(y, by_class=False)

    def one(own: Array, partners: Array, label: Array, labels: Array) -> Array:
        point = jnp.stack([own, label])
        points = jnp.stack([partners, labels], axis=1)
        return form(loss, point, points, weight, law, spread)

    return _mean_over_samples(one, phi, h, y)


def _mean_over_samples(
    one: Callable[[Array, Array, Array, Array], Array], phi: Array, h: Array, y: Array
) -> Array:
    """Mean of `one(own score, scores of all samples [I * N], label, all labels)`."""
    chex.assert_rank([phi, h, y], [2, 3, 2])
    y = jnp.asarray(y, h.dtype)
    features, labels = h.reshape(-1, h.shape[-1]), y.reshape(-1)

    def task(phi: Array, h: Array, y: Array) -> Array:
        partners = features @ phi
        return jax.vmap(lambda u, label: one(u, partners, label, labels))(h @ phi, y)

    return jax.vmap(task)(phi, h, y).mean()
