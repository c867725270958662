"""A network as an ordered stack of layers, any contiguous part of which can be run.

MLTI mixes hidden representations `H^l`; gradient-based learners adapt some layers and
share the others. Both need a network that can be entered and left at any layer.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import flax.struct
import jax

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.ops import Gated
from mlti_jax.types import Array, PyTree

COMPUTE_DTYPES = ("float32", "bfloat16")
MAX_LAYERS = 256


class LinearMap(NamedTuple):
    """The linear map of a block, as passed to a hook.

    Attributes:
      output: output of the map, before normalization.
      kernel: the kernel.
      apply: `kernel -> output`, applies another kernel to the input: of the same shape
        except for the last axis, the outputs.
      input: input of the map.
    """

    output: Array
    kernel: Array
    apply: Callable[[Array], Array]
    input: Array


# (layer, its linear map) -> replacement for the output of the map
Hook = Callable[[int, LinearMap], Array | Gated]


class Context(flax.struct.PyTreeNode):
    """How a network processes one set of samples.

    Attributes:
      key: PRNG key for noise such as dropout; required only if a layer draws noise
        in training.
      weight: `[N]`, 0 for padding, which must not enter batch statistics; None if all
        samples count.
      train: static; turns dropout on and updates the running averages.
      batch_statistics: static; normalize with the statistics of the given samples
        instead of the running averages. Always on in training.
      hook: static; `(layer, LinearMap) -> output`, may replace the output of the
        linear map of a block before it is normalized.
    """

    key: Array | None = None
    weight: Array | None = None
    train: bool = flax.struct.field(pytree_node=False, default=False)
    batch_statistics: bool = flax.struct.field(pytree_node=False, default=True)
    hook: Callable[..., Array | Gated] | None = flax.struct.field(
        pytree_node=False, default=None
    )

    def for_layer(self, index: int) -> Context:
        """Return the context of layer `index`: its own key, a hook of the map alone."""
        key = None if self.key is None else jax.random.fold_in(self.key, index)
        hook = None if self.hook is None else partial(self.hook, index)
        return self.replace(key=key, hook=hook)

    def linear(
        self, h: Array, kernel: Array, function: Callable[[Array, Array], Array]
    ) -> Array:
        """Apply a block's linear map `function(h, kernel)`, then the hook if any."""
        output = self.linear_or_gated(h, kernel, function)
        return output.value() if isinstance(output, Gated) else output

    def linear_or_gated(
        self, h: Array, kernel: Array, function: Callable[[Array, Array], Array]
    ) -> Array | Gated:
        """Do the same as `linear`, but leave a product with gates to the caller."""
        output = function(h, kernel)
        if self.hook is None:
            return output
        linear = LinearMap(output, kernel, partial(function, h), h)
        return self.hook(linear)


def check_depth(layers: int) -> None:
    """Raise `InputError` for a network that would take hours to compile."""
    if layers > MAX_LAYERS:
        raise InputError(
            f"a network of {layers} layers is too deep; use at most {MAX_LAYERS}"
        )


def are_sizes(sizes: Sequence[object]) -> bool:
    """Whether `sizes` holds one or more positive integers."""
    return bool(sizes) and all(
        isinstance(size, numbers.Integral) and int(size) >= 1 for size in sizes
    )


class Layer(Protocol):
    """A layer of a `Stack`; hashable, and equal to layers that compute the same."""

    def init(
        self, key: Array, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Initialize on an input `h`; return `(output, params, state)`."""
        ...

    def apply(
        self, params: PyTree, state: PyTree, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree]:
        """Compute `(output, state)`; the state changes only if `context.train`.

        The key of the context is that of this layer.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ContextLayer:
    """A Flax module that is called as `module(h, context)`.

    Its parameters are in the collection `params`, its running averages in
    `batch_stats`.

    Attributes:
      module: the module.
    """

    module: nn.Module

    def init(
        self, key: Array, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree, PyTree]:
        h, variables = self.module.init_with_output(key, h, context)
        return h, variables.get("params", {}), variables.get("batch_stats", {})

    def apply(
        self, params: PyTree, state: PyTree, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree]:
        h, updated = self.module.apply(
            {"params": params, "batch_stats": state},
            h,
            context,
            rngs={} if context.key is None else {"dropout": context.key},
            mutable=["batch_stats"] if context.train else [],
        )
        return h, updated.get("batch_stats", state) if context.train else state


class Frozen(flax.struct.PyTreeNode):
    """The state of a frozen layer: its parameters and running averages, all fixed.

    They are in the state and not among the parameters, so no optimizer sees them.
    """

    params: PyTree
    state: PyTree


@dataclasses.dataclass(frozen=True)
class Stack:
    """Layers `0..L-1`; the input of layer l is `H^l`, so `H^0` is the network's input.

    Each layer is a Flax module called as `layer(h, context)`, with parameters in the
    collection `params` and running averages in `batch_stats`. `wrap` builds a stack of
    any other modules and functions.

    Attributes:
      layers: the modules, in order.
      tied: for each layer, the layer whose parameters it uses: itself, or an earlier
        layer of the same structure. The entry of a tied layer in `params` is empty, so
        code that trains or adapts parameters must use the entry of the owner. None if
        every layer has its own parameters.
      dtype: dtype in which layers compute, `float32` or `bfloat16`; parameters,
        statistics and the output of the whole stack stay in float32.
      frozen: layers that are fixed functions. They run as at test time, with running
        averages and without dropout. Their entries in `params` are empty; their
        parameters are in the state and never change.
    """

    layers: tuple[nn.Module | Layer, ...]
    tied: tuple[int, ...] | None = None
    dtype: str = "float32"
    frozen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_depth(len(self.layers))

    def with_compute_dtype(self, dtype: str) -> Stack:
        """Return a copy that computes in `float32` or `bfloat16`."""
        if dtype not in COMPUTE_DTYPES:
            raise unknown_name("compute_dtype", dtype, COMPUTE_DTYPES)
        return dataclasses.replace(self, dtype=dtype)

    def __len__(self) -> int:
        return len(self.layers)

    def append(self, layer: nn.Module | Layer) -> Stack:
        """Return a stack with one more layer on top."""
        tied = None if self.tied is None else (*self.tied, len(self))
        return dataclasses.replace(self, layers=(*self.layers, layer), tied=tied)

    def _owner(self, index: int) -> int:
        """Return the layer whose parameters layer `index` uses."""
        return index if self.tied is None else self.tied[index]

    def _layer(self, index: int) -> Layer:
        layer = self.layers[index]
        return ContextLayer(layer) if isinstance(layer, nn.Module) else layer

    def init(self, key: Array, x: PyTree) -> tuple[tuple, tuple]:
        """Initialize all layers on an input `x`, every leaf `[N, ...]`.

        Returns:
          `(params, state)`, each a tuple with one entry per layer.
        """
        params: list[Any] = []
        state: list[Any] = []
        context = Context()
        for index in range(len(self)):
            layer, owner = self._layer(index), self._owner(index)
            h, own, layer_state = layer.init(jax.random.fold_in(key, index), x, context)
            if owner != index:
                h, _ = layer.apply(params[owner], layer_state, x, context)
                own = {}
            elif index in self.frozen:
                own, layer_state = {}, Frozen(own, layer_state)
            params.append(own)
            state.append(layer_state)
            x = h
        return tuple(params), tuple(state)

    def apply(
        self,
        params: tuple,
        state: tuple,
        h: PyTree,
        start: int = 0,
        stop: int | None = None,
        context: Context = Context(),
    ) -> tuple[PyTree, tuple]:
        """Run the layers `start..stop-1`: from `H^start` to `H^stop`.

        Args:
          params: parameters of the whole stack, one entry per layer.
          state: running averages of the whole stack, one entry per layer.
          h: `H^start`, every leaf `[N, ...]`.
          start: the layer whose input is `h`.
          stop: the first layer that is not run; None runs all remaining layers.
          context: key, mode, sample weights and hook.

        Returns:
          `(H^stop, state)`, with the state of the layers that were run updated.
        """
        stop = len(self) if stop is None else stop
        new_state = list(state)
        h = _cast(h, self.dtype)
        for index in range(start, stop):
            own, layer_state = params[self._owner(index)], state[index]
            inner = context.for_layer(index)
            if index in self.frozen:
                own, layer_state = layer_state.params, layer_state.state
                inner = Context(batch_statistics=False, hook=inner.hook)
            h, updated = self._layer(index).apply(
                _cast(own, self.dtype), layer_state, h, inner
            )
            # Some layers compute in float32, such as look-ups of word vectors.
            h = _cast(h, self.dtype)
            if inner.train:
                new_state[index] = updated
        return (_cast(h, "float32") if stop == len(self) else h), tuple(new_state)


def without_frozen(state: PyTree) -> PyTree:
    """Drop the entries of frozen layers from a state.

    States of many tasks are averaged; what is the same in all of them is not copied.
    """
    return jax.tree.map(
        lambda entry: None if _is_frozen(entry) else entry, state, is_leaf=_is_frozen
    )


def with_frozen(state: PyTree, full: PyTree) -> PyTree:
    """Put the entries of frozen layers back, from the state `full`."""
    return jax.tree.map(
        lambda old, new: old if _is_frozen(old) else new,
        full,
        state,
        is_leaf=_is_frozen,
    )


def _is_frozen(entry: PyTree) -> bool:
    return isinstance(entry, Frozen)


def _cast(tree: PyTree, dtype: str) -> PyTree:
    """Cast float32 and bfloat16 leaves to `dtype`; keep others (tokens, float64)."""

    def cast(leaf: Array) -> Array:
        return leaf.astype(dtype) if str(leaf.dtype) in COMPUTE_DTYPES else leaf

    return jax.tree.map(cast, tree)
