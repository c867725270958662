"""Meta-training in one call."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import optax
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from mlti_jax import data, parallel, report
from mlti_jax._internal.checks import check_range
from mlti_jax._internal.progress import silence
from mlti_jax.api._calibration import Calibration, calibrate
from mlti_jax.api._model import FittedLearner
from mlti_jax.data import Inputs, Splits
from mlti_jax.data._own.inputs import ARRAYS, leaves_of
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.learners import Variables
from mlti_jax.training import Experiment, base_config, build
from mlti_jax.training._config import flat_fields, set_fields
from mlti_jax.training._experiment import TEST, VALIDATION, MethodFacts
from mlti_jax.training._loop import run_experiment
from mlti_jax.training._metrics import summary

_SHOTS, _QUERIES = 5, 10  # per class, if the data has enough samples
_VALIDATIONS = 10  # during a run
_LARGEST_EMA = 0.999


def fit(
    tasks: Splits | Mapping[str, Any],
    learner: str | None = None,
    strategy: str = "mlti",
    *,
    network: Any = None,
    adapted: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    ways: int | None = None,
    shots: int | None = None,
    steps: int = 2000,
    seed: int = 0,
    workdir: str | pathlib.Path | None = None,
    verbose: bool = True,
    overrides: Mapping[str, Any] | None = None,
) -> FittedLearner:
    """Meta-train a learner on tasks, test it, and calibrate its probabilities.

    Setting, network, interpolation and the size of a task are chosen from the data
    unless given, and printed. A moving average of the variables over about a tenth of
    the steps (at most 1,000) is tested and returned; `{"train.ema": 0.0}` in
    `overrides` disables it. The same config, data, seed and number of devices give
    the same result as `experiments.run`, bit for bit. If JAX is not in use yet, every
    core of a CPU becomes a device first (see `parallel.use_all_cores`).

    Args:
      tasks: the data, as `Splits` or as a dictionary for `data.from_arrays`.
      learner: name of a learner; None: `protonet`, or `maml` for regression.
      strategy: name of a strategy, or several joined with `+`.
      network: the name of a backbone, a `Stack`, or a network of your own that
        `backbones.wrap` accepts, such as a Flax module; without a head. None: chosen
        from the data.
      adapted: the parameters that a gradient-based learner adapts, a predicate on
        parameter paths; see `learners.maml`. None: last block and classifier.
      optimizer: an optimizer of optax with its learning rate, such as
        `optax.adamw(1e-3)`; None: that of the config, Adam by default.
      ways: classes per task; None: five, or as many as the data has.
      shots: support samples per class; None: five, or half of the smallest class.
      steps: number of meta-training steps.
      seed: seed of initialization and training.
      workdir: work directory, in which an interrupted run resumes, and for
        `report.html`; None keeps everything in memory.
      verbose: whether to print choices, progress and results.
      overrides: fields of the config by name, `{"train.learning_rate": 1e-4}`; they
        take precedence over the arguments above. (`compilation_cache` is a setting of
        the command line without effect here.)
    """
    parallel.use_all_cores()  # before data is put on devices
    with silence(not verbose):
        splits = as_splits(tasks)
        config = choose_config(
            splits,
            {
                "learner.name": learner,
                "strategy.name": strategy,
                "backbone.name": network if isinstance(network, str) else None,
                "task.ways": ways,
                "task.shots": shots,
                "train.steps": steps,
                "seed": seed,
            },
            overrides or {},
        )
        experiment = build(
            config,
            splits=splits,
            network=None if isinstance(network, str) else network,
            adapted=adapted,
            optimizer=optimizer,
        )
        notes = (*experiment.notes, _describe_choices(experiment))
        experiment = dataclasses.replace(experiment, notes=notes)
        try:
            result, variables = run_experiment(experiment, workdir)
        except Interrupted as stop:
            if workdir is not None:
                raise
            raise KeyboardInterrupt(
                "stopped, nothing is saved; with a workdir, fit can resume"
            ) from stop
        fitted = from_experiment(experiment, variables, result)
        if verbose:
            print(summary(result))
            print(describe_calibration(fitted))
        report.write_run(
            experiment,
            result,
            workdir,
            variables=variables,
            calibration=fitted.calibration,
        )
        return fitted


def as_splits(tasks: Splits | Mapping[str, Any]) -> Splits:
    """Return the data of `fit` as `Splits` with test tasks."""
    if isinstance(tasks, Mapping):
        tasks = data.from_arrays(tasks)
    if not isinstance(tasks, Splits):
        raise InputError(
            f"tasks is of type {type(tasks).__name__}; expected a dictionary for "
            "mlti_jax.data.from_arrays, or the Splits that it returns"
        )
    if tasks.test is None:
        raise InputError(
            "the data has no test tasks, so the learner cannot be evaluated; hold some "
            "out, such as data.from_arrays(tasks, test=0.2)"
        )
    return tasks


def from_experiment(
    experiment: Experiment, variables: Variables, result: dict[str, Any]
) -> FittedLearner:
    """Return the learner of a finished run, calibrated on validation tasks if any."""
    splits = experiment.splits
    pool, classes = splits.train, tuple(getattr(splits.train, "classes", ()))
    shared = classes if splits.setting == "label_sharing" else ()
    return FittedLearner(
        config=experiment.config,
        facts=MethodFacts.of(splits, experiment.episode.ways),
        learner=experiment.learner,
        strategy=experiment.strategy,
        variables=variables,
        # Splits that were not made from raw data accept samples without conversion.
        inputs=splits.inputs or Inputs(ARRAYS, leaves_of(pool.x), label_names=shared),
        classes=classes,
        result=result,
        calibration=_calibrate(experiment, variables),
        adapted=experiment.adapted,
        splits=splits,
    )


def _calibrate(experiment: Experiment, variables: Variables) -> Calibration | None:
    splits = experiment.splits
    assert splits.test is not None  # see `as_splits`
    if splits.setting == "regression" or splits.validation is None:
        return None
    number = experiment.config.eval.validation_tasks

    validation, test = (
        experiment.evaluator.outputs(
            variables, pool, experiment.eval_key(purpose), number
        )
        for pool, purpose in ((splits.validation, VALIDATION), (splits.test, TEST))
    )
    return calibrate(validation, test, number)


def _describe_choices(experiment: Experiment) -> str:
    """Describe the size of tasks, the method, and batch-norm, for the user."""
    config, (ways, shots, queries) = experiment.config, experiment.episode
    size = f"{ways}-way {shots}-shot"
    if experiment.splits.setting == "regression":
        size = f"regression from {shots} samples"
    layers = ", ".join(map(str, experiment.strategy.layers))
    mixing = ""
    if experiment.strategy.transform is not None:
        mixing = f" with {config.interpolation.method} at layer {layers}"
    norm = (
        "the statistics of the given set: a prediction depends on the other queries of "
        "the same call"
        if experiment.learner.norm == "batch"
        else "running averages: a prediction does not depend on the other queries"
    )
    return (
        f"{size}, {queries} queries in training and "
        f"{experiment.evaluator.episode.queries} at test; {config.learner.name} on "
        f"{config.backbone.name}, {config.strategy.name}{mixing}; batch-norm "
        f"uses {norm}"
    )


def describe_calibration(fitted: FittedLearner) -> str:
    """Describe whether the learner's probabilities are calibrated, for the user."""
    if fitted.regression:
        return "predictions are values without an interval"
    if fitted.calibration is not None:
        temperature, tasks, test_tasks, before, after = fitted.calibration
        return (
            f"probabilities are calibrated on {tasks} validation tasks (temperature "
            f"{temperature:.3g}): on {test_tasks} test tasks the expected calibration "
            f"error changes from {100 * before:.1f} to {100 * after:.1f} %"
        )
    if fitted.splits is None:
        return "probabilities are not calibrated"
    if fitted.splits.validation is None:
        return (
            "probabilities are not calibrated: the data has no validation tasks; hold "
            "some out, such as data.from_arrays(tasks, validation=0.2)"
        )
    return (
        "probabilities are not calibrated: no temperature is optimal on the validation "
        "tasks, for example if all samples are classified correctly"
    )


# ------------------------------------------------------------------ choice of config


def choose_config(
    splits: Splits, arguments: Mapping[str, Any], overrides: Mapping[str, Any]
) -> ConfigDict:
    """Return the config of a run; `build` chooses network, interpolation and ways.

    Args:
      splits: the data.
      arguments: arguments of `fit` by the names of fields; None if not given.
      overrides: further fields, which take precedence.
    """
    config = base_config()
    config.dataset.name = splits.name
    config.interpolation = {"method": "", "layers": ()}
    config.task = {"ways": placeholder(int), "shots": _SHOTS, "queries": _QUERIES}
    if not isinstance(overrides, Mapping):
        raise InputError(
            f"overrides is of type {type(overrides).__name__}; expected a dictionary "
            'of config fields, such as {"train.learning_rate": 1e-4}'
        )
    given = {name: v for name, v in arguments.items() if v is not None}
    given |= flat_fields(overrides)
    given = {n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()}
    # ProtoNet accepts any number of classes, but no targets.
    learner = "maml" if splits.setting == "regression" else "protonet"
    fields = {"learner.name": learner, **given}
    train = _smallest_group(splits.train)
    others = [
        _smallest_group(pool)
        for pool in (splits.validation, splits.test)
        if pool is not None
    ]
    # Half of the smallest class is left for queries.
    shots = fields.setdefault(
        "task.shots", max(1, min(_SHOTS, min(train, *others) // 2))
    )
    if isinstance(shots, int):  # otherwise `set_fields` raises
        fields.setdefault("task.queries", max(1, min(_QUERIES, train - shots)))
        left = min(others, default=_QUERIES + shots) - shots
        fields.setdefault("eval.queries", max(1, min(_QUERIES, left)))
    steps = fields.get("train.steps")
    if isinstance(steps, int):
        check_range("train.steps", steps, 2**31 - 1)
        fields.setdefault("eval.every", max(1, steps // _VALIDATIONS))
        fields.setdefault("train.ema", default_ema(steps))
    set_fields(config, fields)
    config.lock()
    return config


def default_ema(steps: int) -> float:
    r"""Return the decay of the moving average of the variables for own data.

    A decay d averages about $1 / (1 - d)$ steps: here a tenth of all steps, so that
    early variables do not count, but at most 1,000.
    """
    return round(max(0.0, min(_LARGEST_EMA, 1 - 10 / steps)), 6)


def _smallest_group(pool: Any) -> int:
    return int(np.asarray(pool.count).min())
