r"""Metric-based learners: Lemma 2, a ProtoNet with a linear embedding.

Binary tasks, :math:`f(x) = \theta^\top x`, and the score of a sample is
:math:`z = \theta^\top(x - (c_1 + c_2)/2)`, with the prototypes of its task. Samples
and prototypes are mixed at the input (layer 0), class r of task i with class r' of
task j. As both classes find a partner, in whatever order,

.. math:: \tilde x - \tfrac12(\tilde c_1 + \tilde c_2)
  = \lambda\big(x_{i,k} - \tfrac12(c_{i,1} + c_{i,2})\big)
  + (1-\lambda)\big(x_{j,k'} - \tfrac12(c_{j,1} + c_{j,2})\big),

so that scores are mixed as in Lemma 1, but those of samples *relative to their own
task's prototypes*. A task's place in the space of features drops out: if prototypes
are the class means of the samples that are scored, these have mean 0 in every task,
and partners from other tasks add no variance between tasks (App. B.3).

ProtoNet's own logit is :math:`2\,\theta^\top(c_1 - c_2)\,z`; the paper leaves the
factor out. All functions take

* `theta`, `[D]`, the embedding;
* `x`, `[I, N, D]`, the samples that are scored;
* `y`, `[I, N]`, their classes, 0 or 1;
* `prototypes`, `[I, 2, D]`;
* `law` and `spread`, as in `gradient_based.py`;
* `loss`, `bounded` as the paper prints it, or `logistic`. With the latter, Lemma 2 is
  Lemma 1 for the features of `between_prototypes` and a single head.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from mlti_jax.theory import _expansion as expansion
from mlti_jax.theory._expansion import Form, PointLoss, psi, with_own_label
from mlti_jax.theory._law import Law, PrintedConstants
from mlti_jax.theory._partners import class_weights
from mlti_jax.types import Array


def bounded(score: Array, label: Array) -> Array:
    r"""The loss that Lemma 2 prints, :math:`1 / (1 + e^z)`, whatever the label.

    Its second derivative is :math:`\psi(z)\tanh(z/2)`, not :math:`\psi(z)`.
    """
    del label
    return jax.nn.sigmoid(-score)


def between_prototypes(x: Array, prototypes: Array) -> Array:
    """Samples relative to the middle of their task's prototypes, `[I, N, D]`."""
    chex.assert_rank([x, prototypes], 3)
    return x - prototypes.mean(axis=1, keepdims=True)


def protonet_loss(
    theta: Array,
    x: Array,
    y: Array,
    prototypes: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = bounded,
) -> Array:
    r"""The interpolated loss of Lemma 2, whole.

    .. math:: \frac{1}{N|I|}\sum_{i,k}
      \mathrm{E}\;\ell(\lambda z_{i,k} + (1-\lambda) z_{j,k'})

    over :math:`\lambda` and a partner: a task j, one of its classes, a sample of it.
    """
    scores = between_prototypes(x, prototypes) @ theta
    return _mean(expansion.expected_loss, loss, scores, y, law, spread)


def protonet_approximation(
    theta: Array,
    x: Array,
    y: Array,
    prototypes: Array,
    law: Law,
    spread: float | Array = 1.0,
    loss: PointLoss = bounded,
) -> Array:
    r"""Lemma 2 with the right constants.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \Big[\ell(m) + \tfrac12\ell''(m)\big(
      \mathrm{Var}(\lambda)\,(z_{i,k}-\bar z)^2
      + \mathrm{E}[(1-\lambda)^2]\;\theta^\top\Sigma\,\theta\big)\Big]

    with :math:`m = \bar\lambda z_{i,k} + (1-\bar\lambda)\bar z`, under
    Beta(alpha, beta), and the covariance :math:`\Sigma` of a partner relative to its
    prototypes. :math:`\ell'' = \psi\tanh(\cdot/2)` for `bounded`: negative for half of
    all scores. It is :math:`\psi`, and the correction a regulariser, for `logistic`.
    """
    scores = between_prototypes(x, prototypes) @ theta
    return _mean(expansion.second_order, loss, scores, y, law, spread)


def printed_protonet(
    theta: Array,
    x: Array,
    y: Array,
    prototypes: Array,
    constants: PrintedConstants,
    spread: float | Array = 1.0,
    loss: PointLoss = bounded,
) -> Array:
    r"""Lemma 2 as printed.

    .. math:: \frac{1}{N|I|}\sum_{i,k} \ell(\bar\lambda z_{i,k})
      + c\,\psi(z_{i,k})\;\theta^\top\mathrm{E}[x x^\top]\theta

    with the second moment of x itself; the sum over tasks inside of it is taken once.
    `constants`: see `printed_constants`.
    """
    z = between_prototypes(x, prototypes) @ theta
    second_moment = class_weights(y) @ (x @ theta).reshape(-1) ** 2
    regulariser = constants.c * psi(z) * second_moment
    return jnp.mean(loss(constants.mean * z, y) + spread**2 * regulariser)


def _mean(form: Form, loss: PointLoss, scores, y, law: Law, spread) -> Array:
    """Mean of `form` over all samples; scores `[I, N]`."""
    weight, partners = class_weights(y), scores.reshape(-1)

    def one(own, label):
        return form(loss, *with_own_label(own, partners, label), weight, law, spread)

    return jax.vmap(one)(partners, jnp.asarray(y, scores.dtype).reshape(-1)).mean()
