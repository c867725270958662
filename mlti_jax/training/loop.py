"""Training, validation, checkpoints and the final test: one run from start to end."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training.checkpoints import Checkpoints
from mlti_jax.training.evaluation import mean_and_interval
from mlti_jax.training.experiment import TEST, TRAIN, VALIDATION, Experiment
from mlti_jax.training.metrics import MetricsWriter
from mlti_jax.training.progress import Progress, format_metric, say, stop_signal
from mlti_jax.training.step import TrainState, make_run_steps
from mlti_jax.training.workdir import open_workdir, read_json, write_json

# A call of the compiled loop lasts about this long, so that a signal is answered.
SECONDS_A_CALL = 1.0
KEPT_CHECKPOINTS = 3


class Interrupted(Exception):
    """A signal ended the run; all is saved, and the same command goes on from there."""

    def __init__(self, signal_number: int, step: int):
        super().__init__(
            f"stopped at step {step}, saved; run the same command again "
            "to go on from there"
        )
        self.exit_code = 128 + signal_number


def train_and_evaluate(experiment: Experiment, workdir: str | pathlib.Path) -> dict:
    """Runs an experiment in a work directory, or goes on with an interrupted run.

    Leaves there `config.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/last`,
    `checkpoints/best` and `results.json`. A run that is finished is not run again.

    Returns:
      The result, as in `results.json`.
    """
    workdir = pathlib.Path(workdir)
    open_workdir(workdir, json.loads(experiment.config.to_json_best_effort()))
    if (workdir / "results.json").exists():
        result = read_json(workdir / "results.json")
        say(f"{workdir} holds a finished run of this config; nothing to train")
        return result
    for note in experiment.notes:
        say(note)
    with stop_signal() as stopped:
        return _Run(experiment, workdir, stopped).run()


class _Run:
    """One run; holds what its stages share."""

    def __init__(
        self, experiment: Experiment, workdir: pathlib.Path, stopped: Callable[[], int]
    ):
        self.experiment, self.workdir, self.stopped = experiment, workdir, stopped
        self.last = Checkpoints(workdir / "checkpoints" / "last", KEPT_CHECKPOINTS)
        self.best = Checkpoints(workdir / "checkpoints" / "best", 1)
        self.metric_name = experiment.learner.objective.metric_name
        self.state = self._restore_or_init()
        self.metrics = MetricsWriter(workdir, int(self.state.step))

    def run(self) -> dict:
        try:
            self._train()
            result = self._test()
            self.last.wait()
            self.best.wait()
        finally:
            self.metrics.close()
            self.last.close()
            self.best.close()
        write_json(self.workdir / "results.json", result)
        return result

    # ---------------------------------------------------------------- training

    def _restore_or_init(self) -> TrainState:
        state = self.experiment.init_state()
        saved = self.last.restore(state)
        if saved is None:
            return state
        step, state = saved
        say(f"going on from step {step}")
        return state

    def _train(self) -> None:
        experiment, config = self.experiment, self.experiment.config
        run_steps = make_run_steps(
            experiment.learner,
            experiment.strategy,
            experiment.optimiser,
            experiment.episode,
            config.train.meta_batch_size,
        )
        key, total = experiment.key(TRAIN), config.train.steps
        step = int(self.state.step)
        bar = Progress("train", total, step)
        steps_a_call, text = 1, ""
        window_start, window_step = time.monotonic(), step
        while step < total:
            stop = self._next_stop(step, steps_a_call)
            start = time.monotonic()
            self.state, bad_step = run_steps(
                self.state, experiment.splits.train, key, stop
            )
            if (bad := int(bad_step)) >= 0:
                bar.close()
                self._refuse(bad)
            seconds = time.monotonic() - start
            # The first call compiles; it only tells that one step is not too long.
            steps_a_call = max(
                1, min(2 * steps_a_call, int((stop - step) * SECONDS_A_CALL / seconds))
            )
            done, step = stop - step, stop
            if step % config.train.log_every == 0 or step == total:
                now = time.monotonic()
                rate = (step - window_step) / (now - window_start)
                window_start, window_step = now, step
                text = self._log(step, rate)
            bar.update(done, text)
            if step % config.eval.every == 0 or step == total:
                self._validate(step)
                window_start = time.monotonic()
            number = self.stopped()
            if number or step % config.train.checkpoint_every == 0 or step == total:
                self._save(step)
            if number and step < total:
                bar.close()
                self.last.wait()
                self.best.wait()
                raise Interrupted(number, step)
        bar.close()

    def _next_stop(self, step: int, steps_a_call: int) -> int:
        """The step where the next call ends: soon, and at no boundary passed over."""
        train, evaluation = self.experiment.config.train, self.experiment.config.eval
        ends = [step + steps_a_call, train.steps]
        for every in (train.log_every, train.checkpoint_every, evaluation.every):
            ends.append((step // every + 1) * every)
        return min(ends)

    def _log(self, step: int, rate: float) -> str:
        """Writes the means since the last time, and starts the sums anew."""
        count = int(self.state.count)
        loss = float(self.state.loss_sum) / count
        metric = float(self.state.metric_sum) / count
        self.metrics.write(
            step,
            "train",
            {"loss": loss, self.metric_name: metric, "steps_per_second": rate},
        )
        self.state = self.state.replace(
            loss_sum=jnp.float32(0), metric_sum=jnp.float32(0), count=jnp.int32(0)
        )
        return f"loss {loss:.3f}, {format_metric(self.metric_name, metric)}"

    def _refuse(self, step: int) -> None:
        saved = self.last.steps()
        kept = (
            f"the checkpoint of step {saved[-1]} is kept"
            if saved
            else ("no checkpoint had been saved yet")
        )
        raise InputError(
            f"the loss is not finite at step {step}; {kept}. Lower "
            "train.learning_rate or the inner learning rate, and look at the data "
            "for values that are not finite"
        )

    def _save(self, step: int) -> None:
        if not _all_finite(self.state.variables):
            self._refuse(step)
        self.last.save(step, self.state)

    # -------------------------------------------------------------- evaluation

    def _validate(self, step: int) -> None:
        """Evaluates on the validation tasks and keeps the model if it is the best."""
        pool = self.experiment.splits.validation
        if pool is None:
            return
        number = self.experiment.config.eval.validation_tasks
        values = self._evaluate(
            "validate",
            self.state.variables,
            pool,
            self.experiment.eval_key(VALIDATION),
            number,
        )
        mean, ci95 = mean_and_interval(values)
        self.metrics.write(step, "validation", {self.metric_name: mean, "ci95": ci95})
        best = float(self.state.best_metric)
        sign = 1 if self.experiment.learner.objective.higher_is_better else -1
        if int(self.state.best_step) < 0 or sign * mean > sign * best:
            self.state = self.state.replace(
                best_metric=jnp.float32(mean), best_step=jnp.int32(step)
            )
            self.best.save(step, self.state.variables)

    def _test(self) -> dict:
        """The result on the test tasks, of the model that validation tasks chose."""
        step, variables, checkpoint = int(self.state.step), self.state.variables, "last"
        if self.experiment.splits.validation is not None:
            self.best.wait()
            chosen = self.best.restore(variables)
            if chosen is not None and chosen[0] == int(self.state.best_step):
                step, variables = chosen
                checkpoint = "best"
            else:
                say("the best checkpoint can't be read; testing the last one instead")
        number = self.experiment.config.eval.num_tasks
        values = self._evaluate(
            "test",
            variables,
            self.experiment.splits.test,
            self.experiment.eval_key(TEST),
            number,
        )
        mean, ci95 = mean_and_interval(values)
        self.metrics.write(
            int(self.state.step), "test", {self.metric_name: mean, "ci95": ci95}
        )
        return {
            **self.experiment.description(),
            "step": step,
            "train_steps": int(self.state.step),
            "checkpoint": checkpoint,
            "mean": mean,
            "ci95": ci95,
            "num_tasks": len(values),
            "per_task": [round(float(value), 6) for value in values],
        }

    def _evaluate(self, label: str, variables: Variables, pool, key, number: int):
        bar = Progress(label, number, unit="task")

        def on_pass(count: int) -> None:
            bar.update(count)
            signal_number = self.stopped()
            if signal_number and label == "test":
                bar.close()
                self.last.wait()
                raise Interrupted(signal_number, int(self.state.step))

        values = self.experiment.evaluator(variables, pool, key, number, on_pass)
        bar.close()
        if not np.isfinite(values).all():
            raise InputError(
                f"the {self.metric_name} is not finite on {label} task "
                f"{int(np.argmin(np.isfinite(values)))}; the model has diverged: lower "
                "train.learning_rate"
            )
        return values


@jax.jit
def _finite(variables: Variables) -> jax.Array:
    checks = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(variables)]
    return jnp.stack(checks).all()


def _all_finite(variables: Variables) -> bool:
    return bool(_finite(variables))


def summary(result: dict) -> str:
    """A result as one line for people."""
    scale, unit, digits = (
        (100, " %", 2) if result["metric"] == "accuracy" else (1, "", 4)
    )
    value = f"{scale * result['mean']:.{digits}f}"
    interval = f"{scale * result['ci95']:.{digits}f}{unit}"
    return (
        f"{result['dataset']} {result['ways']}-way {result['shots']}-shot, "
        f"{result['learner']} {result['strategy']}, seed {result['seed']}: test "
        f"{result['metric']} {value} +- {interval} over {result['num_tasks']} tasks "
        f"({result['checkpoint']} checkpoint, step {result['step']} of "
        f"{result['train_steps']})"
    )
