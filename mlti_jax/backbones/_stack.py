"""A network as an ordered stack of layers, any contiguous part of which can be run.

MLTI mixes hidden representations `H^l`; gradient-based learners adapt some layers and
share the others. Both need a network that can be entered and left at any layer.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

COMPUTE_DTYPES = ("float32", "bfloat16")
MAX_LAYERS = 256


class LinearMap(NamedTuple):
    """The linear map of a block, as passed to a hook.

    Attributes:
      output: output of the map, before normalization.
      kernel: the kernel.
      apply: `kernel -> output`, applies another kernel of the same shape to the input.
      input: input of the map.
    """

    output: Array
    kernel: Array
    apply: Callable[[Array], Array]
    input: Array


# (layer, its linear map) -> replacement for the output of the map
Hook = Callable[[int, LinearMap], Array]


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
    hook: Callable[..., Array] | None = flax.struct.field(
        pytree_node=False, default=None
    )

    def for_layer(self, index: int) -> Context:
        """Return the context of layer `index`, whose hook takes the map alone."""
        if self.hook is None:
            return self
        return self.replace(hook=partial(self.hook, index))

    def linear(
        self, h: Array, kernel: Array, function: Callable[[Array, Array], Array]
    ) -> Array:
        """Apply a block's linear map `function(h, kernel)`, then the hook if any."""
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


@dataclasses.dataclass(frozen=True)
class Stack:
    """Layers `0..L-1`; the input of layer l is `H^l`, so `H^0` is the network's input.

    Each layer is a Flax module called as `layer(h, context)`, with parameters in the
    collection `params` and running averages in `batch_stats`.

    Attributes:
      layers: the modules, in order.
      tied: for each layer, the layer whose parameters it uses: itself, or an earlier
        layer of the same structure. The entry of a tied layer in `params` is empty, so
        code that trains or adapts parameters must use the entry of the owner. None if
        every layer has its own parameters.
      dtype: dtype in which layers compute, `float32` or `bfloat16`; parameters,
        statistics and the output of the whole stack stay in float32.
    """

    layers: tuple[nn.Module, ...]
    tied: tuple[int, ...] | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_depth(len(self.layers))

    def with_compute_dtype(self, dtype: str) -> Stack:
        """Return a copy that computes in `float32` or `bfloat16`."""
        if dtype not in COMPUTE_DTYPES:
            raise unknown_name("compute_dtype", dtype, COMPUTE_DTYPES)
        return dataclasses.replace(self, dtype=dtype)

    def __len__(self) -> int:
        return len(self.layers)

    def append(self, layer: nn.Module) -> Stack:
        """Return a stack with one more layer on top."""
        tied = None if self.tied is None else (*self.tied, len(self))
        return Stack((*self.layers, layer), tied, self.dtype)

    def _owner(self, index: int) -> int:
        """Return the layer whose parameters layer `index` uses."""
        return index if self.tied is None else self.tied[index]

    def init(self, key: Array, x: PyTree) -> tuple[tuple, tuple]:
        """Initialize all layers on an input `x`, every leaf `[N, ...]`.

        Returns:
          `(params, state)`, each a tuple with one entry per layer.
        """
        params: list[Any] = []
        state: list[Any] = []
        context = Context()
        for index, layer in enumerate(self.layers):
            layer_key = jax.random.fold_in(key, index)
            owner = self._owner(index)
            if owner == index:
                x, variables = layer.init_with_output(layer_key, x, context)
            else:
                shared = {"params": params[owner]}
                x, variables = layer.apply(shared, x, context, mutable=["batch_stats"])
            params.append(variables.get("params", {}))
            state.append(variables.get("batch_stats", {}))
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
            rngs = {}
            if context.key is not None:
                rngs = {"dropout": jax.random.fold_in(context.key, index)}
            h, updated = self.layers[index].apply(
                {
                    "params": _cast(params[self._owner(index)], self.dtype),
                    "batch_stats": state[index],
                },
                h,
                context.for_layer(index),
                rngs=rngs,
                mutable=["batch_stats"] if context.train else [],
            )
            if context.train:
                new_state[index] = updated.get("batch_stats", state[index])
        return (_cast(h, "float32") if stop == len(self) else h), tuple(new_state)


def _cast(tree: PyTree, dtype: str) -> PyTree:
    """Cast float32 and bfloat16 leaves to `dtype`; keep others (tokens, float64)."""

    def cast(leaf: Array) -> Array:
        return leaf.astype(dtype) if str(leaf.dtype) in COMPUTE_DTYPES else leaf

    return jax.tree.map(cast, tree)
