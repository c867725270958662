"""Which parameters an inner loop adapts, by their paths.

A path is the layer, its index or `head` for the classifier, and the names within the
layer: `("0", "BatchNorm_0", "scale")`, as text `0/BatchNorm_0/scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import jax

from mlti_jax._internal.checks import first_few
from mlti_jax.backbones import Stack
from mlti_jax.backbones._layers import Head
from mlti_jax.backbones._stack import Frozen
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

HEAD = "head"
Predicate = Callable[[tuple[str, ...]], bool]


def adapted_paths(
    backbone: Stack, x: PyTree, adapted: Predicate | Sequence[str]
) -> tuple[str, ...]:
    """Find the parameters that a predicate selects, as the option `adapted` of `maml`.

    Args:
      backbone: the network without a head.
      x: an input, every leaf `[N, ...]`; arrays, or their shapes and dtypes.
      adapted: `(path) -> bool`, where a path is a tuple of names, such as
        `("0", "BatchNorm_0", "scale")` or `("head", "kernel")`: the index of the
        layer, or `head` for the classifier, then the names within the layer. Or texts
        such as `0/BatchNorm_0/scale`, with the wildcards of `fnmatch`: `*` is any text.

    Returns:
      The selected paths as texts, in the order of the layers.

    Raises:
      InputError: if nothing or a frozen parameter is selected, or if a text selects
        nothing.

    Examples:
      >>> from mlti_jax import backbones
      >>> adapted_paths(
      ...     backbones.mlp((32, 32)),
      ...     jnp.zeros((2, 8)),
      ...     lambda path: path[0] == "head" or "norm" in path,
      ... )
      ('0/norm/offset', '0/norm/scale', '1/norm/offset', '1/norm/scale',
       'head/bias', 'head/kernel')
    """
    if not callable(adapted):
        _check_texts(adapted)
    stack = backbone.append(Head(1))
    params, state = jax.eval_shape(stack.init, jax.random.key(0), x)
    selects = adapted if callable(adapted) else _any_of(adapted)
    found, known = [], []
    for layer, (own, entry) in enumerate(zip(params, state, strict=True)):
        frozen = isinstance(entry, Frozen)
        for path in _paths(stack, layer, entry.params if frozen else own):
            known.append("/".join(path))
            if not selects(path):
                continue
            if frozen:
                raise InputError(
                    f"adapted selects {known[-1]}, a frozen parameter; select others, "
                    "or wrap the network with frozen=False"
                )
            found.append(known[-1])
    if not callable(adapted):
        _check_each_selects(adapted, known)
    if not found:
        raise InputError(
            "adapted selects no parameter; expected at least one of: "
            f"{first_few(known)}"
        )
    return tuple(found)


def named_layers(adapted: Sequence[str], stack: Stack) -> tuple[int, ...]:
    """Return the layers of a stack with its head that paths or patterns name.

    Raises:
      InputError: if `adapted` is not a sequence of texts, or one names no layer.
    """
    if callable(adapted):
        raise InputError(
            "adapted is a function, and parameters are known only for an input; give "
            "adapted=learners.adapted_paths(backbone, x, function)"
        )
    _check_texts(adapted)
    named: set[int] = set()
    for pattern in adapted:
        first = pattern.split("/")[0]
        layers = {
            layer
            for layer in range(len(stack))
            if fnmatchcase(layer_name(stack, layer), first)
        }
        if not layers:
            raise InputError(
                f"adapted has {pattern!r}, which does not start with a layer; expected "
                f"0 to {len(stack) - 2}, or head"
            )
        named |= layers
    if not named:
        raise InputError("adapted is empty; expected at least one path")
    return tuple(sorted(named))


def _check_texts(adapted: object) -> None:
    texts = isinstance(adapted, list | tuple)
    if not texts or not all(isinstance(path, str) for path in adapted):  # type: ignore
        raise InputError(
            f"adapted is {adapted!r}; expected a function of a path, or a sequence of "
            "paths such as ('head/kernel', 'head/bias') or ('head/*',)"
        )


def layer_name(stack: Stack, layer: int) -> str:
    """Return the name of a layer of a stack with its head: its index, or `head`."""
    return HEAD if layer == len(stack) - 1 else str(layer)


def check_selection(stack: Stack, params: tuple, adapted: Sequence[str]) -> None:
    """Raise `InputError` if a text selects nothing, or nothing in the first layer."""
    known = [
        "/".join(path)
        for layer, own in enumerate(params)
        for path in _paths(stack, layer, own)
    ]
    _check_each_selects(adapted, known)
    first = layer_name(stack, named_layers(adapted, stack)[0])
    selects = _any_of(adapted)
    if not any(
        k.split("/")[0] == first and selects(tuple(k.split("/"))) for k in known
    ):
        raise InputError(
            f"adapted is {tuple(adapted)}, and layer {first} has no such parameter, so "
            "it should be shared; give adapted=learners.adapted_paths(backbone, x, "
            "adapted)"
        )


def select(name: str, params: PyTree, adapted: Sequence[str]) -> PyTree:
    """Replace the parameters of layer `name` that are not adapted with None."""
    selects = _any_of(adapted)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if selects((name, *_names(path))) else None, params
    )


def merge(params: PyTree, adapted: PyTree) -> PyTree:
    """Replace the entries of `params` that are not None in `adapted`."""
    return jax.tree.map(
        lambda new, old: old if new is None else new,
        adapted,
        params,
        is_leaf=lambda node: node is None,
    )


def _any_of(patterns: Sequence[str]) -> Predicate:
    return lambda path: any(_matches(pattern, "/".join(path)) for pattern in patterns)


def _matches(pattern: str, path: str) -> bool:
    # Names may contain brackets, which `fnmatch` treats as a set of characters.
    return pattern == path or fnmatchcase(path, pattern)


def _check_each_selects(adapted: Sequence[str], known: Sequence[str]) -> None:
    for pattern in adapted:
        if not any(_matches(pattern, path) for path in known):
            raise InputError(
                f"adapted has {pattern!r}, which selects no parameter; expected at "
                f"least one of: {first_few(known)}"
            )


def _paths(stack: Stack, layer: int, params: PyTree) -> list[tuple[str, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [(layer_name(stack, layer), *_names(path)) for path, _ in leaves]


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)
