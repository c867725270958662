r"""Variance within tasks and between them (App. B.3).

With centered features, the regularizer depends on the covariance of a partner: over all
tasks for MLTI, within the sample's own task if each task is augmented separately. With
the partner's task $G$, the law of total variance is

$$\mathrm{Cov}(h) = \mathrm{E}[\mathrm{Cov}(h \mid G)]
  + \mathrm{Cov}(\mathrm{E}[h \mid G]) \succeq \mathrm{E}[\mathrm{Cov}(h \mid G)].$$

The right-hand side is a mean over tasks. A sample of task $i$, however, is augmented
with the covariance of its own task, $\mathrm{Cov}(h \mid G = i)$, which may be larger
in the direction of its own head. The comparison therefore holds on average, for one
head and equal factors $\psi$, but not for every task. It does not apply to ProtoNet,
whose partners are relative to their own prototypes (see `protonet_loss`).
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from mlti_jax.theory._partners import partner_weights
from mlti_jax.types import Array


class Covariances(NamedTuple):
    """Covariances of a partner's features, `[D, D]` each.

    A partner is a task, one of its classes and a sample of it, drawn in this order.

    Attributes:
      total: over all tasks, as in MLTI.
      within_task: mean over tasks of the covariance within a task, as when each task
        is augmented separately.
      within_class: mean over tasks and classes of the covariance within a class.
      between_tasks: covariance of the task means, which equals `total - within_task`
        and is positive semi-definite.
      between_classes: mean over tasks of the covariance of the class means, which
        equals `within_task - within_class`.
    """

    total: Array
    within_task: Array
    within_class: Array
    between_tasks: Array
    between_classes: Array


def covariances(
    features: Array, tasks: Array, classes: Array, num_tasks: int, num_classes: int
) -> Covariances:
    """Compute covariances of features within and between tasks and classes.

    Args:
      features: `[N, D]`, centered or not.
      tasks: `[N]` integers below `num_tasks`, the task of each sample.
      classes: `[N]` integers below `num_classes`, the class of each sample.
      num_tasks: number of tasks; some may have no samples.
      num_classes: number of classes; 1 if the samples of a task are drawn regardless of
        their class (label-sharing tasks).

    Returns:
      The covariances, `[D, D]` each.
    """
    chex.assert_rank(features, 2)
    weight = partner_weights(tasks, classes, num_tasks, num_classes)
    of_task = _group_means(features, weight, tasks, num_tasks)
    group = tasks * num_classes + classes
    of_class = _group_means(features, weight, group, num_tasks * num_classes)
    mean = weight @ features

    def covariance(deviation: Array) -> Array:
        return (weight[:, None] * deviation).T @ deviation

    return Covariances(
        total=covariance(features - mean),
        within_task=covariance(features - of_task),
        within_class=covariance(features - of_class),
        between_tasks=covariance(of_task - mean),
        between_classes=covariance(of_class - of_task),
    )


def _group_means(features: Array, weight: Array, group: Array, number: int) -> Array:
    """For each sample, the weighted mean of its group, `[N, D]`."""
    sums = jax.ops.segment_sum(weight[:, None] * features, group, number)
    return (sums / _filled(jax.ops.segment_sum(weight, group, number)))[group]


def _filled(mass: Array) -> Array:
    """Total weights `[G, 1]`, with 1 for empty groups, whose means are never used."""
    return jnp.where(mass > 0, mass, 1.0)[:, None]
