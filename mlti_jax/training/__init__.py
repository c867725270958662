"""Training and evaluation.

`build` turns a config into an `Experiment`, and `train_and_evaluate` runs it. The other
names are parts for your own training loop.
"""

from mlti_jax.training._config import base_config
from mlti_jax.training._evaluation import (
    Evaluator,
    paired_difference,
)
from mlti_jax.training._experiment import Experiment, build
from mlti_jax.training._loop import train_and_evaluate
from mlti_jax.training._optimizer import make_optimizer, make_schedule
from mlti_jax.training._step import (
    Episode,
    init_state,
    make_run_steps,
)

__all__ = [
    "Episode",
    "Evaluator",
    "Experiment",
    "base_config",
    "build",
    "init_state",
    "make_optimizer",
    "make_run_steps",
    "make_schedule",
    "paired_difference",
    "train_and_evaluate",
]
