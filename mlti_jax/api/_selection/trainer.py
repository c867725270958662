"""One training run of a candidate on a fold, and its scores on the held-out tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.progress import silence
from mlti_jax.api._calibration import softmax
from mlti_jax.api._selection.candidates import Candidate
from mlti_jax.api._selection.folds import TaskSet
from mlti_jax.data import ClassPool, RegressionPool
from mlti_jax.data._pools import Pool, check_episode
from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training import Experiment, build
from mlti_jax.training._config import with_fields
from mlti_jax.training._experiment import TEST
from mlti_jax.training._loop import run_experiment

# For each setting the metrics that can be selected on, the first by default.
_METRICS = {"regression": ("mse",), "other": ("accuracy", "log_loss")}


class Fit(NamedTuple):
    """A training run of a cross-validation.

    Attributes:
      candidate: position of the candidate.
      held_out: sorted positions of the folds that it must not see.
      steps: number of training steps.
      repeat: number of the repetition with another seed.
    """

    candidate: int
    held_out: tuple[int, ...]
    steps: int
    repeat: int = 0

    @property
    def file(self) -> str:
        """Name of the file with its scores."""
        folds = "_".join(map(str, self.held_out)) or "all"
        return (
            f"candidate{self.candidate}-without{folds}-steps{self.steps}"
            f"-repeat{self.repeat}.json"
        )


def check_metric(metric: str | None, setting: str) -> str:
    """Return the metric to choose with; raise `InputError` if it does not exist."""
    known = _METRICS.get(setting, _METRICS["other"])
    if metric is None:
        return known[0]
    if metric not in known:
        raise unknown_name(
            f"metric for {setting.replace('_', '-')} data", metric, known
        )
    return metric


def higher_is_better(metric: str) -> bool:
    """Whether a larger value of a metric is better."""
    return metric == "accuracy"


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Trains candidates on folds.

    A fit has the result that `mlti_jax.fit` has on the same data with the same seed
    and number of steps. Folds of the same shape share their compiled programs.

    Attributes:
      candidates: the candidates.
      tasks: all tasks.
      folds: positions of the tasks of each fold.
      metric: what is measured.
      episodes: number of test episodes for each held-out task (for each fold, if tasks
        are drawn from classes).
    """

    candidates: Sequence[Candidate]
    tasks: TaskSet
    folds: Sequence[Sequence[int]]
    metric: str
    episodes: int
    _built: dict[tuple[object, ...], Experiment] = dataclasses.field(
        default_factory=dict, repr=False
    )

    def check(self) -> None:
        """Raise `InputError` if a candidate cannot be trained or tested on a fold."""
        for number, candidate in enumerate(self.candidates):
            for fold in range(len(self.folds)):
                fit = Fit(number, (fold,), 1)
                try:
                    experiment = self.experiment(fit)
                    episode = experiment.episode._asdict()
                    check_episode(experiment.splits.train, **episode)
                    size = experiment.evaluator.episode
                    for pool in self.test_pools(experiment, fold):
                        check_episode(pool, **size._asdict())
                except InputError as error:
                    names = [self.tasks.names[task] for task in self.folds[fold]]
                    raise InputError(
                        f"candidate {candidate.name}, without {', '.join(names)}: "
                        f"{error}"
                    ) from error
                ragged = size.queries is None and isinstance(self.tasks.pool, ClassPool)
                if self.metric == "log_loss" and ragged:
                    raise InputError(
                        "metric is 'log_loss', but eval.queries is None, so classes "
                        "have different numbers of queries; set eval.queries"
                    )

    def seed(self, fit: Fit) -> int:
        """Return the seed of a fit: the same for all candidates, not for all folds.

        With one seed for all folds, a lucky initialization would favor the same
        candidate in every fold, and folds would not show how much luck matters.
        """
        first = int(self.candidates[fit.candidate].config.seed)
        entropy = [first, fit.repeat, len(fit.held_out), *fit.held_out]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def experiment(self, fit: Fit) -> Experiment:
        """Return the parts of a fit; compiled programs are shared where possible."""
        candidate = self.candidates[fit.candidate]
        held_out = [task for fold in fit.held_out for task in self.folds[fold]]
        splits = self.tasks.fold(held_out, self.folds[(*fit.held_out, 0)[0]])
        fields = self._fields(fit)
        shape = splits.train.index.shape
        key = (fit.candidate, shape, fit.steps)
        if key not in self._built:
            built = build(
                with_fields(candidate.config, fields), splits=splits, **candidate.parts
            )
            # The method does not depend on the number of steps; programs are
            # compiled for its objects.
            first = self._built.setdefault((fit.candidate, shape), built)
            changes = {
                name: getattr(first, name)
                for name in ("learner", "strategy", "evaluator", "plan")
            }
            if not _depends_on_steps(candidate):
                changes["optimiser"] = first.optimiser
            self._built[key] = dataclasses.replace(built, **changes)
        built = self._built[key]
        config = with_fields(built.config, {"seed": fields["seed"]})
        return dataclasses.replace(built, config=config, splits=splits)

    def _fields(self, fit: Fit) -> dict[str, int]:
        """Return the fields of a config that a fit sets."""
        fields = {
            "seed": self.seed(fit),
            "train.steps": fit.steps,
            "eval.num_tasks": 2,  # Scores are computed separately, task by task.
        }
        if self.candidates[fit.candidate].config.train.devices is None:
            # Sums over several devices are rounded differently, and folds in several
            # processes use the cores better.
            fields["train.devices"] = 1
        return fields

    def test_pools(self, experiment: Experiment, fold: int) -> list[Pool]:
        """Return the pools of the test tasks of a fold, one for each task."""
        tasks = list(self.folds[fold])
        groups = (
            [tasks] if isinstance(self.tasks.pool, ClassPool) else [[t] for t in tasks]
        )
        train = experiment.splits.train
        scaled = {"x": train.x}  # with the statistics of the training tasks
        if isinstance(train, RegressionPool):
            scaled["y"] = train.y
        return [
            dataclasses.replace(self.tasks.subset(group), **scaled) for group in groups
        ]

    def run(self, fit: Fit) -> dict[int, np.ndarray]:
        """Train, and return the scores `[tasks, episodes]` of each held-out fold."""
        experiment = self.experiment(fit)
        variables = self.train(experiment, fit)
        return {
            fold: np.stack(
                [
                    self.scores(experiment, variables, pool)
                    for pool in self.test_pools(experiment, fold)
                ]
            )
            for fold in fit.held_out
        }

    def train(self, experiment: Experiment, fit: Fit) -> Variables:
        """Run the experiment of a fit, and return the trained variables."""
        try:
            with silence():
                return run_experiment(experiment).variables
        except InputError as error:  # such as a loss that is not finite
            raise InputError(
                f"candidate {self.candidates[fit.candidate].name} cannot be trained "
                f"for {fit.steps} steps: {error}. Or remove this candidate"
            ) from error

    def scores(
        self, experiment: Experiment, variables: Variables, pool: Pool
    ) -> np.ndarray:
        """Return the score of each episode of a pool, `[episodes]`."""
        key = experiment.eval_key(TEST)
        evaluator = experiment.evaluator
        if self.metric == "accuracy":
            values = evaluator(variables, pool, key, self.episodes)
            return values.astype(np.float64)
        found = evaluator.outputs(variables, pool, key, self.episodes)
        outputs = found.outputs.astype(np.float64)
        if not np.isfinite(outputs).all():
            raise InputError(
                "outputs for test tasks are not finite; check the samples and targets "
                "for very large values"
            )
        if self.metric == "mse":
            # Not the learner's metric, which has the scale of the first fold.
            inputs = experiment.splits.inputs
            scale = np.array((inputs and inputs.targets.scale) or 1.0)
            errors = (scale * (outputs - found.labels)) ** 2
            return errors.reshape(self.episodes, -1).mean(axis=1)
        p = softmax(outputs)
        own = np.maximum(p[np.arange(len(p)), found.labels.argmax(axis=1)], 1e-12)
        return -np.log(own).reshape(self.episodes, -1).mean(axis=1)

    def refit(self, number: int, steps: int) -> tuple[Experiment, Variables]:
        """Train a candidate on all tasks."""
        fit = Fit(number, (), steps)
        experiment = self.experiment(fit)
        variables = self.train(experiment, fit)
        # Now with names. A run has test tasks; here their result is not used.
        splits = self.tasks.refit_splits()
        splits = dataclasses.replace(splits, test=splits.train)
        return dataclasses.replace(experiment, splits=splits), variables


def _depends_on_steps(candidate: Candidate) -> bool:
    """Whether the optimizer of a candidate depends on the number of steps."""
    return bool(candidate.config.train.schedule.name != "constant")
