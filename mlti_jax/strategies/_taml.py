r"""TAML (Jamal and Qi 2019), Task Agnostic Meta-Learning for Few-Shot Learning.

The initial model must not be biased to some tasks. Either its predictions are kept
unsure, and those after adaptation sure, by their entropies
:math:`H = -\frac1N \sum_k \sum_r p_{kr} \log p_{kr}`,

.. math:: \mathcal{L} + \lambda \frac1B \sum_i [-H_i(f_\theta) + H_i(f_{\phi_i})],

or the tasks' losses before adaptation, :math:`\ell_i = \mathcal{L}_i(f_\theta)`, are
kept equal by a measure of inequality, which serves regression too:

.. math:: \mathcal{L} + \lambda\, I(\ell_1, \dots, \ell_B).

Both look at the query sets. The authors' code is not public and the paper's text
leaves open which set they use; the weight is our choice.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy
from mlti_jax.strategies._inequality import (
    ATKINSON_EPSILON,
    GENERALISED_ENTROPY_ALPHA,
    MEASURES,
)
from mlti_jax.types import Array

ENTROPY = "entropy"


def taml(
    *,
    measure: str = ENTROPY,
    weight: float = 0.1,
    alpha: float = GENERALISED_ENTROPY_ALPHA,
    epsilon: float = ATKINSON_EPSILON,
    labels: str = "as_drawn",
) -> Strategy:
    """Keeps the initial model free of a bias to some tasks.

    Args:
      measure: `entropy`, or one of `inequality.MEASURES`.
      weight: lambda.
      alpha: of the measure `generalised_entropy`.
      epsilon: of the measure `atkinson`, at least 0.
      labels: of the data; targets (`shift`) have no entropy.
    """
    known = (ENTROPY, *MEASURES)
    if measure not in known:
        raise unknown_name("measure of taml", measure, known)
    if not 0 <= weight < float("inf"):
        raise InputError(f"taml needs a weight >= 0, got {weight}")
    if not epsilon >= 0:
        raise InputError(f"taml needs an epsilon >= 0, got {epsilon}")
    options = {
        "generalised_entropy": {"alpha": alpha},
        "atkinson": {"epsilon": epsilon},
    }.get(measure, {})
    if measure == ENTROPY and labels == "shift":
        raise InputError(
            "taml by entropy needs classes, and this is regression; set "
            "strategy.taml.measure to one of: " + ", ".join(MEASURES)
        )

    def penalty(variables, losses, aux):
        del variables, losses
        if measure == ENTROPY:
            before = entropy(aux.outputs_before, aux.weight)
            after = entropy(aux.outputs, aux.weight)
            return weight * jnp.mean(after - before)
        initial = aux.loss_before.mean(axis=1)
        return weight * MEASURES[measure](initial, **options)

    smallest = 1 if measure == ENTROPY else 2
    return Strategy(name="taml", smallest_batch=smallest, penalty=penalty)


def entropy(logits: Array, weight: Array | None = None) -> Array:
    """Mean entropy of the predictions for a set: `[..., N, C]` to `[...]`.

    Args:
      logits: `[..., N, C]`.
      weight: `[..., N]`, 0 for samples that do not count; None if all do.
    """
    log_p = jax.nn.log_softmax(logits)
    values = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    weight = jnp.ones_like(values) if weight is None else weight
    return jnp.sum(weight * values, -1) / jnp.maximum(weight.sum(-1), 1.0)
