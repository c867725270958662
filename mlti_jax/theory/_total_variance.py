r"""Variance within tasks and across them (App. B.3).

With centred features the regulariser is that of a partner's covariance: over all tasks
in MLTI, within the sample's own task if tasks are augmented one by one. With the
partner's task G, the law of total variance says

.. math:: \mathrm{Cov}(h) = \mathrm{E}[\mathrm{Cov}(h \mid G)]
  + \mathrm{Cov}(\mathrm{E}[h \mid G]) \succeq \mathrm{E}[\mathrm{Cov}(h \mid G)].

The right-hand side is a mean over tasks. A sample of task i is augmented with that of
its own task, :math:`\mathrm{Cov}(h \mid G = i)`, which may well be the largest in the
direction of its own head. So the comparison holds on average, for one head (and equal
factors psi), not for every task. It says nothing for ProtoNet, whose partners count
relative to their own prototypes, see `metric_based.py`.
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

    A partner is drawn as a task, one of its classes, a sample of it.

    Attributes:
      total: over all tasks, as in MLTI.
      within_task: mean over tasks of the covariance in a task, as in the augmentation
        of each task alone.
      within_class: mean over tasks and their classes of the covariance in a class.
      between_tasks: of the tasks' means; `total - within_task`, by the law of total
        variance, and positive semi-definite.
      between_classes: mean over tasks of the covariance of its classes' means;
        `within_task - within_class`.
    """

    total: Array
    within_task: Array
    within_class: Array
    between_tasks: Array
    between_classes: Array


def covariances(
    features: Array, tasks: Array, classes: Array, num_tasks: int, num_classes: int
) -> Covariances:
    """All covariances of features within and between tasks and classes.

    Args:
      features: `[N, D]`, centred or not.
      tasks: `[N]` integers, the task of each sample.
      classes: `[N]` integers, its class.
      num_tasks: how many numbers tasks may have; some may have no samples.
      num_classes: how many numbers classes may have; 1 where samples of a task are
        drawn without regard to classes (label-sharing tasks).
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
    """1 for groups without samples, `[G, 1]`; their means are used by no one."""
    return jnp.where(mass > 0, mass, 1.0)[:, None]
