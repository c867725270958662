"""Datasets, pools of samples, and sampling of tasks.

`load` returns a dataset of the paper by name; `from_arrays`, `from_folder` and
`from_table` do the same for your own data. Each returns `Splits` with one pool for
training, validation and test, and `sample_task` draws tasks from a pool.
"""

from mlti_jax.data._own.arrays import from_arrays
from mlti_jax.data._own.folders import from_folder
from mlti_jax.data._own.inputs import Inputs
from mlti_jax.data._own.tables import from_table
from mlti_jax.data._pools import (
    ClassPool,
    DomainPool,
    RegressionPool,
    sample_task,
)
from mlti_jax.data._registry import load
from mlti_jax.data._splits import Splits

__all__ = [
    "ClassPool",
    "DomainPool",
    "Inputs",
    "RegressionPool",
    "Splits",
    "from_arrays",
    "from_folder",
    "from_table",
    "load",
    "sample_task",
]
