"""Where the training loop gets its meta-batches: from the device, or from the host."""

from __future__ import annotations

import collections
from typing import Protocol

from mlti_jax.data._placement import kind_of
from mlti_jax.data._task_source import TaskSource, iterate, workers_of
from mlti_jax.errors import InputError
from mlti_jax.strategies._objective import tasks_per_step
from mlti_jax.training._experiment import TRAIN, Experiment
from mlti_jax.training._step import (
    MetaBatches,
    TrainState,
    cached_run_batch,
    cached_run_steps,
)

# Steps that wait for the device while the next tasks are read and copied to it
_STEPS_AHEAD = 2


class Batches(Protocol):
    """Trains on meta-batches; the results do not depend on where these are."""

    def run(self, state: TrainState, stop: int) -> tuple[TrainState, int]:
        """Train until step `stop`.

        Returns:
          The state, and the first step whose loss is not finite, or -1.
        """

    def close(self) -> None:
        """End the threads or processes that read tasks."""


def batches_for(experiment: Experiment, step: int) -> Batches:
    """Return the meta-batches of an experiment, from a step on."""
    if kind_of(experiment.splits.train) == "device":
        return DeviceBatches(experiment)
    return HostBatches(experiment, step)


class DeviceBatches:
    """The compiled loop draws tasks from a pool on the device, many steps per call."""

    def __init__(self, experiment: Experiment) -> None:
        self._run_steps = cached_run_steps(
            experiment.learner,  # type: ignore[arg-type]  # frozen, so hashable
            experiment.strategy,
            experiment.optimiser,
            experiment.episode,
            experiment.config.train.meta_batch_size,
            experiment.plan,
            experiment.ema,
        )
        self._pool, self._key = experiment.plan.replicate(
            (experiment.splits.train, experiment.key(TRAIN))
        )

    def run(self, state: TrainState, stop: int) -> tuple[TrainState, int]:
        """See `Batches`."""
        state, bad_step = self._run_steps(state, self._pool, self._key, stop)
        return state, int(bad_step)

    def close(self) -> None:
        """See `Batches`."""


class HostBatches:
    """Each step is a call with tasks that the host has read.

    Steps are started without waiting for the previous one, so the device has work while
    tasks are read.
    """

    def __init__(self, experiment: Experiment, step: int) -> None:
        plan, config = experiment.plan, experiment.config
        pool, key = experiment.splits.train, experiment.key(TRAIN)
        number = tasks_per_step(experiment.strategy, config.train.meta_batch_size)
        draw = MetaBatches(
            experiment.episode,
            experiment.learner.episodic,
            number,
            tuple(plan.local_tasks(number)),
        )
        source = TaskSource(pool, key, draw, config.train.steps)
        self._tasks = iterate(source, pool, step, workers_of(pool))
        self._step, self._plan = step, plan
        self._key = plan.replicate(key)
        self._run_batch = cached_run_batch(
            experiment.learner,  # type: ignore[arg-type]  # frozen, so hashable
            experiment.strategy,
            experiment.optimiser,
            config.train.meta_batch_size,
            plan,
            experiment.ema,
        )

    def run(self, state: TrainState, stop: int) -> tuple[TrainState, int]:
        """See `Batches`.

        Raises:
          InputError: if tasks can't be read.
        """
        running: collections.deque = collections.deque()
        while self._step < stop or running:
            if self._step < stop:
                try:
                    tasks = next(self._tasks)
                except InputError as error:
                    raise InputError(
                        f"cannot read the tasks of step {self._step + 1}: {error}"
                    ) from error
                tasks = self._plan.assemble(tasks)
                state, bad_step = self._run_batch(state, tasks, self._key)
                self._step += 1
                running.append(bad_step)
            waits = len(running) > _STEPS_AHEAD or self._step == stop
            if waits and (bad := int(running.popleft())) >= 0:
                return state, bad
        return state, -1

    def close(self) -> None:
        """See `Batches`."""
        self._tasks.close()
