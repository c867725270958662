"""Strategies: from a learner for one task to the objective of a meta-batch."""

from mlti_jax.strategies._base import PerTask, Strategy, chain, each_task, vanilla
from mlti_jax.strategies._maxup import maxup
from mlti_jax.strategies._metaaug import metaaug
from mlti_jax.strategies._metadropout import metadropout
from mlti_jax.strategies._metamix import metamix
from mlti_jax.strategies._metamodulation import metamodulation
from mlti_jax.strategies._metareg import metareg
from mlti_jax.strategies._mlti import cross, intra, mlti
from mlti_jax.strategies._objective import (
    effective_setting,
    init_variables,
    meta_objective,
)
from mlti_jax.strategies._registry import make
from mlti_jax.strategies._taml import taml
from mlti_jax.strategies._views import views

__all__ = [
    "PerTask",
    "Strategy",
    "chain",
    "cross",
    "each_task",
    "effective_setting",
    "init_variables",
    "intra",
    "make",
    "maxup",
    "meta_objective",
    "metaaug",
    "metadropout",
    "metamix",
    "metamodulation",
    "metareg",
    "mlti",
    "taml",
    "vanilla",
    "views",
]
