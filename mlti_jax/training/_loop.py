"""Training, validation, checkpoints and the final test: one run from start to end."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.locks import locked
from mlti_jax._internal.progress import Progress, format_metric, say, stop_signal
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.learners import Variables
from mlti_jax.training._checkpoints import Checkpoints
from mlti_jax.training._evaluation import mean_and_interval
from mlti_jax.training._experiment import TEST, TRAIN, VALIDATION, Experiment
from mlti_jax.training._metrics import MetricsWriter
from mlti_jax.training._step import TrainState, make_run_steps
from mlti_jax.training._workdir import open_workdir, read_json, write_json

# A call of the compiled loop lasts about this long, so that a signal is answered.
SECONDS_A_CALL = 1.0
KEPT_CHECKPOINTS = 3
# Two, since a resumed run may have to do without the newest of them.
KEPT_BEST = 2


def train_and_evaluate(experiment: Experiment, workdir: str | pathlib.Path) -> dict:
    """Runs an experiment in a work directory, or goes on with an interrupted run.

    Leaves there `config.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/last`,
    `checkpoints/best` and `results.json`. A run that is finished is not run again.

    Returns:
      The result, as in `results.json`.
    """
    workdir = pathlib.Path(workdir)
    config = json.loads(experiment.config.to_json_best_effort())
    open_workdir(workdir, {**config, "data": experiment.data_facts()})
    with locked(workdir, "--workdir"), stop_signal() as stopped:
        if (workdir / "results.json").exists():
            say(f"{workdir} holds a finished run of this config; nothing to train")
            return read_json(workdir / "results.json")
        for note in experiment.notes:
            say(note)
        with contextlib.ExitStack() as stack:
            result = _Run(experiment, workdir, stopped, stack).run()
        write_json(workdir / "results.json", result)
        if number := stopped():
            raise Interrupted(number, result["train_steps"])
        return result


class _Run:
    """One run; holds what its stages share."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: pathlib.Path,
        stopped: Callable[[], int],
        stack: contextlib.ExitStack,
    ):
        self.experiment, self.stopped = experiment, stopped
        self.last = Checkpoints(workdir / "checkpoints" / "last", KEPT_CHECKPOINTS)
        stack.callback(self.last.close)
        self.best = Checkpoints(workdir / "checkpoints" / "best", KEPT_BEST)
        stack.callback(self.best.close)
        self.metric_name = experiment.learner.objective.metric_name
        self.saved = (-1, -1)  # the step of the newest checkpoint, and its validation
        self.state = self._restore_or_init()
        self.metrics = MetricsWriter(workdir, int(self.state.step))
        stack.callback(self.metrics.close)

    def run(self) -> dict:
        """Trains and tests; returns the result once all checkpoints are written."""
        self._train()
        result = self._test()
        self.last.wait()
        return result

    # ---------------------------------------------------------------- training

    def _restore_or_init(self) -> TrainState:
        state = self.experiment.init_state()
        saved = self.last.restore(state)
        if saved is None:
            return state
        step, state = saved
        say(f"going on from step {step}")
        self.saved = (step, int(state.validated_step))
        return state

    def _train(self) -> None:
        experiment, config = self.experiment, self.experiment.config
        run_steps = make_run_steps(
            experiment.learner,
            experiment.strategy,
            experiment.optimiser,
            experiment.episode,
            config.train.meta_batch_size,
            experiment.plan,
        )
        pool, key = experiment.plan.replicate(
            (experiment.splits.train, experiment.key(TRAIN))
        )
        self.state = experiment.plan.replicate(self.state)
        total = config.train.steps
        step = int(self.state.step)
        bar = Progress("train", total, step)
        steps_a_call, text = 1, ""
        clock = _Clock(step)
        while True:
            if self._validation_is_due(step):
                with clock.stopped():
                    self._validate(step)
            number = self.stopped()
            if number or step % config.train.checkpoint_every == 0 or step == total:
                self._save(step)
            if step == total:
                break
            if number:
                bar.close()
                self._stop(number)
            stop = self._next_stop(step, steps_a_call)
            start = time.monotonic()
            self.state, bad_step = run_steps(self.state, pool, key, stop)
            if (bad := int(bad_step)) >= 0:
                bar.close()
                self._refuse(bad)
            seconds = time.monotonic() - start
            # The first call compiles; it only tells that one step is not too long.
            fitting = int((stop - step) * SECONDS_A_CALL / seconds)
            steps_a_call = max(1, min(2 * steps_a_call, fitting))
            done, step = stop - step, stop
            if step % config.train.log_every == 0 or step == total:
                text = self._log(step, clock.steps_per_second(step))
            bar.update(done, text)
        bar.close()

    def _validation_is_due(self, step: int) -> bool:
        if self.experiment.splits.validation is None or not step:
            return False
        config = self.experiment.config
        at_boundary = step % config.eval.every == 0 or step == config.train.steps
        return at_boundary and int(self.state.validated_step) < step

    def _stop(self, number: int) -> None:
        """Ends the run on a signal, once what is being saved is saved."""
        say("stopping")
        self.best.wait()
        self.last.wait()
        raise Interrupted(number, int(self.state.step))

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
            f"the loss is not finite at step {step}; {kept}. Look at the data for very "
            "large values, or start anew in another --workdir with a lower "
            "train.learning_rate or inner learning rate"
        )

    def _save(self, step: int) -> None:
        if not step:
            return
        if not bool(_all_finite(self.state.variables)):
            self._refuse(step)
        version = (step, int(self.state.validated_step))
        if version == self.saved:
            return
        # The best comes first: a state that names it must never be alone.
        self.best.wait()
        if step == self.saved[0]:  # It was interrupted before its validation.
            self.last.delete(step)
        self.last.save(step, self.state)
        self.saved = version

    # -------------------------------------------------------------- evaluation

    def _validate(self, step: int) -> None:
        """Evaluates on the validation tasks and keeps the model if it is the best."""
        if not bool(_all_finite(self.state.variables)):
            self._refuse(step)
        values = self._evaluate(
            "validate",
            self.state.variables,
            self.experiment.splits.validation,
            self.experiment.eval_key(VALIDATION),
            self.experiment.config.eval.validation_tasks,
        )
        mean, ci95 = mean_and_interval(values)
        self.metrics.write(step, "validation", {self.metric_name: mean, "ci95": ci95})
        self.state = self.state.replace(validated_step=jnp.int32(step))
        # In the state's precision, so that of two equal values the first stays.
        mean, best = np.float32(mean), np.float32(self.state.best_metric)
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
            chosen = self.best.restore(variables, int(self.state.best_step))
            if chosen is None:
                raise InputError(
                    f"the best checkpoint, of step {int(self.state.best_step)}, can't "
                    "be read, so that the model chosen on validation tasks is lost; "
                    "train anew in another --workdir"
                )
            step, variables = chosen
            checkpoint = "best"
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
            if number := self.stopped():
                bar.close()
                self._save(int(self.state.step))
                self._stop(number)

        values = self.experiment.evaluator(variables, pool, key, number, on_pass)
        bar.close()
        return values


class _Clock:
    """Steps a second since it was last asked, without the time it was stopped."""

    def __init__(self, step: int):
        self._step, self._start = step, time.monotonic()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._start += time.monotonic() - start

    def steps_per_second(self, step: int) -> float:
        now = time.monotonic()
        rate = (step - self._step) / (now - self._start)
        self._step, self._start = step, now
        return rate


@jax.jit
def _all_finite(variables: Variables) -> jax.Array:
    checks = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(variables)]
    return jnp.stack(checks).all()


def format_interval(result: dict, mean: float, ci95: float, sign: str = "") -> str:
    """`mean +- ci95`, accuracy in percent; `sign="+"` for differences."""
    if result["metric"] == "accuracy":
        return f"{100 * mean:{sign}.2f} +- {100 * ci95:.2f} %"
    return f"{mean:{sign}.4f} +- {ci95:.4f}"


def summary(result: dict) -> str:
    """A result as one line for people."""
    value = format_interval(result, result["mean"], result["ci95"])
    source = f" ({result['source']})" if result["source"] else ""
    return (
        f"{result['dataset']}{source} {result['ways']}-way {result['shots']}-shot, "
        f"{result['learner']} {result['strategy']}, seed {result['seed']}: test "
        f"{result['metric']} {value} over {result['num_tasks']} tasks "
        f"({result['checkpoint']} checkpoint, step {result['step']} of "
        f"{result['train_steps']})"
    )
