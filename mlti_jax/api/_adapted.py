"""The model that a learner makes of a new task's few samples."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.api._calibration import softmax
from mlti_jax.api._labels import as_labels, as_targets
from mlti_jax.data._pools import take_inputs
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.strategies import Strategy
from mlti_jax.strategies._objective import task_context
from mlti_jax.types import Array, Batch, PyTree

if TYPE_CHECKING:
    from mlti_jax.api._fitted import FittedLearner

QUERIES_PER_PASS = 256


class Prediction(NamedTuple):
    """What a model says of samples.

    Attributes:
      labels: `[N]`, as the support set has them; for regression the values, of the
        shape that the support set's had.
      probabilities: `[N, C]`, columns as in the model's `classes`; None for regression.
    """

    labels: np.ndarray
    probabilities: np.ndarray | None


@partial(jax.jit, static_argnums=(0, 1))
def query_outputs(
    learner: Learner,
    strategy: Strategy,
    variables: Variables,
    support: Batch,
    query_x: PyTree,
) -> Array:
    """The learner's outputs `[N_q, C]`; x of both sets as a pool has it."""
    size = jax.tree.leaves(query_x)[0].shape[0]
    return learner.predict(
        variables,
        support.replace(x=take_inputs(support.x, jnp.arange(support.y.shape[0]))),
        take_inputs(query_x, jnp.arange(size)),
        task_context(strategy, variables, jax.random.key(0), train=False),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedModel:
    """A learner adapted to one task, see `FittedLearner.adapt`.

    Attributes:
      learner: that was adapted.
      support: to what; its x as a pool has it, its y over the learner's outputs.
      classes: `[C]`, the task's labels; the columns of probabilities. None for
        regression.
      columns: `[C]`, the learner's output for each of them; None for regression.
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

    def predict(self, x: PyTree) -> Prediction:
        """Labels and probabilities of new samples `[N, ...]`.

        Each call adapts anew, which is what takes the time where queries are few: ask
        for many at once.

        Programs are compiled for 1, 2, 4, ... up to `QUERIES_PER_PASS` samples; other
        numbers are filled up, and larger ones taken in passes. Where the learner's
        `queries_interact`, all samples are taken at once, as they are.
        """
        outputs = self._outputs(self.learner.samples(x, "the queries"))
        if self.classes is None:
            return Prediction(outputs[:, 0] if self.flat_targets else outputs, None)
        logits = outputs[:, self.columns]
        probabilities = softmax(logits / np.float32(self.learner.temperature))
        return Prediction(self.classes[logits.argmax(axis=1)], probabilities)

    def evaluate(self, x: PyTree, y: Any) -> float:
        """Accuracy on labelled samples, or mean squared error."""
        predicted = self.predict(x).labels
        with naming("the queries"):
            if self.classes is None:
                targets = as_targets(y, len(predicted), self.learner.facts.outputs)
                return float(np.mean((predicted.reshape(targets.shape) - targets) ** 2))
            labels = as_labels(y, len(predicted)).tolist()
            known = self.classes.tolist()
            for row, label in enumerate(labels):
                if label not in known:
                    raise InputError(
                        f"y has the label {label!r} in row {row}, which the support set"
                        f" does not have; it has: {first_few(list(map(str, known)))}"
                    )
        pairs = zip(labels, predicted.tolist(), strict=True)
        return float(np.mean([label == guess for label, guess in pairs]))

    def _outputs(self, x: PyTree) -> np.ndarray:
        size = jax.tree.leaves(x)[0].shape[0]
        if not self.learner.queries_interact:
            starts = range(0, size, QUERIES_PER_PASS)
            return np.concatenate([self._pass(x, start, size) for start in starts])
        if size == 1:
            raise InputError(
                "this learner normalises by the statistics of the queries, and one "
                "query has none; give several at a time, or fit with "
                f"learner.{self.learner.config.learner.name}.norm='running'"
            )
        return self._run(x)

    def _pass(self, x: PyTree, start: int, size: int) -> np.ndarray:
        """One pass, filled up with its last sample to the next power of two."""
        number = min(size - start, QUERIES_PER_PASS)
        rows = start + np.arange(1 << (number - 1).bit_length())
        rows = np.minimum(rows, start + number - 1)
        return self._run(jax.tree.map(lambda leaf: leaf[rows], x))[:number]

    def _run(self, x: PyTree) -> np.ndarray:
        fitted = self.learner
        return np.asarray(
            query_outputs(
                fitted.learner,
                fitted.strategy,
                fitted.variables,
                self.support,
                jax.tree.map(jnp.asarray, x),
            )
        )


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Says in errors whose samples or labels they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
