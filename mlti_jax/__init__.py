"""Meta-learning with few training tasks, in JAX.

The high-level interface is `fit`, `compare`, `select` and `load`. Everything they use
is a pure function or a small frozen dataclass in one of the modules below.
"""

# First, since the other imports are slow and may be interrupted.
import mlti_jax._internal.interrupts  # noqa: F401, I001
from mlti_jax import api as api
from mlti_jax import augmentation as augmentation
from mlti_jax import backbones as backbones
from mlti_jax import data as data
from mlti_jax import errors as errors
from mlti_jax import interpolation as interpolation
from mlti_jax import learners as learners
from mlti_jax import ops as ops
from mlti_jax import parallel as parallel
from mlti_jax import plotting as plotting
from mlti_jax import report as report
from mlti_jax import strategies as strategies
from mlti_jax import theory as theory
from mlti_jax import training as training
from mlti_jax import types as types
from mlti_jax._version import __version__ as __version__
from mlti_jax.api import compare as compare
from mlti_jax.api import fit as fit
from mlti_jax.api import load as load
from mlti_jax.api import select as select

__all__ = [
    "__version__",
    "api",
    "augmentation",
    "backbones",
    "compare",
    "data",
    "errors",
    "fit",
    "interpolation",
    "learners",
    "load",
    "ops",
    "parallel",
    "plotting",
    "report",
    "select",
    "strategies",
    "theory",
    "training",
    "types",
]
