"""The two pytrees that all modules exchange: a batch of samples, and a task."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax

__all__ = ["Array", "Batch", "PyTree", "Task"]

Array = jax.Array
PyTree = Any


class Batch(flax.struct.PyTreeNode):
    """Labeled samples.

    Attributes:
      x: inputs, or hidden representations at some layer; every leaf `[N, ...]`.
      y: one-hot or soft labels `[N, C]`, or regression targets `[N, D]`.
      weight: `[N]`, 1 for samples that count and 0 for padding; None if all count.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax.types import Batch
      >>> batch = Batch(x=jnp.zeros((4, 28, 28, 1)), y=jnp.eye(4))
      >>> batch.replace(weight=jnp.ones(4)).weight.shape
      (4,)
    """

    x: PyTree
    y: Array
    weight: Array | None = None


class Task(flax.struct.PyTreeNode):
    """A few-shot task: learn from `support`, evaluate on `query`.

    A meta-batch of B tasks is one `Task` whose leaves have a leading axis `[B, ...]`.

    Attributes:
      support: the support set, `[N_s, ...]`.
      query: the query set, `[N_q, ...]`.
      domain: scalar integer, id of the source (sub-dataset, organ, assay) of the task.
        Tasks from different sources have different ids.
      groups: `[C]` integers, which of the pool's groups (its classes, or the classes of
        one domain) the task's classes are; None if unknown.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax.types import Batch, Task
      >>> batch = Batch(x=jnp.zeros((4, 7)), y=jnp.eye(4))
      >>> task = Task(support=batch, query=batch, domain=jnp.int32(0))
      >>> meta_batch = jax.tree.map(lambda a, b: jnp.stack([a, b]), task, task)
      >>> meta_batch.support.x.shape
      (2, 4, 7)
    """

    support: Batch
    query: Batch
    domain: Array
    groups: Array | None = None
