"""The two pytrees that everything exchanges: a batch of samples, and a task."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax

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
    """A few-shot task: learn from `support`, be judged on `query`.

    Attributes:
      support: the support set, `[N_s, ...]`.
      query: the query set, `[N_q, ...]`.
      domain: scalar integer, the source (sub-dataset, organ, assay) that the task was
        drawn from. Tasks that are no two of one source carry different numbers.
      groups: `[C]` integers, which of the pool's groups (classes, or classes of a
        domain) the task's classes are; None where nobody knows.
    """

    support: Batch
    query: Batch
    domain: Array
    groups: Array | None = None
