"""MetaAug (Rajendran et al. 2020), Meta-Learning Requires Meta-Augmentation.

The labels of a task are changed at random, in the same way in support and query, so
they cannot be predicted from x without the support set: classes are permuted, targets
shifted.

If labels already differ in meaning between tasks (non-label-sharing data), or if the
order of classes does not matter (metric-based learners), nothing changes: training is
then exactly vanilla.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy
from mlti_jax.strategies._mixing import check_setting
from mlti_jax.types import Array, Task


def metaaug(
    *,
    setting: str,
    shifts: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75),
    period: float | None = None,
) -> Strategy:
    """Change the labels of every task at random.

    Args:
      setting: `label_sharing` permutes classes, `regression` shifts targets,
        `non_label_sharing` changes nothing.
      shifts: the targets of a task are shifted by one of these; quarter turns in the
        authors' code for Pose. With a period, they are fractions of it.
      period: period of the targets, for example of angles; None if they have none.

    Examples:
      >>> metaaug(setting="non_label_sharing").relabel is None
      True
    """
    check_setting(setting)
    are_numbers = all(isinstance(shift, numbers.Real) for shift in shifts)
    if not shifts or not are_numbers or (period is not None and not period > 0):
        raise InputError(
            "metaaug needs at least one shift, a number, and a positive period, got "
            f"{shifts} and {period}"
        )
    if setting == "non_label_sharing":
        return Strategy(name="metaaug")

    def relabel(tasks: Task, key: Array) -> Task:
        keys = jax.random.split(key, tasks.domain.shape[0])
        if setting == "label_sharing":
            return jax.vmap(permute_classes)(tasks, keys)
        amounts = jnp.asarray(shifts) * (1.0 if period is None else period)
        draw = jax.random.choice
        return jax.vmap(lambda t, k: shift_targets(t, draw(k, amounts), period))(
            tasks, keys
        )

    return Strategy(name="metaaug", relabel=relabel)


def permute_classes(task: Task, key: Array) -> Task:
    """Permute the classes of one task, in the same way in support and query."""
    order = jax.random.permutation(key, task.support.y.shape[-1])
    return _with_labels(task, lambda y: y[:, order])


def shift_targets(task: Task, amount: Array, period: float | None = None) -> Task:
    r"""Shift the targets of one task to $(y + u) \bmod P$, in support and query."""

    def shifted(y: Array) -> Array:
        return y + amount if period is None else jnp.mod(y + amount, period)

    return _with_labels(task, shifted)


def _with_labels(task: Task, change: Callable[[Array], Array]) -> Task:
    support, query = task.support, task.query
    return task.replace(
        support=support.replace(y=change(support.y)),
        query=query.replace(y=change(query.y)),
    )
