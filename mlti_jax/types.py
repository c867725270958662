"""The two pytrees that all parts exchange: a batch of samples and a task."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax

__all__ = ["Array", "Batch", "PyTree", "Task"]

Array = jax.Array
PyTree = Any


class Batch(flax.struct.PyTreeNode):
    """Labelled samples.

    Attributes:
      x: inputs, or hidden representations at some layer; every leaf `[N, ...]`.
      y: one-hot or soft labels `[N, C]`, or regression targets `[N, D]`.
      weight: `[N]`, 1 for samples that count and 0 for padding; None if all count.
    """

    x: PyTree
    y: Array
    weight: Array | None = None


class Task(flax.struct.PyTreeNode):
    """A few-shot task: learn from `support`, evaluate on `query`.

    Attributes:
      support: the support set, `[N_s, ...]`.
      query: the query set, `[N_q, ...]`.
      domain: scalar integer, the id of the source (sub-dataset, organ, assay) of the
        task. Tasks from different sources have different ids.
      groups: `[C]` integers, the index of each of the task's classes among the pool's
        groups (classes, or classes of a domain); None if unknown.
    """

    support: Batch
    query: Batch
    domain: Array
    groups: Array | None = None
