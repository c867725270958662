r"""Blocks that end in pooling and moments, and store no array before these.

A block is a function $F(x, k, s) = (S_y y, \mu, \sigma^2)$ with $y = f(x, k)$, see
`_pool_moments`. On a CPU with native kernels, y is computed a few rows at a time, which
stay in the cache, and again for the derivative by k. Three primitives:

* the block;
* its tangent $J(\dot k)$, with operands `(x, k, s, pooled, mean, tangent of k)`;
* its cotangent $J^T$, with `(x, k, s, pooled, mean, cotangents of the results)`.

All other derivatives, such as those by x and of higher order, are those of the JAX form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import chex
import jax
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad

from mlti_jax.ops._groups import bind, is_zero, register

Form = Callable[[Array, Array, Array], list[Array]]
Shapes = Callable[[ShapedArray, ShapedArray, ShapedArray], list[ShapedArray]]


def fused_block(name: str, form: Form, shapes: Shapes, native: str) -> Primitive:
    """Build the primitives of a block; all operands and results have groups.

    Args:
      name: of the primitive.
      form: computes the block in JAX.
      shapes: of the results, from those of the operands.
      native: name of the native kernel of the block. That of the cotangent has the
        suffix `Cotangent`; the tangent has none.

    Returns:
      The primitive of the block.
    """
    forward_p = Primitive(name)
    tangent_p = Primitive(f"{name}_tangent")
    cotangent_p = Primitive(f"{name}_cotangent")
    forward_p.multiple_results = tangent_p.multiple_results = True

    # The forms compute the maxima and the mean again, because those of the native
    # kernel differ by rounding, and positions of maxima are found by comparison.

    def tangent(x: Array, k: Array, sign: Array, *rest: Array) -> list[Array]:
        return jax.jvp(lambda k: form(x, k, sign), (k,), (rest[2],))[1]

    def cotangent(x: Array, k: Array, sign: Array, *rest: Array) -> Array:
        return jax.vjp(lambda k: form(x, k, sign), k)[1](list(rest[2:]))[0]

    def tangent_shapes(*operands: ShapedArray) -> list[ShapedArray]:
        _, k, _, pooled, mean, k_t = operands
        chex.assert_equal(k.shape, k_t.shape)
        return [pooled, mean, mean]

    forward_p.def_abstract_eval(shapes)
    tangent_p.def_abstract_eval(tangent_shapes)
    cotangent_p.def_abstract_eval(lambda x, k, *others: k)

    def forward_jvp(
        primals: Sequence[Array], tangents: Sequence[Any]
    ) -> tuple[list[Array], list[Any]]:
        by_x, by_k, _ = tangents
        if not is_zero(by_x):
            full = map(ad.instantiate_zeros, tangents)
            return jax.jvp(form, tuple(primals), tuple(full))
        out = bind(forward_p, *primals)
        if is_zero(by_k):
            return out, [ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in out]
        return out, bind(tangent_p, *primals, *out[:2], by_k)

    def linear_jvp(
        primitive: Primitive,
        form: Callable[..., Any],
        primals: Sequence[Array],
        tangents: Sequence[Any],
    ) -> tuple[Any, Any]:
        """Rule of the tangent and cotangent, linear in what follows the mean."""
        out = bind(primitive, *primals)
        full = tuple(map(ad.instantiate_zeros, tangents))
        if all(map(is_zero, tangents[:2])):
            return out, bind(primitive, *primals[:5], *full[5:])
        return out, jax.jvp(form, tuple(primals), full)[1]

    def tangent_transpose(
        cotangents: Sequence[Any], *operands: Any
    ) -> list[Array | None]:
        values = map(ad.instantiate_zeros, cotangents)
        return [*(None,) * 5, bind(cotangent_p, *operands[:5], *values)]

    def cotangent_transpose(cotangent: Any, *operands: Any) -> list[Array | None]:
        values = bind(tangent_p, *operands[:5], ad.instantiate_zeros(cotangent))
        wanted = map(ad.is_undefined_primal, operands[5:])
        linear = (v if w else None for v, w in zip(values, wanted, strict=True))
        return [*(None,) * 5, *linear]

    register(forward_p, form, native, forward_jvp)
    register(tangent_p, tangent, None, partial(linear_jvp, tangent_p, tangent))
    register(
        cotangent_p,
        cotangent,
        f"{native}Cotangent",
        partial(linear_jvp, cotangent_p, cotangent),
    )
    ad.primitive_transposes[tangent_p] = tangent_transpose
    ad.primitive_transposes[cotangent_p] = cotangent_transpose
    return forward_p
