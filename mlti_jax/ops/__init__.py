"""Operations that determine the speed of a convolutional network."""

from mlti_jax.ops._convolution import conv2d as conv2d
from mlti_jax.ops._first_block import conv_pool_moments as conv_pool_moments
from mlti_jax.ops._gates import Gated as Gated
from mlti_jax.ops._gates import gated_pool_moments as gated_pool_moments
from mlti_jax.ops._matmul import matmul as matmul
from mlti_jax.ops._max_pool import max_pool as max_pool
from mlti_jax.ops._noise import normal as normal
from mlti_jax.ops._normalization import (
    batch_moments as batch_moments,
)
from mlti_jax.ops._normalization import (
    normalise as normalise,
)
from mlti_jax.ops._normalization import (
    unit as unit,
)
from mlti_jax.ops._pool_moments import pool_moments as pool_moments

__all__ = [
    "Gated",
    "batch_moments",
    "conv2d",
    "conv_pool_moments",
    "gated_pool_moments",
    "matmul",
    "max_pool",
    "normal",
    "normalise",
    "pool_moments",
    "unit",
]
