"""Training, evaluation, checkpoints and metrics."""

from mlti_jax.errors import Interrupted
from mlti_jax.training._checkpoints import Checkpoints
from mlti_jax.training._config import base_config
from mlti_jax.training._evaluation import (
    Evaluator,
    mean_and_interval,
    paired_difference,
)
from mlti_jax.training._experiment import Experiment, build
from mlti_jax.training._loop import format_interval, summary, train_and_evaluate
from mlti_jax.training._metrics import MetricsWriter
from mlti_jax.training._step import (
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
    "base_config",
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
