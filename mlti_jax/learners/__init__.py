"""Meta-learners, for one task each."""

from mlti_jax.learners._adapted import adapted_paths
from mlti_jax.learners._base import Aux, Learner, TaskContext, Variables
from mlti_jax.learners._inner_loop import adapt
from mlti_jax.learners._maml import anil, maml, meta_curvature, metasgd
from mlti_jax.learners._metric import matchingnet, protonet, prototypes
from mlti_jax.learners._objectives import CLASSIFICATION, REGRESSION, Objective
from mlti_jax.learners._registry import make
from mlti_jax.learners._supervised import mtl, sl

__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "Aux",
    "Learner",
    "Objective",
    "TaskContext",
    "Variables",
    "adapt",
    "adapted_paths",
    "anil",
    "make",
    "maml",
    "matchingnet",
    "meta_curvature",
    "metasgd",
    "mtl",
    "protonet",
    "prototypes",
    "sl",
]
