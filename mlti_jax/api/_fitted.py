"""A learner after meta-training."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import check_range
from mlti_jax._internal.progress import Progress
from mlti_jax.api._adapted import AdaptedModel, naming
from mlti_jax.api._calibration import Calibration
from mlti_jax.api._held_out import check_outputs, held_out_pool, listed
from mlti_jax.api._labels import as_labels, as_targets, training_numbers
from mlti_jax.api._saving import save
from mlti_jax.data import Inputs, Pool, Splits, check_episode
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.parallel import plan_for
from mlti_jax.strategies import Strategy
from mlti_jax.training import Episode, Evaluator, format_interval, mean_and_interval
from mlti_jax.training._experiment import TEST, MethodFacts
from mlti_jax.types import Batch, PyTree


class Evaluation(NamedTuple):
    """How well tasks are solved.

    Attributes:
      metric: `accuracy` or `mse`.
      mean: over tasks.
      ci95: half-width of its 95 % interval.
      per_task: `[num_tasks]`.
    """

    metric: str
    mean: float
    ci95: float
    per_task: np.ndarray

    def __str__(self) -> str:
        value = format_interval({"metric": self.metric}, self.mean, self.ci95)
        return f"{self.metric} {value} over {len(self.per_task)} tasks"


@dataclasses.dataclass(frozen=True, eq=False)
class FittedLearner:
    """A learner after meta-training; `mlti_jax.fit` and `mlti_jax.load` give one.

    Attributes:
      config: all that it was trained with.
      facts: of its training data.
      learner, strategy: the method.
      variables: what training has found.
      inputs: makes samples of raw data, as it was done for training.
      classes: names of the classes of the training pool; none for regression.
      result: on the test tasks of `fit`, as in `results.json`.
      calibration: of probabilities; None if there is none.
      splits: the data of `fit`; None for a learner that was loaded.
    """

    config: Any
    facts: MethodFacts
    learner: Learner
    strategy: Strategy
    variables: Variables
    inputs: Inputs
    classes: tuple[str, ...]
    result: dict
    calibration: Calibration | None = None
    splits: Splits | None = None

    def __repr__(self) -> str:
        task = self.config.task
        return (
            f"FittedLearner({self.config.learner.name}, {self.config.strategy.name}, "
            f"{self.facts.setting}, {task.ways}-way {task.shots}-shot)"
        )

    @property
    def calibrated(self) -> bool:
        """Whether probabilities were calibrated on validation tasks."""
        return self.calibration is not None

    @property
    def temperature(self) -> float:
        """What logits are divided by; 1 if nothing is calibrated."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def regression(self) -> bool:
        """Whether it predicts numbers and not classes."""
        return self.facts.setting == "regression"

    @property
    def queries_interact(self) -> bool:
        """Whether a prediction depends on the other queries that it is asked for with.

        So it does where batch-norm uses the statistics of the set at hand.
        """
        normalises = bool(jax.tree.leaves(self.variables.state))
        return self.learner.norm == "batch" and normalises

    # -------------------------------------------------------------------- new tasks

    def adapt(self, x: Any, y: Any) -> AdaptedModel:
        """A model for a new task, from its support set.

        Classes may be others than in training, and so may be the number of samples of
        each. Where these differ, samples are weighted so that all classes count alike,
        as in training. Metric-based learners take any number of classes.
        Gradient-based ones have as many outputs as their training tasks had classes:
        more are refused; of fewer, probabilities are those given that a sample is of
        one of them. Where all training tasks share their classes, each output stands
        for one of these, so that the new task's labels must be among their names.

        Args:
          x: samples `[N, ...]` as in training, or raw data that `inputs` takes.
          y: labels `[N]`, text, whole numbers or booleans; for regression numbers,
            `[N]` or `[N, D]`.
        """
        x = self.samples(x, "the support set")
        size = jax.tree.leaves(x)[0].shape[0]
        with naming("the support set"):
            if self.regression:
                targets = jnp.asarray(as_targets(y, size, self.facts.outputs))
                support = Batch(jax.tree.map(jnp.asarray, x), targets)
                return AdaptedModel(self, support, flat_targets=np.ndim(y) == 1)
            return self._adapt_to_classes(x, as_labels(y, size))

    def _adapt_to_classes(self, x: PyTree, labels: np.ndarray) -> AdaptedModel:
        classes, number = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"y has one class only, {classes[0].item()!r}; a task needs two or "
                "more to tell apart"
            )
        columns, outputs = self._columns(classes)
        order = np.argsort(columns)
        classes, columns = classes[order], columns[order]
        number = np.argsort(order)[number]
        rows = np.argsort(number, kind="stable")  # class by class, as in training
        number, count = number[rows], np.bincount(number)
        weight = None
        if (count != count[0]).any():
            weight = len(number) / len(count) / count[number]
            weight = jnp.asarray(weight, jnp.float32)
        support = Batch(
            jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), x),
            jax.nn.one_hot(columns[number], outputs),
            weight,
        )
        return AdaptedModel(self, support, classes, columns)

    def _columns(self, classes: np.ndarray) -> tuple[np.ndarray, int]:
        """The learner's output for each class, and how many outputs it has."""
        number, outputs = len(classes), self.facts.outputs
        sharing = self.facts.setting == "label_sharing"
        shared = training_numbers(classes, self.classes) if sharing else None
        if self.learner.family != "gradient":
            # Any order serves; that of training where there is one.
            order = np.arange(number) if shared is None else np.argsort(shared)
            return np.argsort(order), number
        name = self.config.learner.name
        if sharing and shared is None:
            raise InputError(
                f"y has the classes {listed(classes)}, and {name} has an output for "
                "each of the classes that its training tasks share, "
                f"{listed(self.classes)}; use these names, or fit a metric-based "
                "learner such as protonet, which takes any classes"
            )
        if sharing:
            return np.array(shared), outputs
        if number > outputs:
            raise InputError(
                f"y has {number} classes, and {name} was trained on tasks of {outputs} "
                f"and has as many outputs; fit it with ways={number}, or fit a "
                "metric-based learner such as protonet, which takes any number"
            )
        return np.arange(number), outputs

    def samples(self, raw: Any, what: str = "x") -> PyTree:
        """Samples as the learner's pool has them, made of raw data."""
        with naming(what):
            try:
                return self.inputs.compact(raw)
            except InputError:
                raise
            except ValueError as error:  # NumPy's, of rows that differ in length
                raise InputError(f"x is no array ({error})") from error

    # ------------------------------------------------------------------- evaluation

    def evaluate(
        self,
        tasks: Splits | Pool | None = None,
        num_tasks: int = 600,
        *,
        ways: int | None = None,
        shots: int | None = None,
        queries: int | None = None,
    ) -> Evaluation:
        """The mean over held-out tasks, with its 95 % interval.

        The same tasks are drawn each time, so that learners can be compared task by
        task.

        Args:
          tasks: whose test pool to draw tasks from; or a pool, whose samples are taken
            as they are; None: the data that the learner was fitted on.
          num_tasks: how many tasks.
          ways, shots, queries: the size of a task; as in `fit` if not given.
        """
        check_range("num_tasks", num_tasks, 10**7, smallest=2)
        pool, config = held_out_pool(self, tasks), self.config
        episode = Episode(
            config.task.ways if ways is None else ways,
            config.task.shots if shots is None else shots,
            self.result["queries"] if queries is None else queries,
        )
        check_episode(pool, **episode._asdict())
        check_outputs(self, pool, episode.ways)
        plan = plan_for(pool.x, config.train.meta_batch_size)
        evaluator = Evaluator(
            self.learner,
            self.strategy,
            episode,
            config.eval.tasks_per_pass,
            dataclasses.replace(plan, tasks_per_pass=None),
        )
        key = jax.random.fold_in(jax.random.key(config.eval.seed), TEST)
        bar = Progress("evaluate", num_tasks, unit="task")
        values = evaluator(self.variables, pool, key, num_tasks, bar.update)
        bar.close()
        name = self.learner.objective.metric_name
        return Evaluation(name, *mean_and_interval(values), values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all that `mlti_jax.load` needs into a directory: no data, no code."""

        save(self, path)
