"""High-level interface: from your own tasks to predictions.

    learner = mlti_jax.fit(tasks, learner="protonet", strategy="mlti", shots=5)
    model = learner.adapt(x_support, y_support)
    labels = model.predict(x_query)
    learner.save("model/")
    learner = mlti_jax.load("model/")

`fit` runs the same program as `experiments.run`.
"""

from mlti_jax.api._calibration import Calibration
from mlti_jax.api._compare import Comparison, Difference, compare
from mlti_jax.api._fit import fit
from mlti_jax.api._model import (
    AdaptedModel,
    Evaluation,
    FittedLearner,
    load,
)
from mlti_jax.api._selection.result import CandidateResult, NestedEstimate, Selection
from mlti_jax.api._selection.select import select

__all__ = [
    "AdaptedModel",
    "Calibration",
    "CandidateResult",
    "Comparison",
    "Difference",
    "Evaluation",
    "FittedLearner",
    "NestedEstimate",
    "Selection",
    "compare",
    "fit",
    "load",
    "select",
]
