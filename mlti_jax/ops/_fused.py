r"""Blocks that end in pooling and moments, and store no array before these.

A block is a function $F(x, k, s) = (S_y y, \mu, \sigma^2)$ with $y = f(x, k)$, see
`_pool_moments`, where k is one or more arrays. On a CPU with native kernels, y is
computed a few rows at a time, which stay in the cache, and again for the derivative by
k. Three primitives:

* the block, with operands `(x, *k, s)`;
* its tangent $J(\dot k)$, with `(x, *k, s, pooled, mean, *tangents of k)`;
* its cotangent $J^T$, with `(x, *k, s, pooled, mean, *cotangents of the results)`.

All other derivatives, such as those by x and second ones, are those of the JAX form.
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

Form = Callable[..., list[Array]]
Shapes = Callable[..., list[ShapedArray]]


def fused_block(
    name: str, form: Form, shapes: Shapes, native: str, inputs: int = 1
) -> Primitive:
    """Build the primitives of a block; all operands and results have groups.

    Args:
      name: of the primitive.
      form: computes the block in JAX.
      shapes: of the results, from those of the operands.
      native: name of the native kernel of the block. That of the cotangent has the
        suffix `Cotangent`; the tangent has none.
      inputs: number of arrays in k.

    Returns:
      The primitive of the block.
    """
    forward_p = Primitive(name)
    tangent_p = Primitive(f"{name}_tangent")
    cotangent_p = Primitive(f"{name}_cotangent")
    for primitive in (forward_p, tangent_p, cotangent_p):
        primitive.multiple_results = True
    after_k, fixed = 1 + inputs, 4 + inputs  # positions of s and of what is linear

    # The forms compute the maxima and the mean again, because those of the native
    # kernel differ by rounding, and positions of maxima are found by comparison.

    def by_k(x: Array, *k_and_sign: Array) -> tuple[Callable[..., list], Sequence]:
        *k, sign = k_and_sign
        return (lambda *k: form(x, *k, sign)), k

    def tangent(*operands: Array) -> list[Array]:
        function, k = by_k(*operands[: after_k + 1])
        return jax.jvp(function, tuple(k), operands[fixed:])[1]

    def cotangent(*operands: Array) -> list[Array]:
        function, k = by_k(*operands[: after_k + 1])
        return list(jax.vjp(function, *k)[1](list(operands[fixed:])))

    def tangent_shapes(*operands: ShapedArray) -> list[ShapedArray]:
        for k, k_t in zip(operands[1:after_k], operands[fixed:], strict=True):
            chex.assert_equal(k.shape, k_t.shape)
        pooled, mean = operands[after_k + 1 : fixed]
        return [pooled, mean, mean]

    forward_p.def_abstract_eval(shapes)
    tangent_p.def_abstract_eval(tangent_shapes)
    cotangent_p.def_abstract_eval(lambda *operands: list(operands[1:after_k]))

    def forward_jvp(
        primals: Sequence[Array], tangents: Sequence[Any]
    ) -> tuple[list[Array], list[Any]]:
        if not is_zero(tangents[0]):
            full = map(ad.instantiate_zeros, tangents)
            return jax.jvp(form, tuple(primals), tuple(full))
        out, k_t = bind(forward_p, *primals), tangents[1:after_k]
        if all(map(is_zero, k_t)):
            return out, [ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in out]
        full = map(ad.instantiate_zeros, k_t)
        return out, bind(tangent_p, *primals, *out[:2], *full)

    def linear_jvp(
        primitive: Primitive,
        form: Form,
        primals: Sequence[Array],
        tangents: Sequence[Any],
    ) -> tuple[list[Array], list[Array]]:
        """Rule of the tangent and cotangent, linear in what follows the mean."""
        out = bind(primitive, *primals)
        full = tuple(map(ad.instantiate_zeros, tangents))
        if all(map(is_zero, tangents[:after_k])):
            return out, bind(primitive, *primals[:fixed], *full[fixed:])
        return out, jax.jvp(form, tuple(primals), full)[1]

    def transpose(
        other: Primitive, cotangents: Sequence[Any], *operands: Any
    ) -> list[Array | None]:
        values = bind(other, *operands[:fixed], *map(ad.instantiate_zeros, cotangents))
        wanted = map(ad.is_undefined_primal, operands[fixed:])
        linear = (v if w else None for v, w in zip(values, wanted, strict=True))
        return [*(None,) * fixed, *linear]

    register(forward_p, form, native, forward_jvp)
    for primitive, own, kernel, other in (
        (tangent_p, tangent, None, cotangent_p),
        (cotangent_p, cotangent, f"{native}Cotangent", tangent_p),
    ):
        register(primitive, own, kernel, partial(linear_jvp, primitive, own))
        ad.primitive_transposes[primitive] = partial(transpose, other)
    return forward_p
