"""A Flax NNX module as a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import unflatten_dict

from mlti_jax.backbones._stack import Context
from mlti_jax.backbones._wrapped import (
    Arrays,
    WrappedLayer,
    argument_names,
    check_output,
    check_state,
    constant_state,
    hashable,
    mode_arguments,
    no_padding,
    unwrapped,
    uses_batch,
)
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class NnxLayer(WrappedLayer):
    """An NNX module, called as `module(x)`.

    Attributes:
      name: name of its class, for errors.
      graph: the module without its variables.
      streams: paths of the keys and counters of its random streams.
      make: `rngs -> module`, which initializes one; None if `start` is given.
      start: the variables `(params, batch statistics)` of a module that exists.
    """

    name: str
    graph: Any
    streams: tuple[tuple[tuple, str], ...]
    make: Any = None
    start: Arrays | None = None

    @classmethod
    def of(cls, module: nnx.Module | Callable[..., nnx.Module]) -> NnxLayer:
        """Build the layer of a module, or of a function `rngs -> module`."""
        if isinstance(module, nnx.Module):
            graph, params, stats, streams = _split(module)
            start = Arrays((params, stats))
            name = type(module).__name__
            return cls(name, hashable(graph), streams, start=start)
        made = nnx.eval_shape(lambda: module(rngs=nnx.Rngs(0)))
        if not isinstance(made, nnx.Module):
            raise InputError(
                "the network is a function of rngs that does not return a module; "
                "expected an nnx.Module"
            )
        graph, *_, streams = _split(made)
        return cls(type(made).__name__, hashable(graph), streams, hashable(module))

    def init(
        self, key: Array, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree, PyTree]:
        if self.start is not None:
            # A copy: the state of a training run is donated.
            params, state = jax.tree.map(jnp.copy, self.start.tree)
        else:
            module = unwrapped(self.make)(rngs=nnx.Rngs(key))
            _, params, state, _ = _split(module)
        check_state(self.name, state)
        out, _ = self.apply(params, state, h, context)
        check_output(f"the module {self.name}", h, out)
        return out, params, state

    def apply(
        self, params: PyTree, state: PyTree, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree]:
        batch = bool(jax.tree.leaves(state)) and uses_batch(context)
        if batch and context.weight is not None:
            raise no_padding(f"the module {self.name}")
        module = nnx.merge(
            unwrapped(self.graph), params, state, self._random_state(context.key)
        )
        module.set_attributes(
            deterministic=not context.train,
            use_running_average=not uses_batch(context),
            raise_if_not_found=False,
        )
        if not context.train:  # also if the module is told to train, see below
            module.set_attributes(nnx.Dropout, rate=0.0, raise_if_not_found=False)
        modes = mode_arguments(
            argument_names(module.__call__), context, bool(jax.tree.leaves(state))
        )
        out = module(h, **modes)
        if batch and context.train:
            updated = nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
            state = constant_state(updated, state)
        return out, state

    def _random_state(self, key: Array | None) -> PyTree:
        """Start all random streams from a key; without one, nothing is drawn."""
        key = jax.random.key(0) if key is None else key
        values: dict[tuple, Array] = {}
        for index, (path, kind) in enumerate(self.streams):
            is_key = kind == nnx.RngKey.__name__
            values[path] = jax.random.fold_in(key, index) if is_key else jnp.uint32(0)
        return unflatten_dict(values)


def _split(
    module: nnx.Module,
) -> tuple[Any, PyTree, PyTree, tuple[tuple[tuple, str], ...]]:
    """Split a module into graph, parameters, batch statistics and random streams."""
    parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    graph, params, stats, streams, others = parts
    for path, variable in nnx.to_flat_state(others):
        raise InputError(
            f"the module {type(module).__name__} has the variable "
            f"{'/'.join(map(str, path))} of type {type(variable).__name__}; only "
            "Param, BatchStat and random streams are supported"
        )
    kinds = tuple(
        (path, type(variable).__name__) for path, variable in nnx.to_flat_state(streams)
    )
    return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(stats), kinds
