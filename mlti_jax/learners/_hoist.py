"""Move what does not change out of the inner loop.

The layers below the first adapted one run once per task. A module of the user is a
single layer, of which often only a part is adapted, such as its last block: the rest
would run again in every inner step. `hoist` finds that part in the traced program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal

from mlti_jax.types import PyTree


def hoist(function: Callable[..., PyTree], *args: PyTree) -> Callable[..., PyTree]:
    """Compute now what `function` computes without its arguments.

    An operation is moved if none of its inputs depends on an argument. Nested programs,
    such as the body of a loop, are moved as a whole or not at all. Derivatives go
    through both parts.

    Args:
      function: a traceable function; it may use arrays of its enclosing scope.
      *args: arguments of the shapes and dtypes with which the result will be called.

    Returns:
      A function with the same values that computes only the rest.

    Examples:
      >>> import jax.numpy as jnp
      >>> x = jnp.ones((2, 3))
      >>> rest = hoist(lambda w: jnp.sin(x).sum() * w, 1.0)
      >>> len(jax.make_jaxpr(rest)(1.0).eqns)  # the product
      1
    """
    shapes = jax.tree.map(jax.typeof, args)
    closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
    jaxpr, structure = closed.jaxpr, jax.tree.structure(result)
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    depends, rest = set(jaxpr.invars), []
    for equation in jaxpr.eqns:
        inputs = {v for v in equation.invars if not isinstance(v, Literal)}
        if inputs & depends or equation.effects:
            rest.append(equation)
            depends.update(equation.outvars)
        else:
            _run(equation, known)

    def remainder(*args: PyTree) -> PyTree:
        values = dict(known)
        values.update(zip(jaxpr.invars, jax.tree.leaves(args), strict=True))
        for equation in rest:
            _run(equation, values)
        return jax.tree.unflatten(
            structure, [_read(variable, values) for variable in jaxpr.outvars]
        )

    return remainder


def _run(equation: JaxprEqn, values: dict[Any, Any]) -> None:
    """Add the outputs of an equation to the values of variables."""
    primitive = equation.primitive
    bound = primitive.get_bind_params(equation.params)
    # Earlier versions of JAX also return functions, which come first.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    inputs = [_read(variable, values) for variable in equation.invars]
    with equation.ctx.manager:
        outputs = primitive.bind(*functions, *inputs, **params)
    outputs = outputs if primitive.multiple_results else [outputs]
    values.update(zip(equation.outvars, outputs, strict=True))


def _read(variable: Any, values: dict[Any, Any]) -> Any:
    return variable.val if isinstance(variable, Literal) else values[variable]
