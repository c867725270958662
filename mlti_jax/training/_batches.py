"""Where the training loop gets its meta-batches: from the device, or from the host."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable
from typing import Protocol

import jax

from mlti_jax.data._placement import kind_of
from mlti_jax.data._pools import Pool
from mlti_jax.data._task_source import (
    TaskSource,
    iterate,
    without_samples,
    workers_of,
)
from mlti_jax.errors import InputError
from mlti_jax.strategies._objective import tasks_per_step
from mlti_jax.training._experiment import TRAIN, Experiment
from mlti_jax.training._step import (
    Batches,
    MetaBatches,
    TrainState,
    cached_run_batches,
    cached_run_steps,
)
from mlti_jax.types import Task

# Of the tasks that the host passes to a call; those of the next one are there too.
_STEPS_PER_CHUNK = 16
_BYTES_PER_CHUNK = 256 * 2**20


class MetaBatchLoop(Protocol):
    """Trains on meta-batches; the results do not depend on where these are.

    Attributes:
      seconds_per_call: approximate length of a call; signals are handled in between.
    """

    seconds_per_call: float

    def run(self, state: TrainState, stop: int) -> tuple[TrainState, int]:
        """Train until step `stop`.

        Returns:
          The state, and the first step whose loss is not finite, or -1.
        """

    def close(self) -> None:
        """End the threads or processes that read tasks."""


def batches_for(experiment: Experiment, step: int) -> MetaBatchLoop:
    """Return the meta-batches of an experiment, from a step on."""
    if kind_of(experiment.splits.train) == "device":
        return DeviceBatches(experiment)
    return HostBatches(experiment, step)


class DeviceBatches:
    """The compiled loop draws tasks from a pool on the device, many steps per call.

    Attributes:
      seconds_per_call: see `MetaBatchLoop`.
    """

    seconds_per_call = 1.0

    def __init__(self, experiment: Experiment) -> None:
        self._run_steps = cached_run_steps(
            experiment.learner,  # type: ignore[arg-type]  # frozen, so hashable
            experiment.strategy,
            experiment.optimiser,
            experiment.episode,
            experiment.config.train.meta_batch_size,
            experiment.plan,
            experiment.ema,
            experiment.config.train.precision,
        )
        self._pool, self._key = experiment.plan.replicate(
            (experiment.splits.train, experiment.key(TRAIN))
        )

    def run(self, state: TrainState, stop: int) -> tuple[TrainState, int]:
        """See `MetaBatchLoop`."""
        state, bad_step = self._run_steps(state, self._pool, self._key, stop)
        return state, int(bad_step)

    def close(self) -> None:
        """See `MetaBatchLoop`."""


class HostBatches:
    """The host reads tasks; a call of the compiled loop takes those of some steps.

    A call per step would be slower: on a CPU, each call allocates all of its temporary
    memory, which took 48 of 206 ms for Conv4 on images of 84x84.

    Attributes:
      seconds_per_call: see `MetaBatchLoop`.
    """

    seconds_per_call = 4.0

    def __init__(self, experiment: Experiment, step: int) -> None:
        config = experiment.config.train
        number = tasks_per_step(experiment.strategy, config.meta_batch_size)
        local = tuple(range(number)[experiment.plan.local_tasks(number)])
        pool, key = experiment.splits.train, experiment.key(TRAIN)
        episodic = experiment.learner.episodic
        source = TaskSource(
            pool,
            key,
            MetaBatches(experiment.episode, episodic, number, local),
            config.steps,
        )
        self._run_batches = cached_run_batches(
            experiment.learner,  # type: ignore[arg-type]  # frozen, so hashable
            experiment.strategy,
            experiment.optimiser,
            experiment.episode,
            config.meta_batch_size,
            experiment.plan,
            experiment.ema,
            config.precision,
        )
        # Without other hosts, all tasks can go where they are needed at once.
        alone = len(local) == number
        copy = experiment.plan.replicate if alone else experiment.plan.assemble
        self._chunks = Chunks(source, pool, step, copy, local[0])
        self._pool, self._key = experiment.plan.replicate((without_samples(pool), key))
        self._step = step

    def run(self, state: TrainState, stop: int) -> tuple[TrainState, int]:
        """See `MetaBatchLoop`.

        Raises:
          InputError: if tasks can't be read.
        """
        started = None
        while self._step < stop:
            batches, first, end = self._chunks.at(self._step)
            end = min(stop, end)
            state, bad_step = self._run_batches(
                state, self._pool, batches, first, self._key, end
            )
            self._step = end
            if started is not None and (bad := int(started)) >= 0:
                return state, bad
            started = bad_step
        return state, -1 if started is None else int(started)

    def close(self) -> None:
        """See `MetaBatchLoop`."""
        self._chunks.close()


class Chunks:
    """The samples of consecutive steps, in chunks of equal size on the devices.

    While the caller trains on a chunk, a thread reads the next one and copies it.

    Args:
      source: the tasks of each step.
      pool: the pool of the source.
      start: the first step.
      copy: copies `Batches` to the devices.
      first_task: number of tasks of a step that other hosts read before these.
    """

    def __init__(
        self,
        source: TaskSource,
        pool: Pool,
        start: int,
        copy: Callable[[Batches], Batches],
        first_task: int = 0,
    ) -> None:
        # Read only for its size, which is that of all steps
        self._size = steps_per_chunk(source[start])
        self._tasks = iterate(source, pool, start, workers_of(pool), self._size)
        self._copy, self._first_task = copy, first_task
        self._first, self._end, self._last = start, start, len(source)
        self._chunk: Batches | None = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._next = self._thread.submit(self._read)

    def at(self, step: int) -> tuple[Batches, int, int]:
        """Return the chunk of a step, its first step, and the end of its steps.

        Args:
          step: at most the end of the previous chunk, since chunks are read in order.

        Raises:
          InputError: if tasks can't be read.
        """
        if self._chunk is None or step >= self._end:
            self._chunk = None  # frees its memory before the next but one is copied
            try:
                self._chunk = self._next.result()
            except InputError as error:
                raise InputError(
                    f"cannot read the tasks of a training step: {error}"
                ) from error
            self._first, self._end = self._end, self._end + self._size
            if self._end < self._last:
                self._next = self._thread.submit(self._read)
        return self._chunk, self._first, self._end

    def _read(self) -> Batches:
        tasks = list(itertools.islice(self._tasks, self._size))
        # All chunks have the same shapes, so one program is compiled.
        tasks += tasks[-1:] * (self._size - len(tasks))
        return self._copy(Batches.of(tasks, self._first_task))

    def close(self) -> None:
        """End the threads or processes that read tasks."""
        self._thread.shutdown(cancel_futures=True)
        self._tasks.close()


def steps_per_chunk(tasks: Task) -> int:
    """Return how many steps a chunk has, from the tasks of one of them."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tasks))
    return max(1, min(_STEPS_PER_CHUNK, _BYTES_PER_CHUNK // size))
