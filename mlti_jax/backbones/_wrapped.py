"""What all wrapped layers share: equality, modes, and checks of what users pass."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.backbones._stack import Context
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

# Arguments of a module that switch between training and test, in any combination.
MODES = ("train", "training", "deterministic", "use_running_average")


class WrappedLayer:
    """Base of all layers that `wrap` makes."""


def is_wrapped(layer: object) -> bool:
    """Whether a layer of a stack is a wrapped module, whose inside is hidden."""
    return isinstance(layer, WrappedLayer)


# --------------------------------------------------------------------------- equality


@dataclasses.dataclass(frozen=True, eq=False)
class ByIdentity:
    """Makes a value hashable, and equal only to itself."""

    value: Any


def hashable(value: Any) -> Any:
    """Return `value` if it can be hashed, else compare it by identity.

    Stacks are static arguments of compiled functions, which need both.
    """
    try:
        hash(value)
    except TypeError:
        return ByIdentity(value)
    return value


def unwrapped(value: Any) -> Any:
    """Invert `hashable`."""
    return value.value if isinstance(value, ByIdentity) else value


class Arrays:
    """A tree of arrays that is equal to a tree of the same array objects.

    Args:
      tree: the arrays.
    """

    def __init__(self, tree: PyTree) -> None:
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._key = (structure, tuple(map(id, leaves)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrays) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


# ------------------------------------------------------------------------------ modes


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments; none if they are unknown."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in functions
        return ()


def uses_batch(context: Context) -> bool:
    """Whether normalization uses the statistics of the given samples."""
    return context.train or context.batch_statistics


def mode_arguments(
    names: Collection[str], context: Context, has_statistics: bool
) -> dict[str, bool]:
    """Return the values of those of `MODES` that a module accepts.

    At test time, normalization may still use the statistics of the given samples. A
    module with running averages and a single switch is then told to train; the caller
    turns dropout off and discards the new averages.

    Args:
      names: the arguments of the module.
      context: how the network runs.
      has_statistics: whether the module has running averages.
    """
    train = uses_batch(context) if has_statistics else context.train
    values = {
        "train": train,
        "training": train,
        "use_running_average": not train,
        "deterministic": not train,
    }
    if {"train", "training", "use_running_average"} & set(names):
        values["deterministic"] = not context.train
    return {name: value for name, value in values.items() if name in names}


def no_padding(name: str) -> InputError:
    """Return the error for padding that would enter batch statistics."""
    return InputError(
        f"{name} normalizes with the statistics of a set whose samples have weights "
        "(classes of different sizes, padded or weighted), and samples can be left out "
        "only in nn.BatchNorm of Flax linen; use running averages at test time "
        "(norm='running'), or as many samples in every class (eval.queries)"
    )


# ----------------------------------------------------------------------------- checks


def check_output(name: str, h: PyTree, out: Any) -> None:
    """Raise `InputError` unless `out` is one real array `[N, ...]` for N samples."""
    samples = jax.tree.leaves(h)[0].shape[0]
    if not isinstance(out, jax.Array | np.ndarray):
        raise InputError(
            f"{name} returns {type(out).__name__}; expected one array [N, ...] for N "
            "samples. Return the features alone"
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise InputError(
            f"{name} returns an array of {out.dtype}; expected floating-point numbers"
        )
    if out.ndim < 1 or out.shape[0] != samples:
        raise InputError(
            f"{name} returns an array of shape {tuple(out.shape)} for {samples} "
            f"samples; expected ({samples}, ...), one row per sample"
        )


def check_state(name: str, state: PyTree) -> None:
    """Raise `InputError` unless a state can be averaged over tasks."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(
                f"{name} has the state {text(path)} of {leaf.dtype}; the state is "
                "averaged over tasks, so it must be floating-point numbers"
            )


def given_values(name: str, given: PyTree, expected: PyTree) -> PyTree:
    """Return given parameters, in the structure and with the dtypes of `expected`.

    Raises:
      InputError: if names or shapes differ.
    """
    known = {text(path): leaf for path, leaf in _leaves(expected)}
    found = {text(path): leaf for path, leaf in _leaves(given)}
    missing = [path for path in known if path not in found]
    extra = [path for path in found if path not in known]
    if missing or extra:
        faults = [
            f"{fault} {first_few(paths)}"
            for fault, paths in (("lack", missing), ("have the unexpected", extra))
            if paths
        ]
        raise InputError(
            f"the given params of {name} {' and '.join(faults)}; expected the "
            "parameters of this module"
        )
    leaves = []
    for path, leaf in known.items():
        if jnp.shape(found[path]) != leaf.shape:
            raise InputError(
                f"the given params of {name} have {path} of shape "
                f"{tuple(jnp.shape(found[path]))}; expected {tuple(leaf.shape)} for "
                "this input"
            )
        # A copy: the state of a training run is donated.
        leaves.append(jnp.array(found[path], leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(expected), leaves)


def text(path: tuple) -> str:
    """Return a key path as text, such as `Dense_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _leaves(tree: PyTree) -> list[tuple[tuple, Array]]:
    return jax.tree_util.tree_leaves_with_path(tree)


def constant_state(new: PyTree, old: PyTree) -> PyTree:
    """Return new running averages without derivatives, in the dtypes of the old ones.

    They are used at test time only.
    """
    return jax.tree.map(lambda n, o: jax.lax.stop_gradient(n).astype(o.dtype), new, old)
