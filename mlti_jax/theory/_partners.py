"""Probability that a sample is drawn as a partner."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from mlti_jax.types import Array


def partner_weights(
    tasks: Array, classes: Array, num_tasks: int, num_classes: int
) -> Array:
    r"""Probability of each sample if a task, then a class, then a sample is drawn.

    $$w_n = \frac{1}{|I|}\,\frac{1}{R_i}\,\frac{1}{N_{i,r}}$$

    for sample $n$ of class $r$ in task $i$, where task $i$ has $R_i$ classes and class
    $r$ has $N_{i,r}$ samples in it. With a single class, samples of a task are drawn
    uniformly. Tasks and classes without samples are never drawn.

    Args:
      tasks: `[N]` integers below `num_tasks`, the task of each sample.
      classes: `[N]` integers below `num_classes`, the class of each sample.
      num_tasks: number of tasks.
      num_classes: number of classes.

    Returns:
      `[N]`, with sum 1.
    """
    chex.assert_equal_shape([tasks, classes])
    chex.assert_rank(tasks, 1)
    group = tasks * num_classes + classes
    ones = jnp.ones(group.shape, float)
    count = jax.ops.segment_sum(ones, group, num_tasks * num_classes)
    num_present = jnp.sum(count.reshape(num_tasks, num_classes) > 0, axis=1)
    return 1 / (jnp.sum(num_present > 0) * num_present[tasks] * count[group])


def class_weights(y: Array, by_class: bool = True) -> Array:
    """`partner_weights` for tasks of equal size with labels 0 or 1.

    Args:
      y: labels `[I, N]`.
      by_class: whether a class is drawn before a sample of it.

    Returns:
      `[I * N]`, with sum 1.
    """
    num_tasks, num_samples = y.shape
    tasks = jnp.repeat(jnp.arange(num_tasks), num_samples)
    if not by_class:
        return partner_weights(tasks, jnp.zeros_like(tasks), num_tasks, 1)
    return partner_weights(tasks, y.reshape(-1).astype(jnp.int32), num_tasks, 2)
