"""A learner after meta-training, and the model that it adapts to a new task."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import check_range
from mlti_jax._internal.precision import matmul_precision
from mlti_jax._internal.progress import Progress
from mlti_jax.api._calibration import Calibration, softmax
from mlti_jax.api._scikit_learn import for_classification, r_squared
from mlti_jax.api._serialization import SavedLearner, read, write
from mlti_jax.api._user_data import (
    as_labels,
    as_targets,
    errors_about,
    evaluation_pool,
    listed,
    training_indices,
)
from mlti_jax.backbones._stack import without_frozen
from mlti_jax.data import Inputs, Splits
from mlti_jax.data._pools import Pool, check_episode, take_inputs
from mlti_jax.data._user_arrays import check_magnitude
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.parallel import plan_for
from mlti_jax.strategies import Strategy
from mlti_jax.strategies._objective import task_context
from mlti_jax.training import Episode, Evaluator
from mlti_jax.training._evaluation import mean_and_interval
from mlti_jax.training._experiment import TEST, MethodFacts
from mlti_jax.training._metrics import format_interval
from mlti_jax.types import Array, Batch, PyTree

# Queries that `AdaptedModel.predict` computes at a time.
QUERIES_PER_PASS = 256


class Evaluation(NamedTuple):
    """The metric over held-out tasks.

    Attributes:
      metric: `accuracy` or `mse`.
      mean: mean over tasks.
      ci95: half-width of its 95 % interval.
      per_task: `[num_tasks]`.
    """

    metric: str
    mean: float
    ci95: float
    per_task: np.ndarray

    def __str__(self) -> str:
        value = format_interval(self.metric, self.mean, self.ci95)
        return f"{self.metric} {value} over {len(self.per_task)} tasks"


@partial(jax.jit, static_argnums=(0, 1))
def query_outputs(
    learner: Learner,
    strategy: Strategy,
    variables: Variables,
    support: Batch,
    query_x: PyTree,
) -> Array:
    """Return the learner's outputs `[N_q, C]`; x of both sets as stored in a pool."""
    size = jax.tree.leaves(query_x)[0].shape[0]
    return learner.predict(
        variables,
        support.replace(x=take_inputs(support.x, jnp.arange(support.y.shape[0]))),
        take_inputs(query_x, jnp.arange(size)),
        task_context(strategy, variables, jax.random.key(0), train=False),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class FittedLearner:
    """A learner after meta-training; `mlti_jax.fit` and `mlti_jax.load` return one.

    Attributes:
      config: all settings of its training.
      facts: properties of its training data that define the method.
      learner, strategy: the method.
      variables: the trained variables.
      inputs: converts raw data into samples as in training.
      classes: names of the classes of the training pool; empty for regression.
      result: the result on the test tasks of `fit`, as in `results.json`.
      calibration: of probabilities; None if they are not calibrated.
      adapted: the parameters that are adapted by their names, such as `head/kernel`;
        None if whole layers are adapted.
      splits: the data of `fit`; None if the learner was loaded.
    """

    config: Any
    facts: MethodFacts
    learner: Learner
    strategy: Strategy
    variables: Variables
    inputs: Inputs
    classes: tuple[str, ...]
    result: dict[str, Any]
    calibration: Calibration | None = None
    adapted: tuple[str, ...] | None = None
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
        """The number that divides logits; 1 without calibration."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def regression(self) -> bool:
        """Whether it predicts numbers instead of classes."""
        return self.facts.setting == "regression"

    @property
    def queries_interact(self) -> bool:
        """Whether a prediction depends on the other queries of the same call.

        True if batch-norm uses the statistics of the given set.
        """
        normalizes = bool(jax.tree.leaves(without_frozen(self.variables.state)))
        return self.learner.norm == "batch" and normalizes

    # -------------------------------------------------------------------- new tasks

    def adapt(self, x: Any, y: Any) -> AdaptedModel:
        """Return a model for a new task, given its support set.

        Classes and the number of samples per class may differ from those of training.
        Samples are weighted so that all classes count equally. Metric-based learners
        accept any number of classes. Gradient-based learners have one output for each
        class of a training task and accept no more classes than that; with fewer
        classes, probabilities are conditional on these classes. If all training tasks
        share their classes, each output belongs to one of them, and the labels must be
        among their names.

        Args:
          x: samples `[N, ...]` as in training, or raw data that `inputs` accepts.
          y: labels `[N]`, text, integers or booleans; for regression numbers, `[N]` or
            `[N, D]`.
        """
        x = self.samples(x, "the support set")
        size = jax.tree.leaves(x)[0].shape[0]
        with errors_about("the support set"):
            if self.regression:
                targets = as_targets(y, size, self.facts.outputs)
                targets = self.inputs.targets.standardise(targets)
                check_magnitude("standardized y", targets)
                support = Batch(*jax.tree.map(jnp.asarray, (x, targets)))
                return AdaptedModel(self, support, flat_targets=np.ndim(y) == 1)
            return self._adapt_to_classes(x, as_labels(y, size))

    def _adapt_to_classes(self, x: PyTree, labels: np.ndarray) -> AdaptedModel:
        classes, number = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"y has only one class, {classes[0].item()!r}; a task needs at least "
                "two"
            )
        columns, outputs = self._columns(classes)
        # Class by class, in the order of training.
        rows = np.argsort(columns[number], kind="stable")
        number, count = number[rows], np.bincount(number)
        weight = None
        if (count != count[0]).any():
            balanced = len(number) / len(count) / count[number]
            weight = jnp.asarray(balanced, jnp.float32)
        support = Batch(
            jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), x),
            jax.nn.one_hot(columns[number], outputs),
            weight,
        )
        return AdaptedModel(self, support, classes, columns)

    def _columns(self, classes: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the learner's output for each class, and its number of outputs."""
        number, outputs = len(classes), self.facts.outputs
        sharing = self.facts.setting == "label_sharing"
        shared = training_indices(classes, self.classes) if sharing else None
        if self.learner.family != "gradient":
            # The order does not matter; that of training if known.
            order = np.arange(number) if shared is None else np.argsort(shared)
            return np.argsort(order), number
        name = self.config.learner.name
        if sharing and shared is None:
            raise InputError(
                f"y has the classes {listed(classes)}, but {name} has an output for "
                "each of the classes that its training tasks share, "
                f"{listed(self.classes)}; use these names, or fit a metric-based "
                "learner such as protonet, which accepts any classes"
            )
        if sharing:
            return np.array(shared), outputs
        if number > outputs:
            raise InputError(
                f"y has {number} classes, but {name} was trained on tasks of {outputs} "
                f"and has as many outputs; fit it with ways={number}, or fit a "
                "metric-based learner such as protonet, which accepts any number"
            )
        return np.arange(number), outputs

    def samples(self, raw: Any, what: str = "x") -> PyTree:
        """Convert raw data into samples as the training pool stores them."""
        with errors_about(what):
            try:
                return self.inputs.compact(raw)
            except InputError:
                raise
            except ValueError as error:  # from NumPy, for rows of different lengths
                raise InputError(f"x is not an array ({error})") from error

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
        """Return the mean metric over held-out tasks and its 95 % interval.

        Every call draws the same tasks, so learners can be compared task by task.

        Args:
          tasks: `Splits`, whose test pool is used; or a pool, whose samples and targets
            are used without conversion; None for the data that the learner was fitted
            on.
          num_tasks: number of tasks.
          ways: classes per task; None for that of `fit`.
          shots: support samples per class; None for that of `fit`.
          queries: query samples per class; None for that of `fit`.
        """
        check_range("num_tasks", num_tasks, 10**7, smallest=2)
        tasks = self.splits if tasks is None else tasks
        if tasks is None or (tasks is self.splits and self.splits.test is None):
            raise InputError(
                "this learner was loaded or selected and has no tasks of its own to be "
                "evaluated on; give tasks. The attribute `result` has its result"
            )
        pool = evaluation_pool(
            tasks,
            self.inputs,
            target_length=self.facts.outputs if self.regression else None,
        )
        config = self.config
        episode = Episode(
            config.task.ways if ways is None else ways,
            config.task.shots if shots is None else shots,
            self.result["queries"] if queries is None else queries,
        )
        check_episode(pool, **episode._asdict())
        self._check_outputs(pool, episode.ways)
        plan = plan_for(pool.x, config.train.meta_batch_size)
        evaluator = Evaluator(
            self.learner,
            self.strategy,
            episode,
            config.eval.tasks_per_pass,
            dataclasses.replace(plan, tasks_per_pass=None),
            config.train.precision,
        )
        key = jax.random.fold_in(jax.random.key(config.eval.seed), TEST)
        bar = Progress("evaluate", num_tasks, unit="task")
        values = evaluator(self.variables, pool, key, num_tasks, bar.update)
        bar.close()
        name = self.learner.objective.metric_name
        return Evaluation(name, *mean_and_interval(values), values)

    def _check_outputs(self, pool: Pool, ways: int) -> None:
        """Raise `InputError` for classes without an output of the learner."""
        if self.regression or self.learner.family != "gradient":
            return
        name, outputs = self.config.learner.name, self.facts.outputs
        if ways != outputs:
            raise InputError(
                f"{name} was trained on tasks of {outputs} classes and has as many "
                f"outputs; it cannot be evaluated with ways={ways}"
            )
        classes = tuple(getattr(pool, "classes", ()))
        if self.facts.setting == "label_sharing" and classes != self.classes:
            raise InputError(
                f"{name} has an output for each of the classes {listed(self.classes)}; "
                f"the tasks have {listed(classes)}"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learner into a directory, for `mlti_jax.load`: no data, no code.

        Args:
          path: a new or empty directory, or that of a saved learner, which is replaced.
        """
        parts = {name: getattr(self, name) for name in SavedLearner._fields}
        write(SavedLearner(**parts), path)


def load(path: str | os.PathLike[str], network: Any = None) -> FittedLearner:
    """Load a learner that `FittedLearner.save` has written, on any kind of device.

    It has no data: `evaluate` needs tasks.

    Args:
      path: the directory.
      network: the network, if the learner was fitted with one of your own: code is not
        saved. Its parameters are those of the file, whose shapes must be the same.
    """
    saved, learner, strategy = read(path, network)
    return FittedLearner(learner=learner, strategy=strategy, **saved._asdict())


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedModel:
    """A learner adapted to one task, see `FittedLearner.adapt`.

    `predict`, `predict_proba`, `score`, `classes_` and `n_features_in_` are those of
    scikit-learn, whose metrics take the outputs. The support set replaces `fit`.

    Attributes:
      learner: the fitted learner.
      support: the support set; x as stored in a pool, y over the learner's outputs
        (regression: standardized targets).
      classes: `[C]`, the labels of the task, sorted, in the order of the columns of
        probabilities; None for regression.
      columns: `[C]`, the learner's output for each class; None for regression.
      flat_targets: whether targets were given as `[N]`.
    """

    learner: FittedLearner
    support: Batch
    classes: np.ndarray | None = None
    columns: np.ndarray | None = None
    flat_targets: bool = False

    def __repr__(self) -> str:
        size = self.support.y.shape[0]
        classes = "" if self.classes is None else f"classes={self.classes.tolist()}, "
        return f"AdaptedModel({classes}{size} support samples)"

    @property
    def classes_(self) -> np.ndarray:
        """The labels of the task `[C]`, as in scikit-learn; absent for regression."""
        if self.classes is None:
            raise AttributeError("a model for regression has no classes_")
        return self.classes

    @property
    def n_features_in_(self) -> int:
        """Length of a sample, as in scikit-learn; absent if it is not a vector."""
        inputs = self.learner.inputs
        if len(inputs.leaves) > 1 or len(inputs.shape) != 1:
            raise AttributeError(
                f"n_features_in_ is for vectors, but a sample is {inputs.describe()}"
            )
        return inputs.shape[0]

    def predict(self, x: PyTree) -> np.ndarray:
        """Predict new samples `[N, ...]`.

        Each call repeats the adaptation, which takes most of the time for few samples:
        predict many at once. If you need probabilities too, call only `predict_proba`:
        its largest entry is that of the label.

        Programs are compiled for 1, 2, 4, ... up to `QUERIES_PER_PASS` samples; other
        numbers are padded, and larger ones are split into passes. If the learner's
        `queries_interact`, all samples are predicted in a single pass.

        Returns:
          Labels `[N]`, as in the support set; for regression values, float64, `[N]` if
          the targets of the support set are `[N]`, else `[N, Dy]`.

        Raises:
          InputError: if samples do not fit the learner, or an output is not finite.
        """
        if self.classes is not None:
            return self.classes[self.predict_proba(x).argmax(axis=1)]
        values = self.learner.inputs.targets.restore(self._finite_outputs(x))
        return values[:, 0] if self.flat_targets else values

    @for_classification
    def predict_proba(self, x: PyTree) -> np.ndarray:
        """Predict probabilities of new samples; models for regression lack this method.

        Probabilities are calibrated if the learner is, see `FittedLearner.calibrated`.
        `model.classes_[probabilities.argmax(axis=1)]` are the labels, without a second
        adaptation.

        Returns:
          Probabilities `[N, C]`, columns in the order of `classes_`.

        Raises:
          InputError: as `predict`.
        """
        logits = self._finite_outputs(x)[:, self.columns]
        return softmax(logits / np.float32(self.learner.temperature))

    def score(self, x: PyTree, y: Any) -> float:
        r"""Return the accuracy on labeled samples, or $R^2$ for regression.

        As in scikit-learn, $R^2 = 1 - \sum_k (f(x_k) - y_k)^2 / \sum_k (y_k - \bar
        y)^2$, averaged over outputs. For a constant target it is 1 if all predictions
        are equal to it, otherwise 0.

        Raises:
          InputError: as `predict`, if a label does not occur in the support set, or if
            a single sample is given for regression.
        """
        predicted = self.predict(x)
        with errors_about("the queries"):
            if self.classes is None:
                targets = as_targets(y, len(predicted), self.learner.facts.outputs)
                return r_squared(predicted.reshape(targets.shape), targets)
            labels = as_labels(y, len(predicted)).tolist()
            known = self.classes.tolist()
            for row, label in enumerate(labels):
                if label not in known:
                    raise InputError(
                        f"y has the label {label!r} in row {row}, which the support set"
                        f" does not have; it has: {listed(known)}"
                    )
        pairs = zip(labels, predicted.tolist(), strict=True)
        return float(np.mean([label == guess for label, guess in pairs]))

    def _finite_outputs(self, x: PyTree) -> np.ndarray:
        outputs = self._outputs(self.learner.samples(x, "the queries"))
        wrong = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
        if len(wrong):
            raise InputError(
                f"the queries: the outputs for {len(wrong)} of {len(outputs)} samples "
                f"are not finite, the first is row {wrong[0]}; check it and the "
                "support set for values far outside of those in training"
            )
        return outputs

    def _outputs(self, x: PyTree) -> np.ndarray:
        size = jax.tree.leaves(x)[0].shape[0]
        if not self.learner.queries_interact:
            starts = range(0, size, QUERIES_PER_PASS)
            return np.concatenate([self._pass(x, start, size) for start in starts])
        if size == 1:
            raise InputError(
                "this learner normalizes with the statistics of the queries, which a "
                "single query does not have; give several at a time, or fit with "
                f"learner.{self.learner.config.learner.name}.norm='running'"
            )
        return self._run(x)

    def _pass(self, x: PyTree, start: int, size: int) -> np.ndarray:
        """Run one pass, padded with its last sample to the next power of two."""
        number = min(size - start, QUERIES_PER_PASS)
        rows = start + np.arange(1 << (number - 1).bit_length())
        rows = np.minimum(rows, start + number - 1)
        return self._run(jax.tree.map(lambda leaf: leaf[rows], x))[:number]

    def _run(self, x: PyTree) -> np.ndarray:
        fitted = self.learner
        with matmul_precision(fitted.config.train.precision):
            outputs = query_outputs(
                fitted.learner,
                fitted.strategy,
                fitted.variables,
                self.support,
                jax.tree.map(jnp.asarray, x),
            )
        return np.asarray(outputs)
