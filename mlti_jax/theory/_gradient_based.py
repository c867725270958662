r"""Gradient-based learners: Lemmas 1 (non-label-sharing) and 4 (label-sharing).

A network of two layers with one head for each task,
:math:`f_i(x) = \phi_i^\top h`, :math:`h = \sigma(W x)`; the hidden features h are mixed
(layer 1), and the loss is the logistic one. All functions take

* `phi`, `[I, D]`, the heads;
* `h`, `[I, N, D]`, the hidden features, centred or not;
* `y`, `[I, N]`, the labels, 0 or 1;
* `law`, of lambda, see `law.beta_law`;
* `spread`, see `expansion.expected_loss`; 1 for the interpolation itself.
"""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from mlti_jax.theory import _expansion as expansion
from mlti_jax.theory._expansion import Form, PointLoss, logistic, psi, with_own_label
from mlti_jax.theory._law import Law, PrintedConstants, exchanged
from mlti_jax.theory._partners import class_weights
from mlti_jax.types import Array


def non_label_sharing_loss(
    phi: Array, h: Array, y: Array, law: Law, spread: float | Array = 1.0
) -> Array:
    r"""The interpolated loss of Lemma 1, whole.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \mathrm{E}\;
      \ell\big(\phi_i^\top(\lambda h_{i,k} + (1-\lambda) h_{j,k'}),\; y_{i,k}\big)

    over :math:`\lambda` and a partner drawn as by `partner_weights`: a task j, one of
    its classes, a sample k' of it. The mixed class keeps its number, so the label is
    the sample's own.
    """
    return _unmixed_labels(expansion.expected_loss, phi, h, y, law, spread)


def non_label_sharing_approximation(
    phi: Array, h: Array, y: Array, law: Law, spread: float | Array = 1.0
) -> Array:
    r"""Lemma 1 with the right constants.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \Big[\ell(m, y_{i,k}) + \tfrac12\psi(m)\big(
      \mathrm{Var}(\lambda)\,(\phi_i^\top(h_{i,k}-\mu))^2
      + \mathrm{E}[(1-\lambda)^2]\;\phi_i^\top\Sigma\,\phi_i\big)\Big]

    with :math:`m = \phi_i^\top(\bar\lambda h_{i,k} + (1-\bar\lambda)\mu)` and the mean
    :math:`\mu` and covariance :math:`\Sigma` of a partner's features. All under
    Beta(alpha, beta). With centred features :math:`\mu = 0`, and only then is the first
    term the loss of the tasks shrunk by :math:`\bar\lambda`.
    """
    return _unmixed_labels(expansion.second_order, phi, h, y, law, spread)


def label_sharing_loss(
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = logistic,
) -> Array:
    r"""The interpolated loss of Lemma 4, whole; labels are mixed too.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \mathrm{E}\;
      \ell\big(\phi_i^\top(\lambda h_{i,k} + (1-\lambda) h_{j,k'}),\;
        \lambda y_{i,k} + (1-\lambda) y_{j,k'}\big)

    over :math:`\lambda` and a partner drawn uniformly from all samples of all tasks.

    Args:
      phi, h, y, law, spread: as above.
      loss: of a score and a label; for regression, one that takes any target.
    """
    return _mixed_labels(expansion.expected_loss, phi, h, y, law, spread, loss)


def label_sharing_approximation(
    phi: Array,
    h: Array,
    y: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = logistic,
) -> Array:
    r"""Lemma 4 with the right constants, for any heads.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \Big[\ell(m, \bar\lambda y_{i,k}
        + (1-\bar\lambda)\bar y)
      + \tfrac12\psi(m)\,\mathrm{Var}\,\tilde u
      - \mathrm{Var}(\lambda)\,\phi_i^\top(h_{i,k}-\mu)\,(y_{i,k}-\bar y)
      - \mathrm{E}[(1-\lambda)^2]\;\phi_i^\top\mathrm{Cov}(h, y)\Big]

    with m and :math:`\mathrm{Var}\,\tilde u` as in Lemma 1, under Beta(alpha, beta).
    The labels enter smoothed, and what they have in common with the features is
    rewarded; both is exact, since the loss is linear in the label. For one head it
    agrees to second order with `exchanged_approximation`. With a squared error, for
    regression, the whole formula is exact.

    Args:
      phi, h, y, law, spread, loss: as in `label_sharing_loss`.
    """
    return _mixed_labels(expansion.second_order, phi, h, y, law, spread, loss)


def exchanged_loss(
    phi: Array, h: Array, y: Array, law: Law, spread: float | Array = 1.0
) -> Array:
    r"""What the proof of Lemma 4 puts in the place of `label_sharing_loss`.

    The loss is linear in the label, so that the mixed label may be replaced by one
    that is drawn: the sample's own with probability :math:`\lambda`, else its
    partner's. Where it is the partner's, the two are renamed. What remains is

    .. math:: \frac{1}{N|I|}\sum_{i,k} \mathrm{E}_{D_\lambda}\;
      \ell\big(\phi_i^\top(\lambda h_{i,k} + (1-\lambda) h_{j,k'}),\; y_{i,k}\big)

    which equals `label_sharing_loss` if all tasks have the same head. If not, renaming
    also turns :math:`\phi_i` into :math:`\phi_j`, which the proof does not see.

    Args:
      phi, h, y, law, spread: as above; `law` is that of lambda, not D_lambda.
    """
    return _unmixed_labels(
        expansion.expected_loss, phi, h, y, exchanged(law), spread, by_class=False
    )


def exchanged_approximation(
    phi: Array, h: Array, y: Array, law: Law, spread: float | Array = 1.0
) -> Array:
    r"""Lemma 4 in the paper's form, with the right constants; for one head only.

    As `non_label_sharing_approximation`, but the moments of :math:`\lambda` are those
    under D_lambda, and a partner is drawn uniformly from all samples.
    """
    return _unmixed_labels(
        expansion.second_order, phi, h, y, exchanged(law), spread, by_class=False
    )


def printed_non_label_sharing(
    phi: Array,
    h: Array,
    y: Array,
    constants: PrintedConstants,
    spread: float | Array = 1.0,
) -> Array:
    r"""Lemma 1 as printed.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \ell(\bar\lambda\,\phi_i^\top h_{i,k}, y_{i,k})
      + c\,\psi(\phi_i^\top h_{i,k})\;\phi_i^\top \mathrm{E}[h h^\top] \phi_i

    with the second moment of a partner's features; the sum over tasks inside of it is
    taken once, as in the middle of the proof. `constants`: see `printed_constants`.
    """
    return _printed(phi, h, y, constants, spread, by_class=True)


def printed_label_sharing(
    phi: Array,
    h: Array,
    y: Array,
    constants: PrintedConstants,
    spread: float | Array = 1.0,
) -> Array:
    """Lemma 4 as printed: as Lemma 1, with partners drawn from all samples alike."""
    return _printed(phi, h, y, constants, spread, by_class=False)


def _unmixed_labels(
    form: Form, phi, h, y, law: Law, spread, by_class: bool = True
) -> Array:
    weight = class_weights(y, by_class)

    def one(own, partners, label, _):
        return form(
            logistic, *with_own_label(own, partners, label), weight, law, spread
        )

    return _mean_over_samples(one, phi, h, y)


def _mixed_labels(form: Form, phi, h, y, law: Law, spread, loss: PointLoss) -> Array:
    weight = class_weights(y, by_class=False)

    def one(own, partners, label, labels):
        point = jnp.stack([own, label])
        points = jnp.stack([partners, labels], axis=1)
        return form(loss, point, points, weight, law, spread)

    return _mean_over_samples(one, phi, h, y)


def _printed(phi, h, y, constants: PrintedConstants, spread, by_class: bool) -> Array:
    weight = class_weights(y, by_class)

    def one(own, partners, label, _):
        second_moment = weight @ partners**2  # phi^T E[h h^T] phi
        regulariser = constants.c * psi(own) * second_moment
        return logistic(constants.mean * own, label) + spread**2 * regulariser

    return _mean_over_samples(one, phi, h, y)


def _mean_over_samples(one: Callable[..., Array], phi, h, y) -> Array:
    """Mean of `one(own score, scores of all samples [I * N], label, all labels)`."""
    chex.assert_rank([phi, h, y], [2, 3, 2])
    y = jnp.asarray(y, h.dtype)
    features, labels = h.reshape(-1, h.shape[-1]), y.reshape(-1)

    def task(phi, h, y):
        partners = features @ phi
        return jax.vmap(lambda u, label: one(u, partners, label, labels))(h @ phi, y)

    return jax.vmap(task)(phi, h, y).mean()
