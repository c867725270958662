"""Pools of samples, and the sampling of tasks from them.

A pool stores every sample once, in `x`, and lists the rows of `x` per group (a class,
a class of a domain, an object). Groups may differ in size: the lists are padded, and
`count` is the number of valid entries. One kind of pool per setting of the paper:
`DomainPool` (label-sharing), `ClassPool` (non-label-sharing) and `RegressionPool`.

`sample_task` and `sample_batch` are pure functions for one task and one batch. Their
cost does not depend on the size of a group, so they belong inside the jitted training
step. Pass the pool to that step as an argument: a pool in a closure becomes a constant
of the compiled program.

Sampling has two parts: `draw_rows` draws rows of `x` from the small arrays of a pool,
and `take_rows` reads them. So a task is the same wherever `x` is: on the device, in the
memory of the host, or in files (see `_placement`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax.data._records import Records
from mlti_jax.data._user_arrays import (
    as_ids,
    as_rows,
    check_magnitude,
    check_samples,
    check_values,
    group_rows,
)
from mlti_jax.errors import InputError
from mlti_jax.types import Array, Batch, PyTree, Task


@flax.struct.dataclass
class DomainPool:
    """Domains that share one label space (label-sharing setting).

    Attributes:
      x: samples, `[M, ...]`.
      index: rows of `x` per domain and class, int32 `[D, C, K]`, padded.
      count: number of valid entries among the K, int32 `[D, C]`.
      domains: names of the D domains.
      classes: names of the C classes.
    """

    x: PyTree
    index: Array
    count: Array
    domains: tuple[str, ...] = flax.struct.field(pytree_node=False)
    classes: tuple[str, ...] = flax.struct.field(pytree_node=False)

    @classmethod
    def from_arrays(
        cls,
        x: PyTree,
        domain: np.ndarray,
        label: np.ndarray,
        *,
        row: np.ndarray | None = None,
        domains: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> DomainPool:
        """Build the pool from NumPy arrays.

        Args:
          x: samples, every leaf `[M, ...]`.
          domain: `[M]`, the domain of each sample: integers or names.
          label: `[M]`, the class of each sample: integers or names.
          row: `[N]`, for samples that occur in several domains: the row of x that each
            of the N entries of `domain` and `label` is about. None: entry i is about
            row i.
          domains: names of all domains; `domain` then holds names or positions in
            this list. None: the sorted distinct values of `domain`.
          classes: the same for `label`. Required if a pool may lack a class of another
            pool, since the two would number their classes differently.

        Raises:
          InputError: if an array has the wrong shape, dtype or values.
        """
        samples = check_samples(x)
        size = samples if row is None else len(row)
        domain, domains = as_ids("domain", domain, domains, size)
        label, classes = as_ids("label", label, classes, size)
        group = domain * len(classes) + label
        index, count = group_rows(group, len(domains) * len(classes))
        if row is not None:
            index = as_rows(row, samples)[index]
        shape = (len(domains), len(classes))
        index, count = index.reshape(*shape, -1), count.reshape(shape)
        return cls(_store(x), jnp.asarray(index), jnp.asarray(count), domains, classes)

    def _draw_groups(self, bits: Array, ways: int) -> tuple[Array, Array]:
        domain = _below(bits[0], len(self.domains))
        return domain, domain * ways + jnp.arange(ways)

    def _group_name(self, group: int) -> str:
        domain, label = divmod(group, len(self.classes))
        return f"class {self.classes[label]!r} of domain {self.domains[domain]!r}"

    def _check_ways(self, ways: int) -> None:
        if ways != len(self.classes):
            raise InputError(
                f"ways is {ways}, but the domains share {len(self.classes)} classes and"
                f" a task has all of them; set ways={len(self.classes)}"
            )


@flax.struct.dataclass
class ClassPool:
    """Classes from which tasks draw N ways (non-label-sharing setting).

    Attributes:
      x: samples, `[M, ...]`.
      index: rows of `x` per class, int32 `[C, K]`, padded.
      count: number of valid entries among the K, int32 `[C]`.
      classes: names of the C classes.
    """

    x: PyTree
    index: Array
    count: Array
    classes: tuple[str, ...] = flax.struct.field(pytree_node=False)

    @classmethod
    def from_arrays(
        cls,
        x: PyTree,
        label: np.ndarray,
        *,
        classes: Sequence[str] | None = None,
    ) -> ClassPool:
        """Build the pool from NumPy arrays; arguments as in `DomainPool`."""
        size = check_samples(x)
        label, classes = as_ids("label", label, classes, size)
        index, count = group_rows(label, len(classes))
        return cls(_store(x), jnp.asarray(index), jnp.asarray(count), classes)

    def _draw_groups(self, bits: Array, ways: int) -> tuple[Array, Array]:
        # Classes have no domain: 31 random bits give each task its own id.
        domain = (bits[0] >> 1).astype(jnp.int32)
        return domain, _draw(bits[1:], jnp.int32(len(self.classes)))

    def _group_name(self, group: int) -> str:
        return f"class {self.classes[group]!r}"

    def _check_ways(self, ways: int) -> None:
        if ways > len(self.classes):
            raise InputError(
                f"ways is {ways}, but the pool has only {len(self.classes)} classes;"
                f" set ways to at most {len(self.classes)}"
            )


@flax.struct.dataclass
class RegressionPool:
    """Objects with real-valued targets, one task per object (regression setting).

    Attributes:
      x: samples, `[M, ...]`.
      y: targets, float32 `[M, Dy]`.
      index: rows of `x` and `y` per object, int32 `[D, K]`, padded.
      count: number of valid entries among the K, int32 `[D]`.
      domains: names of the D objects.
    """

    x: PyTree
    y: Array
    index: Array
    count: Array
    domains: tuple[str, ...] = flax.struct.field(pytree_node=False)

    @classmethod
    def from_arrays(
        cls,
        x: PyTree,
        y: np.ndarray,
        domain: np.ndarray,
        *,
        domains: Sequence[str] | None = None,
    ) -> RegressionPool:
        """Build the pool from NumPy arrays; y `[M, Dy]`, others as in `DomainPool`."""
        size = check_samples(x)
        y = check_values("y", y)
        if y.ndim != 2 or len(y) != size or y.shape[1] == 0:
            raise InputError(
                f"y has shape {list(y.shape)}; expected [{size}, Dy], one row for each"
                " sample. For a single target use y[:, None]"
            )
        check_magnitude("y", y)
        domain, domains = as_ids("domain", domain, domains, size)
        index, count = group_rows(domain, len(domains))
        return cls(
            _store(x),
            jnp.asarray(y, jnp.float32),
            jnp.asarray(index),
            jnp.asarray(count),
            domains,
        )

    def _draw_groups(self, bits: Array, ways: int) -> tuple[Array, Array]:
        domain = _below(bits[0], len(self.domains))
        return domain, domain[None]

    def _group_name(self, group: int) -> str:
        return f"domain {self.domains[group]!r}"

    def _check_ways(self, ways: int) -> None:
        if ways != 1:
            raise InputError(
                f"ways is {ways}, but regression has no classes; set ways=1"
            )


Pool = DomainPool | ClassPool | RegressionPool


def sample_task(
    pool: Pool, key: Array, *, ways: int, shots: int, queries: int | None
) -> Task:
    """Draw one task without repeating a sample.

    Args:
      pool: the samples. From a `DomainPool` one domain is drawn, and label c is class
        c in every task. From a `ClassPool` `ways` classes are drawn in random order,
        so labels differ in meaning between tasks. From a `RegressionPool` one object
        is drawn.
      key: random key.
      ways: classes N of the task; 1 for regression.
      shots: support samples per class.
      queries: query samples per class; None for all remaining ones. Classes are then
        padded to the largest of the pool, and `query.weight` is 0 for padding.

    Returns:
      A task with `ways * shots` support and `ways * queries` query samples, both
      ordered by class, with y one-hot `[N, ways]` (regression: `[N, Dy]`). uint8
      inputs become float32 in [0, 1]. Group sizes are not checked here, since counts
      are traced under `jit`: call `check_episode` once before.
    """
    rows = draw_rows(pool, key, ways=ways, shots=shots, queries=queries)
    return take_rows(pool.x, rows)


def draw_rows(
    pool: Pool, key: Array, *, ways: int, shots: int, queries: int | None
) -> Task:
    """Draw the task of `sample_task`, with rows of `pool.x` in place of samples.

    Everything else is that of the task. `pool.x` is not used and may be None.
    """
    pool._check_ways(ways)
    drawn = shots if queries is None else shots + queries
    # One call for all random numbers, since each call has a fixed cost.
    bits = jax.random.bits(key, (1 + ways + ways * drawn,))
    domain, group = pool._draw_groups(bits[: 1 + ways], ways)
    count = pool.count.reshape(-1)[group]
    position = _draw(bits[1 + ways :].reshape(ways, drawn), count)

    support = _rows_at(pool, group, position[:, :shots])
    if queries is not None:
        query = _rows_at(pool, group, position[:, shots:])
        return Task(support, query, domain, group)
    left = pool.index.shape[-1] - shots
    query = _rows_at(pool, group, _complement(position, left))
    weight = jnp.arange(left) < (count - shots)[:, None]
    query = query.replace(weight=weight.reshape(-1).astype(jnp.float32))
    return Task(support, query, domain, group)


def sample_batch(pool: Pool, key: Array, batch_size: int) -> Batch:
    """Draw labeled samples independently and uniformly from the whole pool.

    Args:
      pool: the samples.
      key: random key.
      batch_size: number of samples N.

    Returns:
      A batch with y one-hot over all classes of the pool, `[N, C]`, or targets
      `[N, Dy]`.
    """
    rows = _draw_batch_rows(pool, key, batch_size)
    return rows.replace(x=take_inputs(pool.x, rows.x))


def _draw_batch_rows(pool: Pool, key: Array, batch_size: int) -> Batch:
    """Draw the batch of `sample_batch`, with rows of `pool.x` in place of samples."""
    end = jnp.cumsum(pool.count.reshape(-1))
    sample = _below(jax.random.bits(key, (batch_size,)), end[-1])
    group = jnp.searchsorted(end, sample, side="right")
    position = sample - (end - pool.count.reshape(-1))[group]
    rows = pool.index.reshape(-1, pool.index.shape[-1])[group, position]
    if isinstance(pool, RegressionPool):
        return Batch(rows, pool.y[rows])
    classes = len(pool.classes)
    return Batch(rows, jax.nn.one_hot(group % classes, classes))


def sample_flat(
    pool: Pool, key: Array, *, ways: int, shots: int, queries: int | None
) -> Task:
    """Draw a flat batch in the form of a task, for learners without episodes.

    Args:
      pool: the samples.
      key: random key.
      ways: number of classes of a task. The batch has as many samples as a task,
        `ways * (shots + queries)`.
      shots: support samples per class of a task.
      queries: query samples per class of a task.

    Returns:
      A task with an empty support set. The query set is drawn with `sample_batch`, so
      it is labeled over all classes of the pool.

    Raises:
      InputError: if `queries` is None.
    """
    rows = draw_flat_rows(pool, key, ways=ways, shots=shots, queries=queries)
    return take_rows(pool.x, rows)


def draw_flat_rows(
    pool: Pool, key: Array, *, ways: int, shots: int, queries: int | None
) -> Task:
    """Draw the batch of `sample_flat`, with rows of `pool.x` in place of samples."""
    if queries is None:
        raise InputError(
            "queries is None, but the size of a flat batch depends on it; set"
            " task.queries to an integer"
        )
    batch = _draw_batch_rows(pool, key, ways * (shots + queries))
    empty = jax.tree.map(lambda leaf: leaf[:0], batch)
    return Task(support=empty, query=batch, domain=jnp.int32(0))


def check_episode(pool: Pool, *, ways: int, shots: int, queries: int | None) -> None:
    """Raise `InputError` if tasks of this size can't be drawn from the pool."""
    sizes = {"ways": ways, "shots": shots, "queries": queries}
    for field, value in sizes.items():
        if field == "queries" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"{field} is {value!r}; expected an integer")
        if value < 1:
            raise InputError(f"{field} is {value}; expected 1 or more")
    if ways == 1 and not isinstance(pool, RegressionPool):
        raise InputError("ways is 1; expected at least 2 classes to tell apart")
    pool._check_ways(ways)
    count = np.asarray(pool.count).reshape(-1)
    smallest = int(count.argmin())
    needed = shots + (1 if queries is None else queries)
    if count[smallest] < needed:
        wanted = f"shots={shots} and " + (
            "at least one query" if queries is None else f"queries={queries}"
        )
        lower = "shots" if queries is None else "shots or queries"
        raise InputError(
            f"{pool._group_name(smallest)} has {count[smallest]} samples, but {wanted}"
            f" take {needed}; lower {lower} to {count[smallest]} in all, or use a"
            " dataset with more samples"
        )


def _below(bits: Array, bound: Array | int) -> Array:
    """Integers in `[0, bound)` from 32 random bits each.

    Some remainders are more likely than others by a factor of `1 + bound / 2^32`,
    which is negligible for the size of any pool.
    """
    return (bits % jnp.asarray(bound, jnp.uint32)).astype(jnp.int32)


def _draw(bits: Array, count: Array) -> Array:
    """The first k entries of a random permutation of `range(count)`.

    A Fisher-Yates shuffle swaps entry i with a random entry `swap[i] >= i`, for i from
    0 to k - 1. The final entry i is found by undoing the swaps: the entry at position
    p after swap j was at position j before it if p is `swap[j]`, and at p otherwise.
    This takes k^2 comparisons, independent of `count`.

    Args:
      bits: random bits, `[..., k]`.
      count: `[...]`, at least k.

    Returns:
      Distinct integers, `[..., k]`; all ordered selections are equally likely.
    """
    step = jnp.arange(bits.shape[-1])
    swap = step + _below(bits, count[..., None] - step)

    def undo_swap(i: Array, position: Array) -> Array:
        j = bits.shape[-1] - 2 - i
        target = jax.lax.dynamic_index_in_dim(swap, j, axis=-1)
        return jnp.where((step > j) & (position == target), j, position)

    return jax.lax.fori_loop(0, bits.shape[-1] - 1, undo_swap, swap)


def _complement(drawn: Array, number: int) -> Array:
    """The smallest non-negative integers that are not in `drawn`: `[..., number]`."""
    # The s-th smallest drawn integer has `drawn - s` remaining integers before it; the
    # j-th remaining integer follows all drawn ones for which that number is at most j.
    before = jnp.sort(drawn, axis=-1) - jnp.arange(drawn.shape[-1])
    left = jnp.arange(number)
    return left + jnp.sum(before[..., None, :] <= left[:, None], axis=-1)


def _rows_at(pool: Pool, group: Array, position: Array) -> Batch:
    """The rows at `position [ways, n]` of each `group [ways]`, ordered by class."""
    ways, number = position.shape
    index = pool.index.reshape(-1, pool.index.shape[-1])
    rows = index[group[:, None], position].reshape(-1)
    if isinstance(pool, RegressionPool):
        return Batch(rows, pool.y[rows])
    return Batch(rows, jnp.repeat(jnp.eye(ways), number, axis=0))


def take_rows(x: PyTree, task: Task) -> Task:
    """Replace the rows in a task of `draw_rows` with the samples."""
    return _map_x(lambda rows: take_inputs(x, rows), task)


def read_rows(x: PyTree, task: Task) -> Task:
    """Do the same on the host, without converting the samples (see `task_inputs`)."""
    return _map_x(lambda rows: jax.tree.map(lambda leaf: leaf[rows], x), task)


@jax.jit  # Division by a constant differs from that of a single operation.
def task_inputs(task: Task) -> Task:
    """Convert the samples of a task like `take_inputs`; any leading axes."""
    return _map_x(lambda x: take_inputs(x, ...), task)


def _map_x(function: Callable[[PyTree], PyTree], task: Task) -> Task:
    support, query = task.support, task.query
    return task.replace(
        support=support.replace(x=function(support.x)),
        query=query.replace(x=function(query.x)),
    )


def take_inputs(x: PyTree, rows: Array | slice | EllipsisType) -> PyTree:
    """Gather rows of x and converts them to the types that networks expect."""

    def take(leaf: Array) -> Array:
        leaf = leaf[rows]
        if leaf.dtype == jnp.uint8:
            return leaf.astype(jnp.float32) / 255
        # Integers are not converted: they index a table of embeddings.
        return leaf if leaf.dtype == jnp.int32 else leaf.astype(jnp.float32)

    return jax.tree.map(take, x)


def shapes_of(x: PyTree) -> PyTree:
    """Return shapes and dtypes of samples, wherever they are."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)


# Whether `from_arrays` leaves the samples where they are, for `_placement.place`.
_DEFERRED = contextvars.ContextVar("deferred", default=False)


@contextlib.contextmanager
def samples_stay() -> Iterator[None]:
    """Build pools whose samples are not copied to the device."""
    token = _DEFERRED.set(True)
    try:
        yield
    finally:
        _DEFERRED.reset(token)


def samples_are_deferred() -> bool:
    """Whether the context `samples_stay` is open."""
    return _DEFERRED.get()


def _store(x: PyTree) -> PyTree:
    if not _DEFERRED.get():
        return jax.tree.map(jnp.asarray, x)

    def on_host(leaf: Any) -> Any:
        if isinstance(leaf, Records):
            return leaf
        # The dtype that the array would have on the device
        return np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))

    return jax.tree.map(on_host, x)
