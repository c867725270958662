"""Pools: the samples of a dataset on the device, and the sampling of tasks from them.

A pool keeps every sample once, in `x`, and lists the rows of `x` by group (a class, a
class of a domain, an object). Groups may differ in size: the lists are padded and
`count` says how many entries are real. Three kinds follow the paper's settings:
`DomainPool` (label-sharing), `ClassPool` (non-label-sharing) and `RegressionPool`.

`sample_task` and `sample_batch` are pure functions for one task and one batch. Their
cost does not depend on how many samples a group has, so they belong inside the jitted
training step. Pass the pool to that step as an argument: a pool that is merely closed
over becomes a constant of the compiled program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax.data import _arrays as arrays
from mlti_jax.errors import InputError
from mlti_jax.types import Array, Batch, PyTree, Task

if TYPE_CHECKING:
    from mlti_jax.data._own.inputs import Inputs


@flax.struct.dataclass
class DomainPool:
    """Domains that share one label space (label-sharing setting).

    Attributes:
      x: samples, `[M, ...]`.
      index: rows of `x`, int32 `[D, C, K]`, of class c in domain d.
      count: how many of the K entries are real, int32 `[D, C]`.
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
        """Builds the pool from NumPy arrays.

        Args:
          x: samples, every leaf `[M, ...]`.
          domain: `[M]`, where each sample comes from: numbers, or names.
          label: `[M]`, the class of each sample: numbers, or names.
          domains: all names; then `domain` holds names or positions in this list.
            None: the sorted distinct values of `domain`.
          classes: the same for `label`. Give it wherever a pool may lack a class that
            another pool has, or the two would number their classes differently.
        """
        size = arrays.check_samples(x)
        domain, domains = arrays.as_ids("domain", domain, domains, size)
        label, classes = arrays.as_ids("label", label, classes, size)
        group = domain * len(classes) + label
        index, count = arrays.group_rows(group, len(domains) * len(classes))
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
    """Classes to draw N ways from (non-label-sharing setting).

    Attributes:
      x: samples, `[M, ...]`.
      index: rows of `x`, int32 `[C, K]`, of class c.
      count: how many of the K entries are real, int32 `[C]`.
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
        """Builds the pool from NumPy arrays; arguments as in `DomainPool`."""
        size = arrays.check_samples(x)
        label, classes = arrays.as_ids("label", label, classes, size)
        index, count = arrays.group_rows(label, len(classes))
        return cls(_to_device(x), jnp.asarray(index), jnp.asarray(count), classes)

    def _draw_groups(self, bits: Array, ways: int) -> tuple[Array, Array]:
        # Classes have no domain: with 31 random bits, no two tasks share one.
        domain = (bits[0] >> 1).astype(jnp.int32)
        return domain, _draw(bits[1:], jnp.int32(len(self.classes)))

    def _group_name(self, group: int) -> str:
        return f"class {self.classes[group]!r}"

    def _check_ways(self, ways: int) -> None:
        if ways > len(self.classes):
            raise InputError(
                f"ways is {ways}, but there are only {len(self.classes)} classes to"
                f" draw from; set ways to at most {len(self.classes)}"
            )


@flax.struct.dataclass
class RegressionPool:
    """Objects with real-valued targets, one task an object (regression).

    Attributes:
      x: samples, `[M, ...]`.
      y: targets, float32 `[M, Dy]`.
      index: rows of `x` and `y`, int32 `[D, K]`, of object d.
      count: how many of the K entries are real, int32 `[D]`.
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
        """Builds the pool from NumPy arrays; y `[M, Dy]`, others as in `DomainPool`."""
        size = arrays.check_samples(x)
        y = arrays.check_values("y", y)
        if y.ndim != 2 or len(y) != size or y.shape[1] == 0:
            raise InputError(
                f"y has shape {list(y.shape)}; expected [{size}, Dy], one row for each"
                " sample. For a single target use y[:, None]"
            )
        domain, domains = arrays.as_ids("domain", domain, domains, size)
        index, count = arrays.group_rows(domain, len(domains))
        y = jnp.asarray(y, jnp.float32)
        return cls(_to_device(x), y, jnp.asarray(index), jnp.asarray(count), domains)

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


@dataclasses.dataclass(frozen=True)
class Splits:
    """A dataset, ready for meta-learning.

    Attributes:
      name: name of the dataset.
      setting: `label_sharing`, `non_label_sharing` or `regression`.
      train: pool for meta-training.
      validation: pool to choose models on; None where the paper's data has none.
      test: pool for meta-testing; None where users keep no task of their own back.
      note: one sentence for people, saying which data this is.
      source: where the samples came from, for datasets with more than one source.
      images_per_class: images a class and domain, for datasets that let one choose.
      inputs: how users' raw data became samples; new data is treated alike.
      details: sentences on what was found in users' data, and what was done to it.
    """

    name: str
    setting: str
    train: Pool
    validation: Pool | None
    test: Pool | None
    note: str
    source: str | None = None
    images_per_class: int | None = None
    inputs: Inputs | None = None
    details: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What the dataset holds and what was done to it, with counts."""
        from mlti_jax.data._summary import describe_splits

        return describe_splits(self)


def sample_task(
    pool: Pool, key: Array, *, ways: int, shots: int, queries: int | None
) -> Task:
    """Draws one task; no sample is in it twice.

    Args:
      pool: where to draw from. Of a `DomainPool`, one domain is drawn, and label c is
        class c in every task. Of a `ClassPool`, `ways` classes are drawn in random
        order, so that labels mean something else in every task. Of a
        `RegressionPool`, one object is drawn.
      key: random key.
      ways: classes N of the task; 1 for regression.
      shots: support samples a class.
      queries: query samples a class; None for all that are left. Then classes are
        padded to the largest of the pool and `query.weight` tells them apart.

    Returns:
      A task with `ways * shots` support and `ways * queries` query samples, both
      listed class by class, with y one-hot `[N, ways]` (regression: `[N, Dy]`).
      uint8 inputs become float32 in [0, 1]. Groups must be large enough, which only
      `check_episode` can tell.
    """
    pool._check_ways(ways)
    drawn = shots if queries is None else shots + queries
    # One call for all random numbers: each call has a fixed cost.
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
    """Draws labelled samples independently and uniformly from all of the pool.

    Args:
      pool: where to draw from.
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


def sample_flat(pool: Pool, key: Array, *, ways: int, shots: int, queries: int) -> Task:
    """A flat batch in the form of a task, for learners that do not train on episodes.

    As many samples as a task of this size has, drawn as by `sample_batch`; all of them
    are the query set, labelled over all classes of the pool. The support set is empty.
    """
    if queries is None:
        raise InputError(
            "a flat batch needs a number of queries, since it takes its size from the "
            "task's; set task.queries"
        )
    batch = sample_batch(pool, key, ways * (shots + queries))
    empty = jax.tree.map(lambda leaf: leaf[:0], batch)
    return Task(support=empty, query=batch, domain=jnp.int32(0))


def check_episode(pool: Pool, *, ways: int, shots: int, queries: int | None) -> None:
    """Raises `InputError` unless every task of this size can be drawn from the pool."""
    sizes = {"ways": ways, "shots": shots, "queries": queries}
    for field, value in sizes.items():
        if field == "queries" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"{field} is {value!r}; expected a whole number")
        if value < 1:
            raise InputError(f"{field} is {value}; expected 1 or more")
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

    Of the remainders some are more likely by a factor of 1 + bound / 2^32: not to be
    seen in any number of tasks that one could draw.
    """
    return (bits % jnp.asarray(bound, jnp.uint32)).astype(jnp.int32)


def _draw(bits: Array, count: Array) -> Array:
    """The first k entries of a random permutation of `range(count)`.

    A Fisher-Yates shuffle swaps entry i with a random entry `swap[i] >= i`, for i from
    0 to k - 1. To know what ends up at i, it is enough to follow it back: what stands
    at position p after swap j stood at position j before it if p is `swap[j]`, and at
    p otherwise. So the cost is that of k^2 comparisons, whatever `count` is.

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
    """The smallest integers from 0 that are not in `drawn`: `[..., number]`."""
    # Of the sorted drawn ones, the s-th has `drawn - s` integers before it that are
    # left over; the j-th left over is behind all those with at most j.
    before = jnp.sort(drawn, axis=-1) - jnp.arange(drawn.shape[-1])
    left = jnp.arange(number)
    return left + jnp.sum(before[..., None, :] <= left[:, None], axis=-1)


def _gather(pool: Pool, group: Array, position: Array) -> Batch:
    """The samples at `position [ways, n]` of each `group [ways]`, class by class."""
    ways, number = position.shape
    index = pool.index.reshape(-1, pool.index.shape[-1])
    rows = index[group[:, None], position].reshape(-1)
    if isinstance(pool, RegressionPool):
        return Batch(take_inputs(pool.x, rows), pool.y[rows])
    return Batch(take_inputs(pool.x, rows), jnp.repeat(jnp.eye(ways), number, axis=0))


def take_inputs(x: PyTree, rows: Array) -> PyTree:
    """Rows of x as a network takes them; converted after gathering, which is cheap."""

    def take(leaf: Array) -> Array:
        leaf = leaf[rows]
        if leaf.dtype == jnp.uint8:
            return leaf.astype(jnp.float32) / 255
        # Integers stay: they are positions in a table of embeddings.
        return leaf if leaf.dtype == jnp.int32 else leaf.astype(jnp.float32)

    return jax.tree.map(take, x)


def _to_device(x: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, x)
