"""An estimate of the memory of a training step, to refuse what cannot run."""

from __future__ import annotations

import math
from typing import Any

import jax

from mlti_jax._internal.memory import device_memory, format_bytes
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.types import PyTree


def check_memory(needed: int, devices: int) -> None:
    """Raise `InputError` if a step needs more memory than a device has.

    Args:
      needed: bytes per device, see `step_bytes`.
      devices: number of devices that share the step.
    """
    available = device_memory(devices)
    if available is not None and needed > available:
        raise InputError(
            f"a training step needs at least {format_bytes(needed)} of memory, and "
            f"this machine has {format_bytes(available)} for it; lower "
            "train.meta_batch_size, the size of tasks (task.ways, task.shots, "
            "task.queries) or the size of the network"
        )


def step_bytes(
    learner: Learner,
    state: PyTree,
    variables: Variables,
    sets: tuple[PyTree, ...],
    tasks: int,
    tasks_at_once: int,
    interpolates: bool,
) -> int:
    """Return a lower bound of the memory that a training step needs, in bytes.

    Counts the state and the gradient; the samples of all tasks, with those of their
    partners and the mixed ones if tasks are interpolated; and for the tasks that run at
    once, the outputs of all layers before and after their activation, which the
    backward pass needs.

    Args:
      learner: the learner.
      state: shapes of the training state.
      variables: shapes of the learner's variables.
      sets: shapes of the samples of one task, support and query, leaves `[N, ...]`.
      tasks: number of tasks that a device draws.
      tasks_at_once: number of tasks that a device runs at a time.
      interpolates: whether the strategy interpolates tasks.
    """
    copies = 3 if interpolates else 1
    gradient = tree_bytes(variables.params)
    return (
        tree_bytes(state)
        + gradient
        + tasks * copies * tree_bytes(sets)
        + tasks_at_once
        * 2
        * sum(_activation_bytes(learner, variables, x) for x in sets)
    )


def _activation_bytes(learner: Learner, variables: Variables, x: PyTree) -> int:
    """Return the size of the outputs of all layers for the samples of one set."""

    def outputs(params: PyTree, state: PyTree, h: PyTree) -> list[PyTree]:
        found = []
        for index in range(len(learner.stack)):
            h, _ = learner.stack.apply(params, state, h, index, index + 1)
            found.append(h)
        return found

    model = variables.params["model"]
    return tree_bytes(jax.eval_shape(outputs, model, variables.state, x))


def tree_bytes(tree: PyTree) -> int:
    """Return the size of all arrays of a tree; exact integers of any size."""
    return sum(
        math.prod(leaf.shape) * _itemsize(leaf.dtype) for leaf in jax.tree.leaves(tree)
    )


def _itemsize(dtype: Any) -> int:
    return getattr(dtype, "itemsize", 8)  # keys have no NumPy dtype
