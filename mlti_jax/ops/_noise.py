"""Normal noise, the same as that of `jax.random.normal`, faster on a CPU."""

from __future__ import annotations

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from mlti_jax._internal import native, platforms
from mlti_jax.ops._groups import Axes, Operands, as_groups, split_groups

_LARGEST = 2**31  # Positions are counted in words of 32 bits.
_COUNTS_ARE_POSITIONS = "jax_threefry_partitionable"  # JAX's default


def normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw from the standard normal distribution.

    The same numbers up to rounding as `jax.random.normal(key, shape)`, whose random
    bits JAX computes in several passes over memory on a CPU.

    Args:
      key: PRNG key.
      shape: of the result.

    Returns:
      `shape`, in the default dtype of floating-point numbers.

    Examples:
      >>> import jax
      >>> from mlti_jax import ops
      >>> ops.normal(jax.random.key(0), (2, 3)).shape
      (2, 3)
    """
    if not (
        platforms.target() == "cpu"
        and jnp.zeros(()).dtype == jnp.float32
        and jax.random.key_impl(key) == "threefry2x32"
        and getattr(jax.config, _COUNTS_ARE_POSITIONS, True)
        and 0 < prod(shape) < _LARGEST
        and native.available(jax.ShapeDtypeStruct(shape, jnp.float32))
    ):
        return jax.random.normal(key, shape)
    return _normal_p.bind(jax.random.key_data(key)[None], shape=shape)[0]


# keys [G, 2] to numbers [G, *shape].
_normal_p = Primitive("normal")


@_normal_p.def_impl
@partial(jax.jit, static_argnames="shape")
def _normal_impl(keys: Array, *, shape: tuple[int, ...]) -> Array:
    return _normal_p.bind(keys, shape=shape)


@_normal_p.def_abstract_eval
def _normal_shape(keys: ShapedArray, *, shape: tuple[int, ...]) -> ShapedArray:
    return keys.update(shape=(keys.shape[0], *shape), dtype=jnp.dtype("float32"))


def _normal_batched(
    operands: Operands, axes: Axes, *, shape: tuple[int, ...]
) -> tuple[Array, int]:
    (keys,), length = as_groups(operands, axes)
    return split_groups(_normal_p.bind(keys, shape=shape), length), 0


def _normal_form(keys: Array, *, shape: tuple[int, ...]) -> Array:
    def draw(data: Array) -> Array:
        key = jax.random.wrap_key_data(data, impl="threefry2x32")
        return jax.random.normal(key, shape, jnp.float32)

    return jax.vmap(draw)(keys)


def _normal_cpu(keys: Array, *, shape: tuple[int, ...]) -> Array:
    out = jax.ShapeDtypeStruct((keys.shape[0], *shape), jnp.float32)
    return native.call("Normal", out, keys)


batching.primitive_batchers[_normal_p] = _normal_batched
for _form, _platform in ((_normal_form, None), (_normal_cpu, "cpu")):
    mlir.register_lowering(
        _normal_p, mlir.lower_fun(_form, multiple_results=False), platform=_platform
    )
