"""Evaluation on fixed episodes: mean and 95 % interval over many tasks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax.data import Pool, sample_task
from mlti_jax.data._pools import take_inputs
from mlti_jax.learners import Learner, Variables
from mlti_jax.learners._base import shared_features
from mlti_jax.parallel import ONE_PASS, Plan, map_tasks
from mlti_jax.strategies import Strategy, eval_variables, perturbation
from mlti_jax.training._step import Episode
from mlti_jax.types import Array, PyTree, Task

SAMPLES_PER_PASS = 256  # whose features are computed at a time
LARGEST_PASS = 2048  # samples of the tasks that are evaluated at a time


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates on tasks that a key fixes.

    Task i is drawn from `fold_in(key, i)`: it depends neither on the method that is
    evaluated nor on how the tasks are divided into passes, so that methods can be
    compared task by task.

    Where batch-norm uses running averages, what the shared layers make of a sample is
    the same in every task: it is then computed once for each sample of the pool.

    Attributes:
      learner, strategy: what is evaluated.
      episode: the size of a task.
      tasks_per_pass: how many tasks at a time, at most: fewer where they are so large
        that they would have more than `LARGEST_PASS` samples. The last pass is padded.
      plan: how they are spread over devices.
    """

    learner: Learner
    strategy: Strategy
    episode: Episode
    tasks_per_pass: int = 8
    plan: Plan = ONE_PASS

    @partial(jax.jit, static_argnums=0)
    def _draw(self, pool: Pool, key: Array, tasks: Array) -> tuple[Task, Array]:
        """Tasks by their numbers `[T]`, and a key for each."""

        def one_task(index: Array) -> tuple[Task, Array]:
            key_task, key_noise = jax.random.split(jax.random.fold_in(key, index))
            task = sample_task(pool, key_task, **self.episode._asdict())
            return task, key_noise

        return self.plan.shard(jax.vmap(one_task)(tasks))

    # Apart from the drawing, so that it is compiled once for all pools.
    @partial(jax.jit, static_argnums=(0, 3))
    def _metrics(
        self, variables: Variables, tasks_and_keys: tuple[Task, Array], layer: int
    ) -> Array:
        variables = eval_variables(self.strategy, variables)

        def one_task(variables: Variables, task_and_key: tuple[Task, Array]) -> Array:
            noise = perturbation(self.strategy, variables)
            _, aux = self.learner.loss(variables, *task_and_key, layer, False, **noise)
            return aux.metric

        return map_tasks(one_task, self.plan)(variables, tasks_and_keys)

    @partial(jax.jit, static_argnums=0)
    def _features(self, variables: Variables, x: PyTree, rows: Array) -> PyTree:
        variables = eval_variables(self.strategy, variables)
        return shared_features(self.learner, variables, take_inputs(x, rows))

    def _with_features(self, variables: Variables, pool: Pool) -> Pool:
        """The pool with the shared layers' features in the place of the samples."""
        size = jax.tree.leaves(pool.x)[0].shape[0]
        parts = []
        for start in range(0, size, SAMPLES_PER_PASS):
            # The last pass begins early, rather than be of another size.
            first = max(0, min(start, size - SAMPLES_PER_PASS))
            rows = jnp.arange(min(size, SAMPLES_PER_PASS)) + first
            features = self._features(variables, pool.x, rows)
            parts.append(jax.tree.map(lambda h, s=start - first: h[s:], features))
        return pool.replace(x=jax.tree.map(lambda *h: jnp.concatenate(h), *parts))

    def _features_pay(self, pool: Pool, num_tasks: int) -> bool:
        """Whether the pool has fewer samples than the tasks have in all.

        Never where a strategy perturbs hidden outputs, which then differ from task to
        task.
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
        """The metric of each of the tasks `0..num_tasks-1`, `[num_tasks]`.

        Args:
          variables: of learner and strategy.
          pool: where tasks are drawn from.
          key: fixes the tasks.
          num_tasks: how many tasks.
          on_pass: told of how many tasks were done, after each pass.
        """
        layer = 0
        if self._features_pay(pool, num_tasks):
            pool = self._with_features(variables, pool)
            layer = self.learner.shared_layers
        fitting = max(1, LARGEST_PASS // self._task_size(pool))
        at_once = min(self.tasks_per_pass, fitting)
        devices = max(1, len(self.plan.devices))
        at_once = max(at_once // devices, 1) * devices
        variables, pool = self.plan.replicate((variables, pool))
        metrics = []
        for start in range(0, num_tasks, at_once):
            tasks = jnp.arange(at_once) + start
            drawn = self._draw(pool, key, tasks)
            metric = np.asarray(self._metrics(variables, drawn, layer))
            metrics.append(metric[: num_tasks - start])
            on_pass(len(metrics[-1]))
        return np.concatenate(metrics)


def mean_and_interval(values: np.ndarray) -> tuple[float, float]:
    r"""Mean and half-width of its 95 % interval, :math:`1.96\, s / \sqrt{n}`.

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
    """Mean of `a - b` over the same tasks, and half-width of its 95 % interval."""
    return mean_and_interval(np.asarray(a, np.float64) - np.asarray(b, np.float64))
