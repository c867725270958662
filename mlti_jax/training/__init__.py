"""Training, evaluation, checkpoints and metrics."""

from mlti_jax.errors import Interrupted
from mlti_jax.training.checkpoints import Checkpoints
from mlti_jax.training.evaluation import (
    Evaluator,
    mean_and_interval,
    paired_difference,
)
from mlti_jax.training.experiment import Experiment, build
from mlti_jax.training.loop import (
    format_interval,
    summary,
    train_and_evaluate,
)
from mlti_jax.training.metrics import MetricsWriter
from mlti_jax.training.step import (
    Episode,
    TrainState,
    adam,
    gradients,
    init_state,
    make_run_steps,
)

__all__ = [
    "Checkpoints",
    "Episode",
    "Evaluator",
    "Experiment",
    "Interrupted",
    "MetricsWriter",
    "TrainState",
    "adam",
    "build",
    "format_interval",
    "gradients",
    "init_state",
    "make_run_steps",
    "mean_and_interval",
    "paired_difference",
    "summary",
    "train_and_evaluate",
]
