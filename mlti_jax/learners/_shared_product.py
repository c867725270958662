r"""Elementwise product of a matrix that all tasks share with a matrix of each task.

$$y_g = A \circ x_g, \quad \frac{\partial}{\partial A}: \quad \sum_g y'_g \circ x_g$$

Under `vmap`, JAX's own derivative by A is a reduction over an axis of tasks. XLA's CPU
backend runs this with the product fused into it, ten times slower than a sum of
products of slices. Both maps are bilinear, and the pair is closed under
differentiation, as with the convolutions in `mlti_jax/ops`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from mlti_jax.types import Array

_MAX_TERMS = 32  # of a sum that is written out

_Operands = Sequence[Array]
_Axes = Sequence[int | None]

# Shapes: shared [I, O], x and y [G, I, O] for G tasks.
_scale_p = Primitive("shared_product")  # (shared, x) -> [G, I, O]
_contract_p = Primitive("shared_product_gradient")  # (x, y) -> [I, O]


def shared_product(shared: Array, x: Array) -> Array:
    """Multiply elementwise, `[I, O] * [I, O]`; fast under `vmap` over `x`."""
    return _scale_p.bind(shared, x[None])[0]


def _scale(shared: Array, x: Array) -> Array:
    return shared * x


def _contract(x: Array, y: Array) -> Array:
    if x.shape[0] > _MAX_TERMS:
        return (x * y).sum(0)
    return sum((x[i] * y[i] for i in range(1, x.shape[0])), x[0] * y[0])


def _scale_shape(shared: ShapedArray, x: ShapedArray) -> ShapedArray:
    return x


def _contract_shape(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    return x.update(shape=x.shape[1:])


def _scale_batched(operands: _Operands, axes: _Axes) -> tuple[Array, int]:
    shared, x = operands
    shared_axis, x_axis = axes
    if shared_axis is None:  # more tasks
        x = jnp.moveaxis(x, x_axis or 0, 0)
        y = _scale_p.bind(shared, x.reshape(-1, *x.shape[2:]))
        return y.reshape(x.shape), 0
    shared = jnp.moveaxis(shared, shared_axis, 0)[:, None]
    return shared * (x if x_axis is None else jnp.moveaxis(x, x_axis, 0)), 0


def _contract_batched(operands: _Operands, axes: _Axes) -> tuple[Array, int]:
    x, y = (
        a[None] if axis is None else jnp.moveaxis(a, axis, 0)
        for a, axis in zip(operands, axes, strict=True)
    )
    return (x * y).sum(1), 0


ad.defbilinear(
    _scale_p,
    lambda g, shared, x: _contract_p.bind(g, x),
    lambda g, shared, x: _scale_p.bind(shared, g),
)
ad.defbilinear(
    _contract_p,
    lambda g, x, y: _scale_p.bind(g, y),
    lambda g, x, y: _scale_p.bind(g, x),
)
for _primitive, _function, _shape, _rule in (
    (_scale_p, _scale, _scale_shape, _scale_batched),
    (_contract_p, _contract, _contract_shape, _contract_batched),
):
    _primitive.def_impl(jax.jit(_primitive.bind))
    _primitive.def_abstract_eval(_shape)
    batching.primitive_batchers[_primitive] = _rule
    mlir.register_lowering(
        _primitive, mlir.lower_fun(_function, multiple_results=False)
    )
