"""A few calls from tasks of one's own to predictions: `fit`, `adapt`, `predict`.

    learner = mlti_jax.fit(tasks, learner="protonet", strategy="mlti", shots=5)
    model = learner.adapt(x_support, y_support)
    labels, probabilities = model.predict(x_query)
    learner.save("model/")
    learner = mlti_jax.load("model/")

Nothing is implemented here a second time: `fit` runs what `experiments.run` runs, and
`predict` is the learner's.
"""

from mlti_jax.api._adapted import AdaptedModel, Prediction
from mlti_jax.api._calibration import Calibration
from mlti_jax.api._comparison import Comparison, compare
from mlti_jax.api._fitted import Evaluation, FittedLearner
from mlti_jax.api._fitting import fit
from mlti_jax.api._loading import load

__all__ = [
    "AdaptedModel",
    "Calibration",
    "Comparison",
    "Evaluation",
    "FittedLearner",
    "Prediction",
    "compare",
    "fit",
    "load",
]
