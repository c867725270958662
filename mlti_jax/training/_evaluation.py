"""Evaluation on fixed episodes: mean and 95 % interval over many tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.precision import matmul_precision
from mlti_jax.data import sample_task
from mlti_jax.data._placement import kind_of
from mlti_jax.data._pools import Pool, draw_rows, take_inputs, task_inputs
from mlti_jax.data._task_source import TaskSource, iterate, without_samples
from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Learner, Variables
from mlti_jax.learners._base import shared_features
from mlti_jax.parallel import Plan, map_tasks
from mlti_jax.strategies import Strategy
from mlti_jax.strategies._objective import task_context
from mlti_jax.training._step import Episode
from mlti_jax.types import Array, PyTree, Task

SAMPLES_PER_PASS = 256  # samples whose features are computed at once
LARGEST_PASS = 2048  # samples of the tasks of a pass; two passes are in memory


class QueryOutputs(NamedTuple):
    """Outputs for the queries of many tasks.

    Attributes:
      outputs: `[M, C]`, logits or predictions of the queries of all tasks.
      labels: `[M, C]`, their one-hot labels or targets.
    """

    outputs: np.ndarray
    labels: np.ndarray


class TaskOutputs(NamedTuple):
    """Outputs for the queries of one task.

    Attributes:
      outputs: `[N_q, C]`, logits or predictions.
      labels: `[N_q, C]`, one-hot labels or targets.
      domain: id of the task's source.
      groups: `[C]`, the pool's groups that are the classes of the task.
    """

    outputs: np.ndarray
    labels: np.ndarray
    domain: int
    groups: np.ndarray


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates a method on tasks that are fixed by a key.

    Task i is drawn from `fold_in(key, i)`. It depends neither on the evaluated method
    nor on how tasks are divided into passes, so methods can be compared task by task.

    If batch-norm uses running averages, the shared layers give a sample the same
    features in every task; these are then computed once per sample of the pool.

    Attributes:
      learner, strategy: the evaluated method.
      episode: the size of a task.
      tasks_per_pass: maximal number of tasks per pass; fewer if tasks are so large
        that a pass would exceed `LARGEST_PASS` samples. The last pass is padded.
      plan: how tasks are distributed over devices.
      precision: of products of float32 arrays, `default`, `high` or `highest`.
    """

    learner: Learner
    strategy: Strategy
    episode: Episode
    tasks_per_pass: int = 32
    plan: Plan = Plan()
    precision: str = "default"

    @partial(jax.jit, static_argnums=0)
    def _draw(self, pool: Pool, key: Array, tasks: Array) -> tuple[Task, Array]:
        """Draw tasks by index `[T]`, and a key for each."""

        def one_task(index: Array) -> tuple[Task, Array]:
            key_task, key_noise = jax.random.split(jax.random.fold_in(key, index))
            task = sample_task(pool, key_task, **self.episode._asdict())
            return task, key_noise

        return self.plan.shard(jax.vmap(one_task)(tasks))

    @partial(jax.jit, static_argnums=0)
    def _converted(self, tasks: Task, key: Array, indices: Array) -> tuple[Task, Array]:
        """Return what `_draw` does, for tasks that the host has read."""

        def key_noise(index: Array) -> Array:
            return jax.random.split(jax.random.fold_in(key, index))[1]

        return self.plan.shard((task_inputs(tasks), jax.vmap(key_noise)(indices)))

    # Separate from drawing, so it compiles once for all pools.
    @partial(jax.jit, static_argnums=(0, 3))
    def _losses(
        self, variables: Variables, tasks_and_keys: tuple[Task, Array], layer: int
    ) -> Aux:
        def one_task(variables: Variables, task_and_key: tuple[Task, Array]) -> Aux:
            task, key = task_and_key
            context = task_context(self.strategy, variables, key, train=False)
            _, aux = self.learner.loss(variables, task, context, layer)
            # The accuracy of outputs that are NaN would look like any other.
            finite = jnp.isfinite(aux.outputs).all()
            metric = jnp.where(finite, aux.metric, jnp.nan)
            return aux.replace(
                metric=metric, state=(), loss_before=(), outputs_before=()
            )

        return map_tasks(one_task, self.plan)(variables, tasks_and_keys)

    @partial(jax.jit, static_argnums=0)
    def _features(self, variables: Variables, x: PyTree, rows: Array) -> PyTree:
        return shared_features(self.learner, variables, take_inputs(x, rows))

    def _with_features(self, variables: Variables, pool: Pool) -> Pool:
        """Replace the samples of a pool with the features of the shared layers."""
        size = jax.tree.leaves(pool.x)[0].shape[0]
        on_device = kind_of(pool) == "device"
        parts = []
        for start in range(0, size, SAMPLES_PER_PASS):
            # The last pass starts early, so that all have the same size.
            first = max(0, min(start, size - SAMPLES_PER_PASS))
            rows = jnp.arange(min(size, SAMPLES_PER_PASS)) + first
            with matmul_precision(self.precision):
                if on_device:
                    features = self._features(variables, pool.x, rows)
                else:
                    x = jax.tree.map(lambda h, rows=np.asarray(rows): h[rows], pool.x)
                    features = self._features(variables, x, rows - first)
            parts.append(jax.tree.map(lambda h, s=start - first: h[s:], features))
        x = jax.tree.map(lambda *h: jnp.concatenate(h), *parts)
        return dataclasses.replace(pool, x=x)

    def _features_pay(self, pool: Pool, num_tasks: int) -> bool:
        """Whether the pool has fewer samples than all tasks together.

        Never if a strategy perturbs hidden outputs, which then differ between tasks.
        """
        if self.learner.norm != "running" or not self.learner.shared_layers:
            return False
        if self.strategy.perturb is not None:
            return False
        size = jax.tree.leaves(pool.x)[0].shape[0]
        return size < num_tasks * self._task_size(pool)

    def _task_size(self, pool: Pool) -> int:
        ways, shots, queries = self.episode
        if queries is None:
            queries = pool.index.shape[-1] - shots
        return ways * (shots + queries)

    def __call__(
        self,
        variables: Variables,
        pool: Pool,
        key: Array,
        num_tasks: int,
        on_pass: Callable[[int], None] = lambda tasks: None,
    ) -> np.ndarray:
        """Compute the metric of each of the tasks `0..num_tasks-1`, `[num_tasks]`.

        Args:
          variables: variables of learner and strategy.
          pool: where tasks are drawn from.
          key: fixes the tasks.
          num_tasks: number of tasks.
          on_pass: called after each pass with the number of tasks that it evaluated.

        Raises:
          InputError: if the outputs or the metric of a task are not finite.
        """
        metrics: list[np.ndarray] = []
        for tasks, aux, number in self._passes(variables, pool, key, num_tasks):
            values = self.plan.to_host(aux.metric)[:number]
            wrong = np.flatnonzero(~np.isfinite(values))
            if len(wrong):
                domain = int(self.plan.to_host(tasks.domain)[wrong[0]])
                source = getattr(pool, "domains", ())[domain : domain + 1]
                raise InputError(
                    f"the outputs for task {sum(map(len, metrics)) + wrong[0]}"
                    f"{f' of {source[0]!r}' if source else ''} are not finite; check "
                    "the samples and targets there for very large values"
                )
            metrics.append(values)
            on_pass(number)
        return np.concatenate(metrics)

    def outputs(
        self, variables: Variables, pool: Pool, key: Array, num_tasks: int
    ) -> QueryOutputs:
        """Compute the outputs for all queries of the tasks `0..num_tasks-1`."""
        tasks = list(self.outputs_by_task(variables, pool, key, num_tasks))
        return QueryOutputs(
            np.concatenate([task.outputs for task in tasks]),
            np.concatenate([task.labels for task in tasks]),
        )

    def outputs_by_task(
        self, variables: Variables, pool: Pool, key: Array, num_tasks: int
    ) -> Iterator[TaskOutputs]:
        """Yield the outputs of each of the tasks `0..num_tasks-1`, without padding."""
        for tasks, aux, number in self._passes(variables, pool, key, num_tasks):
            outputs, labels, weight, domains, groups = self.plan.to_host(
                (
                    aux.outputs,
                    tasks.query.y,
                    tasks.query.weight,
                    tasks.domain,
                    tasks.groups,
                )
            )
            counts = np.ones(labels.shape[:2], bool) if weight is None else weight > 0
            for i in range(number):
                yield TaskOutputs(
                    outputs[i][counts[i]],
                    labels[i][counts[i]],
                    int(domains[i]),
                    groups[i],
                )

    def _passes(
        self, variables: Variables, pool: Pool, key: Array, num_tasks: int
    ) -> Iterator[tuple[Task, Aux, int]]:
        """Yield the tasks of each pass, their `Aux`, and how many of them count."""
        layer = 0
        if self.plan.spans_processes:  # each computes the features of its own pool
            variables = jax.tree.map(np.asarray, variables)
        if self._features_pay(pool, num_tasks):
            pool = self._with_features(variables, pool)
            layer = self.learner.shared_layers
        fitting = max(1, LARGEST_PASS // self._task_size(pool))
        at_once = min(self.tasks_per_pass, fitting)
        devices = max(1, len(self.plan.devices))
        at_once = max(at_once // devices, 1) * devices
        variables, key = self.plan.replicate((variables, key))
        passes = -(-num_tasks // at_once)
        started = None
        with contextlib.closing(self._tasks(pool, key, at_once, passes)) as tasks:
            for start, drawn in zip(range(0, num_tasks, at_once), tasks, strict=True):
                with matmul_precision(self.precision):
                    aux = self._losses(variables, drawn, layer)
                # The next pass is started before the caller waits for this one.
                if started is not None:
                    yield started
                started = drawn[0], aux, min(at_once, num_tasks - start)
        if started is not None:
            yield started

    def _tasks(
        self, pool: Pool, key: Array, at_once: int, passes: int
    ) -> Generator[tuple[Task, Array], None, None]:
        """Yield the tasks of each pass, and a key for each task."""
        if kind_of(pool) == "device":
            pool = self.plan.replicate(pool)
            for number in range(passes):
                first = number * at_once
                indices = np.arange(at_once, dtype=np.int32) + first
                yield self._draw(pool, key, indices)
            return
        draw = Passes(
            self.episode, at_once, tuple(range(at_once)[self.plan.local_tasks(at_once)])
        )
        source = TaskSource(pool, key, draw, passes)
        with contextlib.closing(iterate(source, pool)) as read:
            for number, tasks in enumerate(read):
                indices = np.arange(at_once, dtype=np.int32) + number * at_once
                yield self._converted(self.plan.assemble(tasks), key, indices)


@dataclasses.dataclass(frozen=True)
class Passes:
    """Draws the rows of the tasks of a pass: those that an `Evaluator` draws.

    Attributes:
      episode: the size of a task.
      tasks: number of tasks of a pass, on all hosts.
      local: which of them this host reads.
    """

    episode: Episode
    tasks: int
    local: tuple[int, ...]

    def __call__(self, pool: Pool, key: Array, item: Array) -> Task:
        """Return the local tasks of pass `item`; `pool.x` is not used."""

        def one_task(index: Array) -> Task:
            key_task, _ = jax.random.split(jax.random.fold_in(key, index))
            return draw_rows(pool, key_task, **self.episode._asdict())

        return jax.vmap(one_task)(item * self.tasks + np.array(self.local))


def task_sources(
    pool: Pool, key: Array, episode: Episode, num_tasks: int
) -> np.ndarray:
    """Return the ids of the domains `[num_tasks]` of an `Evaluator`'s tasks."""

    @jax.jit
    def draw(pool: Pool) -> Array:
        def domain(index: Array) -> Array:
            key_task, _ = jax.random.split(jax.random.fold_in(key, index))
            return draw_rows(pool, key_task, **episode._asdict()).domain

        return jax.lax.map(domain, jnp.arange(num_tasks))

    return np.asarray(draw(without_samples(pool)))


def mean_and_interval(values: np.ndarray) -> tuple[float, float]:
    r"""Compute the mean and the half-width of its 95 % interval, $1.96\, s / \sqrt n$.

    Args:
      values: `[n]`; s is the standard deviation with Bessel's correction.
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return float(values.mean()), math.nan
    return float(values.mean()), float(
        1.96 * values.std(ddof=1) / math.sqrt(len(values))
    )


def paired_difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Compute the mean of `a - b` over the same tasks, and its 95 % half-width."""
    return mean_and_interval(np.asarray(a, np.float64) - np.asarray(b, np.float64))
