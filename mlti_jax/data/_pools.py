"""Pools of samples, and the sampling of tasks from them.

A pool stores every sample once, in `x`, and lists the rows of `x` per group (a class,
a class of a domain, an object). Groups may differ in size: the lists are padded, and
`count` is the number of valid entries. One kind of pool per setting of the paper:
`DomainPool` (label-sharing), `ClassPool` (non-label-sharing) and `RegressionPool`.

`sample_task` and `sample_batch` are pure functions for one task and one batch. Their
cost does not depend on the size of a group, so they belong inside the jitted training
step. Pass the pool to that step as an argument: a pool in a closure becomes a constant
of the compiled program.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax.data._user_arrays import (
    as_ids,
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
        domains: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> DomainPool:
        """Build the pool from NumPy arrays.

        Args:
          x: samples, every leaf `[M, ...]`.
          domain: `[M]`, the domain of each sample: integers or names.
          label: `[M]`, the class of each sample: integers or names.
          domains: names of all domains; `domain` then holds names or positions in
            this list. None: the sorted distinct values of `domain`.
          classes: the same for `label`. Required if a pool may lack a class of another
            pool, since the two would number their classes differently.

        Raises:
          InputError: if an array has the wrong shape, dtype or values.
        """
        size = check_samples(x)
        domain, domains = as_ids("domain", domain, domains, size)
        label, classes = as_ids("label", label, classes, size)
        group = domain * len(classes) + label
        index, count = group_rows(group, len(domains) * len(classes))
        shape = (len(domains), len(classes))
        index, count = index.reshape(*shape, -1), count.reshape(shape)
        return cls(
            _to_device(x), jnp.asarray(index), jnp.asarray(count), domains, classes
        )

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
        return cls(_to_device(x), jnp.asarray(index), jnp.asarray(count), classes)

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
            _to_device(x),
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
    pool._check_ways(ways)
    drawn = shots if queries is None else shots + queries
    # One call for all random numbers, since each call has a fixed cost.
    bits = jax.random.bits(key, (1 + ways + ways * drawn,))
    domain, group = pool._draw_groups(bits[: 1 + ways], ways)
    count = pool.count.reshape(-1)[group]
    position = _draw(bits[1 + ways :].reshape(ways, drawn), count)

    support = _gather(pool, group, position[:, :shots])
    if queries is not None:
        query = _gather(pool, group, position[:, shots:])
        return Task(support, query, domain, group)
    left = pool.index.shape[-1] - shots
    query = _gather(pool, group, _complement(position, left))
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
    end = jnp.cumsum(pool.count.reshape(-1))
    sample = _below(jax.random.bits(key, (batch_size,)), end[-1])
    group = jnp.searchsorted(end, sample, side="right")
    position = sample - (end - pool.count.reshape(-1))[group]
    rows = pool.index.reshape(-1, pool.index.shape[-1])[group, position]
    if isinstance(pool, RegressionPool):
        return Batch(take_inputs(pool.x, rows), pool.y[rows])
    classes = len(pool.classes)
    return Batch(take_inputs(pool.x, rows), jax.nn.one_hot(group % classes, classes))


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
    if queries is None:
        raise InputError(
            "queries is None, but the size of a flat batch depends on it; set"
            " task.queries to an integer"
        )
    batch = sample_batch(pool, key, ways * (shots + queries))
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


def _gather(pool: Pool, group: Array, position: Array) -> Batch:
    """The samples at `position [ways, n]` of each `group [ways]`, ordered by class."""
    ways, number = position.shape
    index = pool.index.reshape(-1, pool.index.shape[-1])
    rows = index[group[:, None], position].reshape(-1)
    if isinstance(pool, RegressionPool):
        return Batch(take_inputs(pool.x, rows), pool.y[rows])
    return Batch(take_inputs(pool.x, rows), jnp.repeat(jnp.eye(ways), number, axis=0))


def take_inputs(x: PyTree, rows: Array | slice) -> PyTree:
    """Gather rows of x and converts them to the types that networks expect."""

    def take(leaf: Array) -> Array:
        leaf = leaf[rows]
        if leaf.dtype == jnp.uint8:
            return leaf.astype(jnp.float32) / 255
        # Integers are not converted: they index a table of embeddings.
        return leaf if leaf.dtype == jnp.int32 else leaf.astype(jnp.float32)

    return jax.tree.map(take, x)


def _to_device(x: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, x)
