r"""TAML (Jamal and Qi 2019), Task Agnostic Meta-Learning for Few-Shot Learning.

The initial model must not be biased towards some tasks. Either the entropy
$H = -\frac1N \sum_k \sum_r p_{kr} \log p_{kr}$ of its predictions is kept high before
and low after adaptation,

$$L + \lambda \frac1B \sum_i [-H_i(f_\theta) + H_i(f_{\phi_i})],$$

or a measure of inequality keeps the losses of the tasks before adaptation,
$\ell_i = L_i(f_\theta)$, equal, which also works for regression:

$$L + \lambda\, I(\ell_1, \dots, \ell_B).$$

Both use the query sets. The authors' code is not public, and the paper does not say
which set they use; the weight is our choice.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Variables
from mlti_jax.strategies._base import GRADIENT, Strategy
from mlti_jax.strategies._inequality import (
    ATKINSON_EPSILON,
    GENERALISED_ENTROPY_ALPHA,
    MEASURES,
)
from mlti_jax.strategies._mixing import check_setting
from mlti_jax.types import Array

ENTROPY = "entropy"


def taml(
    *,
    setting: str,
    measure: str = ENTROPY,
    weight: float = 0.1,
    alpha: float = GENERALISED_ENTROPY_ALPHA,
    epsilon: float = ATKINSON_EPSILON,
) -> Strategy:
    """Keep the initial model unbiased towards some tasks.

    Args:
      setting: `label_sharing`, `non_label_sharing` or `regression`; regression has no
        entropy.
      measure: `entropy`, or a measure of inequality: `theil`, `generalised_entropy`,
        `gini`, `atkinson` or `variance_of_logarithms`.
      weight: lambda; the default is our choice.
      alpha: parameter of the measure `generalised_entropy`.
      epsilon: parameter of the measure `atkinson`, at least 0; the default is our
        choice.

    Examples:
      >>> taml(setting="regression", measure="theil").min_tasks
      2
    """
    check_setting(setting)
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
    if measure == ENTROPY and setting == "regression":
        raise InputError(
            "taml with measure=entropy needs classes, and this is regression; set "
            "strategy.taml.measure to one of: " + ", ".join(MEASURES)
        )

    def penalty(variables: Variables, aux: Aux) -> Array:
        del variables
        if measure == ENTROPY:
            before = entropy(aux.outputs_before, aux.weight)
            after = entropy(aux.outputs, aux.weight)
            return weight * jnp.mean(after - before)
        initial = aux.loss_before.mean(axis=1)
        if len(initial) < 2:
            raise InputError(
                "taml compares the tasks of a meta-batch; set train.meta_batch_size to "
                "at least 2, or strategy.taml.measure=entropy"
            )
        return weight * MEASURES[measure](initial, **options)

    return Strategy(
        name="taml",
        applies_to=GRADIENT,
        min_tasks=1 if measure == ENTROPY else 2,
        penalty=penalty,
    )


def entropy(logits: Array, weight: Array | None = None) -> Array:
    """Compute the mean entropy of the predictions for a set, `[...]`.

    Args:
      logits: `[..., N, C]`.
      weight: `[..., N]`, 0 for samples that do not count; None if all count.
    """
    log_p = jax.nn.log_softmax(logits)
    values = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    weight = jnp.ones_like(values) if weight is None else weight
    return jnp.sum(weight * values, -1) / jnp.maximum(weight.sum(-1), 1.0)
