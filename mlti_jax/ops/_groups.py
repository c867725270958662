"""What the primitives of this package share: groups of tasks, and mesh axes.

Every operand has a leading axis of *groups*. `vmap` over tasks folds its axis into it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import Array, lax
from jax.interpreters import batching

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
