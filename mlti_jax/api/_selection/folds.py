"""Folds over tasks: which tasks are held out together, and the data of each fold.

All folds share one array of samples and differ in the rows of `index` and `count`, so
a program that is compiled for one fold runs on the others too. For the same reason the
tasks of a fold have no names of their own: names are part of a compiled program's key.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax import data
from mlti_jax._internal.checks import check_range
from mlti_jax.data import ClassPool, DomainPool, Inputs, RegressionPool, Splits
from mlti_jax.data._own.inputs import with_statistics
from mlti_jax.data._own.targets import TargetScaling
from mlti_jax.data._pools import Pool
from mlti_jax.errors import InputError

LEAVE_ONE_OUT = 8  # up to this number of tasks, each is a fold of its own
_FOLDS = 6  # of more tasks
_WAYS = 5  # classes per task, if enough are available
_MIN_TASKS = 3


@dataclasses.dataclass(frozen=True)
class TaskSet:
    """All tasks of a dataset, to be divided into folds.

    Attributes:
      splits: the dataset; `train` has all tasks, the other pools are None.
      raw: samples before they were standardized; None if they were not.
      raw_targets: regression targets before; None if they were not standardized.
    """

    splits: Splits
    raw: np.ndarray | None = None
    raw_targets: np.ndarray | None = None

    @property
    def pool(self) -> Pool:
        """The pool of all tasks."""
        return self.splits.train

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks; of the classes, if tasks are drawn from classes."""
        pool = self.pool
        return pool.classes if isinstance(pool, ClassPool) else pool.domains

    @property
    def kind(self) -> str:
        """What is divided into folds, for messages."""
        return "classes" if isinstance(self.pool, ClassPool) else "tasks"

    def refit_splits(self) -> Splits:
        """Return the data to train on all tasks, standardized on all of them."""
        pool, inputs = self._standardised(np.arange(len(self.names)))
        return dataclasses.replace(self.splits, train=pool, inputs=inputs)

    def fold(self, held_out: Sequence[int], test: Sequence[int]) -> Splits:
        """Return the data of one fold.

        Statistics of samples are those of the training tasks.

        Args:
          held_out: positions of the tasks that must not be trained on.
          test: positions of those of them that form the test pool.
        """
        kept = np.setdiff1d(np.arange(len(self.names)), held_out)
        pool, inputs = self._standardised(kept)
        return dataclasses.replace(
            self.splits,
            train=_rows(pool, kept),
            test=_rows(pool, np.asarray(test)),
            inputs=inputs,
        )

    def subset(self, tasks: Sequence[int]) -> Pool:
        """Return the pool of some tasks."""
        return _rows(self.pool, np.asarray(tasks))

    def repeated_share(self) -> float:
        """Return the share of samples that also occur, bit for bit, in another task."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.pool.x)]
        index = np.asarray(self.pool.index).reshape(len(self.names), -1)
        width = self.pool.index.shape[-1]
        count = np.asarray(self.pool.count).reshape(len(self.names), -1)
        task_of: dict[bytes, int] = {}  # -1 for several
        found = []
        for task, (rows, sizes) in enumerate(zip(index, count, strict=True)):
            valid = np.arange(width) < sizes[:, None]
            for row in rows.reshape(-1, width)[valid]:
                sample = hashlib.blake2b(
                    b"".join(leaf[row].tobytes() for leaf in leaves), digest_size=16
                ).digest()
                found.append(sample)
                if task_of.setdefault(sample, task) != task:
                    task_of[sample] = -1
        return float(np.mean([task_of[sample] < 0 for sample in found]))

    def _standardised(self, kept: np.ndarray) -> tuple[Pool, Inputs | None]:
        """Return the pool of all tasks with the statistics of some of them."""
        inputs = self.splits.inputs
        if inputs is None or (self.raw is None and self.raw_targets is None):
            return self.pool, inputs
        part = _rows(self.pool, kept)
        index = np.asarray(part.index).reshape(-1, part.index.shape[-1])
        count = np.asarray(part.count).reshape(-1)
        rows = np.unique(
            np.concatenate([r[:n] for r, n in zip(index, count, strict=True)])
        )
        changes: dict[str, Any] = {}
        if self.raw is not None:
            inputs, _ = with_statistics(inputs, self.raw[rows])
            changes["x"] = jnp.asarray(inputs.standardise(self.raw))
        if self.raw_targets is not None:
            scaling = TargetScaling.of(self.raw_targets[rows])
            inputs = dataclasses.replace(inputs, targets=scaling)
            changes["y"] = jnp.asarray(scaling.standardise(self.raw_targets))
        return dataclasses.replace(self.pool, **changes), inputs


def gather_tasks(tasks: Splits | Mapping[str, Any]) -> TaskSet:
    """Return all tasks of a dataset: training, validation and test together."""
    if isinstance(tasks, Mapping):
        tasks = data.from_arrays(tasks, test=None)
    if not isinstance(tasks, Splits):
        raise InputError(
            f"tasks is of type {type(tasks).__name__}; expected a dictionary for "
            "mlti_jax.data.from_arrays, or the Splits that it returns"
        )
    pools = [
        pool for pool in (tasks.train, tasks.validation, tasks.test) if pool is not None
    ]
    pool = _concatenate(pools)
    inputs, raw, targets = tasks.inputs, None, None
    if inputs is not None and inputs.mean:
        scaled = np.asarray(pool.x, np.float64)
        raw = scaled * np.array(inputs.scale) + np.array(inputs.mean)
    if inputs is not None and inputs.targets.scale and isinstance(pool, RegressionPool):
        targets = inputs.targets.restore(np.asarray(pool.y))
    splits = dataclasses.replace(tasks, train=pool, validation=None, test=None)
    return TaskSet(splits, raw, targets)


def _concatenate(pools: Sequence[Pool]) -> Pool:
    """Join pools of one kind; raise `InputError` if their classes differ."""
    first = pools[0]
    shared = {pool.classes for pool in pools if isinstance(pool, DomainPool)}
    if len(shared) > 1:
        raise InputError(
            f"the splits do not share their classes: {' and '.join(map(str, shared))}; "
            "give all of them the same classes"
        )
    sizes = [jax.tree.leaves(pool.x)[0].shape[0] for pool in pools]
    starts = np.cumsum([0, *sizes[:-1]])
    longest = max(pool.index.shape[-1] for pool in pools)
    index = []
    for pool, start in zip(pools, starts, strict=True):
        rows = np.asarray(pool.index) + start
        padding = [(0, 0)] * (rows.ndim - 1) + [(0, longest - rows.shape[-1])]
        index.append(np.pad(rows, padding, mode="edge"))
    changes: dict[str, Any] = {
        "x": jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves), *(p.x for p in pools)
        )
        if len(pools) > 1
        else first.x,
        "index": jnp.asarray(np.concatenate(index), jnp.int32),
        "count": jnp.concatenate([pool.count for pool in pools]),
    }
    field = "classes" if isinstance(first, ClassPool) else "domains"
    names = tuple(name for pool in pools for name in getattr(pool, field))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{field[:-1]} {twice!r} occurs in several splits, so folds would share "
            "it; rename one of them, or remove it"
        )
    changes[field] = names
    if isinstance(first, RegressionPool):
        targets = [pool.y for pool in pools if isinstance(pool, RegressionPool)]
        changes["y"] = jnp.concatenate(targets)
    return dataclasses.replace(first, **changes)


def _rows(pool: Pool, kept: np.ndarray) -> Pool:
    """Return some of the tasks of a pool, numbered instead of named."""
    field = "classes" if isinstance(pool, ClassPool) else "domains"
    changes: dict[str, Any] = {
        "index": pool.index[kept],
        "count": pool.count[kept],
        field: tuple(str(number) for number in range(len(kept))),
    }
    return dataclasses.replace(pool, **changes)


# --------------------------------------------------------------------------- division


def choose_ways(tasks: TaskSet, ways: int | None, folds: int | None) -> int | None:
    """Return the classes per task such that every test fold can have as many.

    Five, or fewer if the classes do not suffice for `folds` (at least three) folds;
    None if the data determines it.
    """
    if ways is not None or not isinstance(tasks.pool, ClassPool):
        return ways
    return max(2, min(_WAYS, len(tasks.names) // max(3, folds or 3)))


def make_folds(
    tasks: TaskSet, folds: int | None, ways: int | None, *, nested: bool, seed: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Divide tasks into folds whose sizes differ by at most one.

    Args:
      tasks: all tasks.
      folds: number of folds; None: every task is a fold of its own up to 8 tasks,
        else 6 folds; of classes at most 6, each with enough classes for a task.
      ways: classes per task, for data whose tasks are drawn from classes.
      nested: whether folds are also needed within the training part of a fold.
      seed: seed of the division.

    Returns:
      The positions of the tasks of each fold.

    Raises:
      InputError: if the tasks do not suffice.
    """
    number, kind = len(tasks.names), tasks.kind
    classes = isinstance(tasks.pool, ClassPool)
    smallest = (ways or 2) if classes else 1
    possible = number // smallest
    fewest = 3 if nested else 2
    needs = f", of which each needs {smallest} classes for a task" if classes else ""
    if folds is not None:
        check_range("folds", folds, 1000, smallest=2)
        if folds > possible:
            raise InputError(
                f"folds is {folds}{needs}, but the data has only {number} {kind}; "
                f"expected at most {possible}"
            )
    if number < _MIN_TASKS or possible < fewest:
        lower = "; or set ways to a smaller number" if classes else ""
        raise InputError(
            f"the data has {number} {kind}{needs}; cross-validation needs at least "
            f"{max(fewest * smallest, _MIN_TASKS)}: collect more{lower}"
        )
    if folds is None:
        alone = not classes and number <= LEAVE_ONE_OUT
        folds = number if alone else min(_FOLDS, possible)
    if folds < fewest:
        raise InputError(
            f"folds is {folds}, but the estimate for new tasks needs folds within the "
            "training part of each fold; set folds to 3 or more, or nested=False"
        )
    order = np.arange(number)
    if folds < number:
        order = np.random.default_rng(seed).permutation(number)
    return tuple(tuple(sorted(map(int, part))) for part in np.array_split(order, folds))
