"""Meta-training in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from mlti_jax import data, parallel
from mlti_jax._internal.progress import silence
from mlti_jax.api._calibration import Calibration, calibrate, query_outputs
from mlti_jax.api._configuring import choose_config
from mlti_jax.api._fitted import FittedLearner
from mlti_jax.data import Inputs, Splits
from mlti_jax.data._own.inputs import ARRAYS, leaves_of
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.learners import Variables
from mlti_jax.training import Experiment, build, summary, train_and_evaluate
from mlti_jax.training._experiment import TEST, VALIDATION, MethodFacts
from mlti_jax.training._finished import tested_variables


def fit(
    tasks: Splits | Mapping[str, Any],
    learner: str | None = None,
    strategy: str = "mlti",
    *,
    ways: int | None = None,
    shots: int | None = None,
    steps: int = 2000,
    seed: int = 0,
    workdir: str | pathlib.Path | None = None,
    verbose: bool = True,
    overrides: Mapping[str, Any] | None = None,
    **fields: Any,
) -> FittedLearner:
    """Meta-trains a learner on tasks, tests it, and calibrates its probabilities.

    What is not given is chosen by the data and printed: setting, network, how tasks are
    interpolated, the size of a task. The same config, data and seed give what
    `experiments.run` gives, bit for bit, on as many devices: if JAX is not in use yet,
    all cores of a CPU become devices, as there (see `parallel.use_all_cores`).

    Args:
      tasks: the data, as `Splits`; or a dictionary, as `data.from_arrays` takes it.
      learner: one of `learners.LEARNERS`; None: protonet, for regression maml.
      strategy: one of `strategies.STRATEGIES`, or several joined by `+`.
      ways: classes of a task; None: five, or as many as there are.
      shots: support samples a class; None: five, or as many as leave queries.
      steps: of meta-training.
      seed: of initialisation and training.
      workdir: where the run leaves all it makes, and goes on if it was interrupted;
        None: nothing is kept but what is returned.
      verbose: whether choices, progress and results are printed.
      overrides: fields of the config by name, `{"train.learning_rate": 1e-4}`; they
        take precedence over the arguments above. (`compilation_cache` is of the
        command line and changes nothing here.)
      **fields: the same, as `**{"train.learning_rate": 1e-4}`.
    """
    with silence(not verbose):
        splits = as_splits(tasks)
        config = choose_config(
            splits,
            {
                "learner.name": learner,
                "strategy.name": strategy,
                "task.ways": ways,
                "task.shots": shots,
                "train.steps": steps,
                "seed": seed,
            },
            {**(overrides or {}), **fields},
        )
        experiment = build(config, splits=splits)
        notes = (*experiment.notes, choices_note(experiment))
        experiment = dataclasses.replace(experiment, notes=notes)
        with _directory(workdir) as folder:
            result = train_and_evaluate(experiment, folder)
            variables, _ = tested_variables(experiment, folder)
        fitted = from_experiment(experiment, variables, result)
        if verbose:
            print(summary(result))
            print(probabilities_note(fitted))
        return fitted


def as_splits(tasks: Splits | Mapping[str, Any]) -> Splits:
    """The data of `fit`, from what it is given."""
    if isinstance(tasks, Mapping):
        parallel.use_all_cores()
        tasks = data.from_arrays(tasks)
    if not isinstance(tasks, Splits):
        raise InputError(
            f"tasks is of type {type(tasks).__name__}; expected a dictionary, as "
            "mlti_jax.data.from_arrays takes it, or the Splits that it returns"
        )
    if tasks.test is None:
        raise InputError(
            "the data has no test tasks, so that nothing could tell how good a learner "
            "is; keep some back, as by data.from_arrays(tasks, test=0.2)"
        )
    return tasks


def from_experiment(
    experiment: Experiment, variables: Variables, result: dict
) -> FittedLearner:
    """The learner of a finished run, calibrated where there are validation tasks."""
    splits = experiment.splits
    pool, classes = splits.train, tuple(getattr(splits.train, "classes", ()))
    shared = classes if splits.setting == "label_sharing" else ()
    return FittedLearner(
        config=experiment.config,
        facts=MethodFacts.of(splits, experiment.episode.ways),
        learner=experiment.learner,
        strategy=experiment.strategy,
        variables=variables,
        # Splits that were not made of raw data take samples as they are.
        inputs=splits.inputs or Inputs(ARRAYS, leaves_of(pool.x), label_names=shared),
        classes=classes,
        result=result,
        calibration=_calibration(experiment, variables),
        splits=splits,
    )


def choices_note(experiment: Experiment) -> str:
    """In words, the sizes of tasks, the method, and what its predictions depend on."""
    config, (ways, shots, queries) = experiment.config, experiment.episode
    size = f"{ways}-way {shots}-shot"
    if experiment.splits.setting == "regression":
        size = f"regression from {shots} samples"
    layers = ", ".join(map(str, experiment.strategy.layers))
    mixing = ""
    if experiment.strategy.transform is not None:
        mixing = f" by {config.interpolation.method} at layer {layers}"
    norm = (
        "the statistics of the set at hand: a prediction depends on the other queries "
        "that it is asked for with"
        if experiment.learner.norm == "batch"
        else "running averages: a prediction does not depend on the other queries"
    )
    return (
        f"{size}, {queries} queries in training and "
        f"{experiment.evaluator.episode.queries} at test; {config.learner.name} on "
        f"{config.backbone.name}, {config.strategy.name}{mixing}; batch-norm "
        f"uses {norm}"
    )


def _calibration(experiment: Experiment, variables: Variables) -> Calibration | None:
    splits = experiment.splits
    if splits.setting == "regression" or splits.validation is None:
        return None
    number = experiment.config.eval.validation_tasks

    def outputs(pool: data.Pool, purpose: int):
        key = experiment.eval_key(purpose)
        return query_outputs(experiment.evaluator, variables, pool, key, number)

    fitting = outputs(splits.validation, VALIDATION)
    return calibrate(fitting, outputs(splits.test, TEST), number)


def probabilities_note(fitted: FittedLearner) -> str:
    """In words, whether the learner's probabilities can be believed."""
    if fitted.regression:
        return "predictions are values, without an interval"
    if fitted.calibration is not None:
        temperature, tasks, test_tasks, before, after = fitted.calibration
        return (
            f"probabilities are calibrated on {tasks} validation tasks (temperature "
            f"{temperature:.3g}): on {test_tasks} test tasks the expected calibration "
            f"error goes from {100 * before:.1f} to {100 * after:.1f} %"
        )
    if fitted.splits is None:
        return "probabilities are not calibrated"
    if fitted.splits.validation is None:
        return (
            "probabilities are not calibrated: there are no validation tasks; keep "
            "some back, as by data.from_arrays(tasks, validation=0.2)"
        )
    return (
        "probabilities are not calibrated: no temperature suits the validation tasks, "
        "as where all is classified rightly"
    )


@contextlib.contextmanager
def _directory(workdir: str | pathlib.Path | None) -> Iterator[pathlib.Path]:
    """The work directory, or one that is there only while the run goes on."""
    if workdir is not None:
        yield pathlib.Path(workdir)
        return
    with tempfile.TemporaryDirectory(prefix="mlti_jax-") as folder:
        try:
            yield pathlib.Path(folder)
        except Interrupted as stop:
            raise KeyboardInterrupt(
                "stopped, and nothing is kept; with a workdir, fit goes on from there"
            ) from stop
