"""Training, validation, checkpoints and the final test: one run from start to end."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.distributed import (
    arrays_of_first,
    from_first,
    is_first,
    largest,
    number_of_processes,
)
from mlti_jax._internal.locks import locked
from mlti_jax._internal.progress import (
    Progress,
    format_metric,
    say,
    silence,
    stop_signal,
)
from mlti_jax._internal.revision import revision
from mlti_jax._internal.storage import make_folder, write_json
from mlti_jax.data._pools import Pool
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.learners import Variables
from mlti_jax.training._batches import batches_for
from mlti_jax.training._checkpoints import (
    Checkpoints,
    InMemoryCheckpoints,
    SharedCheckpoints,
    open_checkpoints,
    to_default_device,
)
from mlti_jax.training._evaluation import mean_and_interval
from mlti_jax.training._experiment import TEST, VALIDATION, Experiment
from mlti_jax.training._metrics import MetricsWriter
from mlti_jax.training._step import TrainState
from mlti_jax.training._workdir import (
    CHECKPOINTS,
    RESULT,
    check_config,
    note_layout,
    open_workdir,
    read_result,
    take_over,
    tested_variables,
)
from mlti_jax.types import Array

_KEPT_CHECKPOINTS = 3
# Two, since a resumed run may have to do without the newest of them.
_KEPT_BEST = 2


class RunResult(NamedTuple):
    """What a run returns.

    Attributes:
      result: the content of `results.json`.
      variables: the variables that were tested.
    """

    result: dict[str, Any]
    variables: Variables


def train_and_evaluate(
    experiment: Experiment,
    workdir: str | pathlib.Path,
    trained: str | pathlib.Path | None = None,
) -> dict[str, Any]:
    """Run an experiment in a work directory, or resume an interrupted run.

    Writes `config.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/last`,
    `checkpoints/best` and `results.json`. A finished run is not run again.

    In a program of several processes (`jax.distributed.initialize`), all of them call
    this with the same arguments; process 0 writes the files, so the directory of the
    others may be on another disk.

    Args:
      experiment: the experiment.
      workdir: the work directory.
      trained: the work directory of a finished run that differs from this one only in
        its test tasks. Its training is taken over, so that only the test is run; the
        result is that of training again.

    Returns:
      The content of `results.json`.
    """
    trained = None if trained is None else pathlib.Path(trained)
    result, _ = _run_or_skip(experiment, pathlib.Path(workdir), trained)
    return result


def run_experiment(
    experiment: Experiment, workdir: str | pathlib.Path | None = None
) -> RunResult:
    """Run an experiment like `train_and_evaluate`, and return its variables too.

    Args:
      experiment: the experiment.
      workdir: the work directory; None to keep everything in memory.
    """
    if workdir is None:
        with silence(not is_first()), _agreed_signal() as stopped:
            found = _train_and_test(experiment, None, stopped, lambda: None)
            if number := stopped():
                raise Interrupted(number, found.result["train_steps"])
            return found
    workdir = pathlib.Path(workdir)
    result, variables = _run_or_skip(experiment, workdir)
    if variables is None:
        variables, _ = tested_variables(experiment, workdir)
    return RunResult(result, variables)


def _run_or_skip(
    experiment: Experiment, workdir: pathlib.Path, trained: pathlib.Path | None = None
) -> tuple[dict[str, Any], Variables | None]:
    """Run an experiment; the variables are None if it was finished before."""
    config = json.loads(experiment.config.to_json_best_effort())
    config = {**config, "data": experiment.data_facts()}
    if experiment.adapted is not None:
        config["adapted"] = list(experiment.adapted)
    _check_same(config)
    from_first(make_folder, workdir, f"--workdir={workdir}")
    # Shown without the lock, so that the disk may be read-only.
    if (result := from_first(_finished, workdir, config)) is not None:
        return result, None
    with (
        silence(not is_first()),
        _locked_by_first(workdir) as check_lock,
        _agreed_signal() as stopped,
    ):
        # Another process may have finished the run in between.
        if (result := from_first(_finished, workdir, config)) is not None:
            return result, None
        from_first(open_workdir, workdir, config)
        if trained is not None:
            from_first(take_over, trained, workdir, config)
        devices = max(1, len(experiment.plan.devices))
        from_first(note_layout, workdir, number_of_processes(), devices)
        result, variables = _train_and_test(experiment, workdir, stopped, check_lock)
        check_lock()
        from_first(lambda: write_json(workdir / RESULT, result, seal=True))
        if number := stopped():
            raise Interrupted(number, result["train_steps"])
        return result, variables


def _check_same(config: dict[str, Any]) -> None:
    """Raise `InputError` if this process has another config or data than process 0."""
    expected = from_first(lambda: config)
    different = [name for name in config if config[name] != expected.get(name)]
    if different or len(config) != len(expected):
        raise InputError(
            f"process {jax.process_index()} differs from process 0 in "
            f"{', '.join(different) or 'its config'}; start all processes with the "
            "same command, and copy the same data to all hosts"
        )


@contextlib.contextmanager
def _locked_by_first(workdir: pathlib.Path) -> Iterator[Callable[[], None]]:
    """Lock a folder as `locked`; with several processes, process 0 holds the lock."""
    with contextlib.ExitStack() as stack:
        checks: list[Callable[[], None]] = []

        def acquire() -> None:
            checks.append(stack.enter_context(locked(workdir, "--workdir")))

        from_first(acquire)
        yield lambda: from_first(lambda: checks[0]())


@contextlib.contextmanager
def _agreed_signal() -> Iterator[Callable[[], int]]:
    """Catch signals as `stop_signal`; a signal to one process counts for all."""
    with stop_signal() as stopped:
        yield lambda: largest(stopped())


def _finished(workdir: pathlib.Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a finished run of a config; None if it is not finished."""
    if not os.path.lexists(workdir / RESULT):
        return None
    check_config(workdir, config)
    result = read_result(workdir)
    say(f"{workdir} holds a finished run of this config; nothing to train")
    return result


def _train_and_test(
    experiment: Experiment,
    workdir: pathlib.Path | None,
    stopped: Callable[[], int],
    check_lock: Callable[[], None],
) -> RunResult:
    for note in experiment.notes:
        say(note, once=True)
    code = from_first(revision)  # before training: files may change meanwhile
    with contextlib.ExitStack() as stack:
        found = _Run(experiment, workdir, stopped, check_lock, stack).run()
    return found._replace(result={**found.result, "revision": code})


class _Run:
    """The state that the stages of one run share.

    Attributes:
      experiment: what is run.
      stopped: returns the number of a signal to stop, or 0.
      check_lock: raises `InputError` if the work directory was removed.
      last: saves the newest states; None without a work directory.
      best: saves the variables that are best on the validation tasks.
      metrics: writes metrics; None without a work directory.
      saved: the step of the newest checkpoint and of its validation; -1 for none.
      state: the training state.
    """

    def __init__(
        self,
        experiment: Experiment,
        workdir: pathlib.Path | None,
        stopped: Callable[[], int],
        check_lock: Callable[[], None],
        stack: contextlib.ExitStack,
    ) -> None:
        self.experiment = experiment
        self.stopped, self.check_lock, self._stack = stopped, check_lock, stack
        self.metric_name = experiment.learner.objective.metric_name
        self.saved = (-1, -1)
        self.last: Checkpoints | SharedCheckpoints | None = None
        self.best: Checkpoints | SharedCheckpoints | InMemoryCheckpoints = (
            InMemoryCheckpoints()
        )
        self.metrics: MetricsWriter | None = None
        if workdir is None:
            self.state = arrays_of_first(experiment.init_state())
            return
        folder = workdir / CHECKPOINTS
        self.last = open_checkpoints(folder / "last", _KEPT_CHECKPOINTS)
        stack.callback(self.last.close)
        self.best = open_checkpoints(folder / "best", _KEPT_BEST)
        stack.callback(self.best.close)
        self.state = self._restore_or_init(self.last, self.best)
        from_first(lambda: self._open_metrics(workdir, stack))

    def _open_metrics(self, workdir: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.metrics = MetricsWriter(workdir, int(self.state.step))
        stack.callback(self.metrics.close)

    def run(self) -> RunResult:
        """Train and test; return when all checkpoints are written."""
        self._train()
        found = self._test()
        if self.last is not None:
            self.last.wait()
        return found

    # ---------------------------------------------------------------- training

    def _restore_or_init(
        self,
        last: Checkpoints | SharedCheckpoints,
        best: Checkpoints | SharedCheckpoints,
    ) -> TrainState:
        """Return the newest state whose best variables can be read too.

        Training from an earlier state repeats what a damaged file has lost: steps are
        deterministic.
        """
        initial = arrays_of_first(self.experiment.init_state())
        for step in reversed(last.steps()):
            saved = last.restore(initial, step)
            if saved is None:
                continue
            state = saved[1]
            best_step = int(state.best_step)
            if best_step >= 0 and best.restore(initial.variables, best_step) is None:
                say(
                    f"cannot resume from step {step}: its best variables, of step "
                    f"{best_step}, are lost"
                )
                continue
            say(f"resuming from step {step}")
            self.saved = (step, int(state.validated_step))
            return state
        if last.steps():
            say("starting again from step 0, since no saved state is complete")
        return initial

    def _train(self) -> None:
        experiment, config = self.experiment, self.experiment.config
        self.state = experiment.plan.replicate(self.state)
        total = config.train.steps
        step = int(self.state.step)
        batches = batches_for(experiment, step)
        self._stack.callback(batches.close)
        bar = Progress("train", total, step)
        steps_per_call, text = 1, ""
        clock = _Clock(step)
        while True:
            if self._validation_is_due(step):
                with clock.paused():
                    self._validate(step)
            number = self.stopped()
            ends = step == total or self._is_out_of_patience()
            if ends and int(self.state.count):  # stopped before it was due to log
                self._log(step, clock.steps_per_second(step))
            if number or step % config.train.checkpoint_every == 0 or ends:
                self._save(step)
            if ends:
                break
            if number:
                bar.close()
                self._stop(number)
            stop = self._next_stop(step, steps_per_call)
            start = time.monotonic()
            self.state, bad = batches.run(self.state, stop)
            if bad >= 0:
                bar.close()
                self._raise_not_finite(bad)
            seconds = time.monotonic() - start
            # The first call also compiles, so the number of steps at most doubles.
            affordable = int((stop - step) * batches.seconds_per_call / seconds)
            affordable = from_first(lambda number=affordable: number)
            steps_per_call = max(1, min(2 * steps_per_call, affordable))
            done, step = stop - step, stop
            if step % config.train.log_every == 0 or step == total:
                text = self._log(step, clock.steps_per_second(step))
            bar.update(done, text)
        bar.close()
        batches.close()

    def _validation_is_due(self, step: int) -> bool:
        if self.experiment.splits.validation is None or not step:
            return False
        config = self.experiment.config
        at_boundary = step % config.eval.every == 0 or step == config.train.steps
        return at_boundary and int(self.state.validated_step) < step

    def _is_out_of_patience(self) -> bool:
        """Whether `train.patience` validations in a row were no improvement."""
        patience = self.experiment.config.train.patience
        best, last = int(self.state.best_step), int(self.state.validated_step)
        if patience is None or best < 0:
            return False
        if last - best < patience * self.experiment.config.eval.every:
            return False
        say(
            f"stopping at step {last}: the last {patience} validations are not better "
            f"than that of step {best} (train.patience)"
        )
        return True

    def _stop(self, number: int) -> NoReturn:
        """End the run on a signal, after checkpoints are written."""
        say("stopping")
        self.best.wait()
        if self.last is not None:
            self.last.wait()
        raise Interrupted(number, int(self.state.step))

    def _next_stop(self, step: int, steps_per_call: int) -> int:
        """Return the step where the next call ends, at most at the next boundary."""
        train, evaluation = self.experiment.config.train, self.experiment.config.eval
        ends = [step + steps_per_call, train.steps]
        for every in (train.log_every, train.checkpoint_every, evaluation.every):
            ends.append((step // every + 1) * every)
        return min(ends)

    def _log(self, step: int, rate: float) -> str:
        """Write the means since the last call and reset the sums."""
        count = int(self.state.count)
        loss = float(self.state.loss_sum) / count
        metric = float(self.state.metric_sum) / count
        self._write(
            step,
            "train",
            {"loss": loss, self.metric_name: metric, "steps_per_second": rate},
        )
        self._set(loss_sum=jnp.zeros(()), metric_sum=jnp.zeros(()), count=jnp.int32(0))
        return f"loss {loss:.3f}, {format_metric(self.metric_name, metric)}"

    def _set(self, **values: Array) -> None:
        """Replace fields of the state."""
        if self.experiment.plan.spans_processes:
            values = self.experiment.plan.replicate(values)
        self.state = self.state.replace(**values)

    def _write(self, step: int, split: str, values: dict[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.write(step, split, values)

    def _raise_not_finite(self, step: int) -> NoReturn:
        saved = [] if self.last is None else self.last.steps()
        kept = (
            f"the checkpoint of step {saved[-1]} is kept"
            if saved
            else "no checkpoint was saved before"
        )
        raise InputError(
            f"the loss is not finite at step {step}; {kept}. Check the data for very "
            "large values, or start again in another --workdir with a lower "
            "train.learning_rate or inner learning rate"
        )

    def _save(self, step: int) -> None:
        if not step:
            return
        if not bool(_all_finite(self.state.variables)):
            self._raise_not_finite(step)
        version = (step, int(self.state.validated_step))
        if self.last is None or version == self.saved:
            return
        self.check_lock()
        # The best first: the state refers to it.
        self.best.wait()
        if step == self.saved[0]:  # saved before its validation, by a signal
            self.last.delete(step)
        self.last.save(step, self.state)
        self.saved = version

    # -------------------------------------------------------------- evaluation

    def _validate(self, step: int) -> None:
        """Evaluate on the validation tasks; save the variables if they are best."""
        if not bool(_all_finite(self.state.variables)):
            self._raise_not_finite(step)
        pool = self.experiment.splits.validation
        assert pool is not None  # see `_validation_is_due`
        variables = self.state.evaluated
        values = self._evaluate(
            "validate",
            variables,
            pool,
            self.experiment.eval_key(VALIDATION),
            self.experiment.config.eval.validation_tasks,
        )
        mean, ci95 = mean_and_interval(values)
        self._write(step, "validation", {self.metric_name: mean, "ci95": ci95})
        self._set(validated_step=jnp.int32(step))
        # In the precision of the state; of two equal values the first is kept.
        value, best = np.float32(mean), np.float32(self.state.best_metric)
        sign = 1 if self.experiment.learner.objective.higher_is_better else -1
        if int(self.state.best_step) < 0 or sign * value > sign * best:
            self._set(best_metric=jnp.float32(value), best_step=jnp.int32(step))
            self.check_lock()
            self.best.save(step, variables)

    def _test(self) -> RunResult:
        """Test the variables that are best on validation tasks, or else the last."""
        step, variables, checkpoint = int(self.state.step), self.state.evaluated, "last"
        if self.experiment.splits.validation is not None:
            self.best.wait()
            chosen = self.best.restore(variables, int(self.state.best_step))
            if chosen is None:
                raise InputError(
                    f"cannot read the best checkpoint, of step "
                    f"{int(self.state.best_step)}, so the model selected on validation "
                    "tasks is lost; train again in another --workdir"
                )
            step, variables = chosen
            checkpoint = "best"
        pool = self.experiment.splits.test
        assert pool is not None  # see `build`
        values = self._evaluate(
            "test",
            variables,
            pool,
            self.experiment.eval_key(TEST),
            self.experiment.config.eval.num_tasks,
        )
        mean, ci95 = mean_and_interval(values)
        self._write(
            int(self.state.step), "test", {self.metric_name: mean, "ci95": ci95}
        )
        result = {
            **self.experiment.description(),
            "step": step,
            "train_steps": int(self.state.step),
            "checkpoint": checkpoint,
            "mean": mean,
            "ci95": ci95,
            "num_tasks": len(values),
            "per_task": [_rounded(float(value)) for value in values],
        }
        return RunResult(result, to_default_device(variables))

    def _evaluate(
        self, label: str, variables: Variables, pool: Pool, key: Array, num_tasks: int
    ) -> np.ndarray:
        bar = Progress(label, num_tasks, unit="task")

        def on_pass(count: int) -> None:
            bar.update(count)
            if number := self.stopped():
                bar.close()
                self._save(int(self.state.step))
                self._stop(number)

        try:
            return self.experiment.evaluator(variables, pool, key, num_tasks, on_pass)
        except InputError as error:
            step = int(self.state.step)
            self._save(step)
            if self.last is not None:
                self.last.wait()
            raise InputError(f"cannot {label} at step {step}: {error}") from error
        finally:
            bar.close()


def _rounded(value: float) -> float:
    """Round to seven digits; errors may be in any unit."""
    return float(f"{value:.7g}")


class _Clock:
    """Measures steps per second, without the time it was paused."""

    def __init__(self, step: int) -> None:
        self._step, self._start = step, time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._start += time.monotonic() - start

    def steps_per_second(self, step: int) -> float:
        """Return the rate since the previous call."""
        now = time.monotonic()
        rate = (step - self._step) / (now - self._start)
        self._step, self._start = step, now
        return rate


@jax.jit
def _all_finite(variables: Variables) -> jax.Array:
    checks = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(variables)]
    return jnp.stack(checks).all()
