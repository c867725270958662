"""MetaAug (Rajendran et al. 2020), Meta-Learning Requires Meta-Augmentation.

Labels of a task are changed at random, alike in support and query, so that they can't
be told from x without the support set: classes are permuted, targets shifted.

Where labels already mean something else in every task (non-label-sharing data), or
where numbers of classes do not matter (metric-based learners), there is nothing to do:
training is then vanilla, to the digit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy
from mlti_jax.types import Array, Task

LABELS = ("permute", "shift", "as_drawn")


def metaaug(
    *,
    labels: str = "permute",
    shifts: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75),
    period: float | None = None,
) -> Strategy:
    """Other labels for every task.

    Args:
      labels: `permute` classes, `shift` targets, or leave them `as_drawn`.
      shifts: a task's targets are shifted by one of these; a quarter turn each in the
        authors' code for Pose. With a period, they are parts of it.
      period: targets are taken modulo this, as angles are; None for no such thing.
    """
    if labels not in LABELS:
        raise unknown_name("way of labels", labels, LABELS)
    if not shifts or (period is not None and not period > 0):
        raise InputError(
            f"metaaug needs at least one shift and a positive period, got {shifts} and "
            f"{period}"
        )
    if labels == "as_drawn":
        return Strategy(name="metaaug")

    def relabel(tasks: Task, key: Array) -> Task:
        keys = jax.random.split(key, tasks.domain.shape[0])
        if labels == "permute":
            return jax.vmap(permute_classes)(tasks, keys)
        amounts = jnp.asarray(shifts) * (1.0 if period is None else period)
        draw = jax.random.choice
        return jax.vmap(lambda t, k: shift_targets(t, draw(k, amounts), period))(
            tasks, keys
        )

    return Strategy(name="metaaug", relabel=relabel)


def permute_classes(task: Task, key: Array) -> Task:
    """Gives the classes of one task a random order, alike in support and query."""
    order = jax.random.permutation(key, task.support.y.shape[-1])
    return _with_labels(task, lambda y: y[:, order])


def shift_targets(task: Task, amount: Array, period: float | None = None) -> Task:
    r"""Targets :math:`(y + u) \bmod P` of one task, alike in support and query."""

    def shifted(y):
        return y + amount if period is None else jnp.mod(y + amount, period)

    return _with_labels(task, shifted)


def _with_labels(task: Task, change) -> Task:
    support, query = task.support, task.query
    return task.replace(
        support=support.replace(y=change(support.y)),
        query=query.replace(y=change(query.y)),
    )
