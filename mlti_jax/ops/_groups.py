"""What the primitives of this package share: groups of tasks, mesh axes, lowering.

Every operand has a leading axis of *groups*. `vmap` over tasks folds its axis into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from mlti_jax._internal import native

Operands = Sequence[Array]
Axes = Sequence[int | None]


def as_groups(operands: Operands, axes: Axes) -> tuple[list[Array], int]:
    """Fold the mapped axis of all operands into their groups; return its length."""
    length = next(
        a.shape[i] for a, i in zip(operands, axes, strict=True) if i is not None
    )
    folded = []
    for a, i in zip(operands, axes, strict=True):
        a = batching.bdim_at_front(a, i, length)
        folded.append(a.reshape(length * a.shape[1], *a.shape[2:]))
    return folded, length


def split_groups(y: Array, length: int) -> Array:
    """Separate the mapped axis of an output from its groups."""
    return y.reshape(length, y.shape[0] // length, *y.shape[1:])


def same_manual_axes(*arrays: Array) -> list[Array]:
    """Mark replicated arrays as varying if another one varies (in `shard_map`)."""
    axes = [_varying(a) for a in arrays]
    missing = [tuple(frozenset().union(*axes) - own) for own in axes]
    return [
        lax.pcast(a, m, to="varying") if m else a
        for a, m in zip(arrays, missing, strict=True)
    ]


def _varying(a: Array) -> frozenset[str]:
    """Return the mesh axes along which an array varies (in `shard_map`)."""
    manual = getattr(jax.typeof(a), "manual_axis_type", None)
    return frozenset() if manual is None else frozenset(manual.varying)


def bind(primitive: Primitive, *operands: Array) -> Any:
    """Apply a primitive to operands of which some may be replicated."""
    return primitive.bind(*same_manual_axes(*operands))


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is known to be zero."""
    return type(tangent) is ad.Zero


def register(
    primitive: Primitive, form: Callable[..., Any], name: str | None, jvp: Callable
) -> None:
    """Complete a primitive whose operands and results all have groups.

    Args:
      primitive: with its shapes, and `multiple_results` set.
      form: computes it in JAX.
      name: of the native kernel for CPUs; None if there is none.
      jvp: its rule for derivatives.
    """
    several = primitive.multiple_results

    def batched(operands: Operands, axes: Axes) -> tuple[Any, Any]:
        folded, length = as_groups(operands, axes)
        out = bind(primitive, *folded)
        if several:
            return [split_groups(leaf, length) for leaf in out], [0] * len(out)
        return split_groups(out, length), 0

    def form_for_cpu(*operands: Array) -> Any:
        if name is None or not native.available(*operands):
            return form(*operands)
        return native.call(name, jax.eval_shape(form, *operands), *operands)

    primitive.def_impl(jax.jit(primitive.bind))
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = batched
    for function, platform in ((form, None), (form_for_cpu, "cpu")):
        lowering = mlir.lower_fun(function, multiple_results=several)
        mlir.register_lowering(primitive, lowering, platform=platform)
