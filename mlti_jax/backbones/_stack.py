"""A network as an ordered stack of layers, of which any contiguous part can be run.

MLTI mixes hidden representations `H^l`, gradient-based learners adapt some layers and
share the others: both need a network that can be entered and left at any layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax

from mlti_jax._internal.checks import unknown_name
from mlti_jax.types import Array, PyTree

COMPUTE_DTYPES = ("float32", "bfloat16")


class LinearMap(NamedTuple):
    """A block's linear map at work, as a hook is shown it.

    Attributes:
      output: what the map gives, before it is normalised.
      kernel: the map's kernel.
      apply: `kernel -> output`, the same input under another kernel of that shape.
      input: what the map is applied to.
    """

    output: Array
    kernel: Array
    apply: Callable[[Array], Array]
    input: Array


# (layer, its linear map) -> what is normalised instead of the map's output
Hook = Callable[[int, LinearMap], Array]
# The same for one layer.
LayerHook = Callable[[LinearMap], Array]


class Mode(NamedTuple):
    """How a network is run; static.

    Attributes:
      train: noise (dropout) is on and running averages are updated.
      batch_statistics: normalise by the statistics of the set at hand rather than by
        the running averages.
    """

    train: bool = False
    batch_statistics: bool = True


@dataclasses.dataclass(frozen=True)
class Stack:
    """Layers `0..L-1`; the input of layer l is `H^l`, so `H^0` is the network's input.

    Each layer is a Flax module called as `layer(h, mode, weight=..., hook=...)`, with
    parameters in the collection `params` and running averages in `batch_stats`.

    Attributes:
      layers: the modules, in order.
      tied: for each layer, the layer whose parameters it uses: itself, or one before
        it that is made alike. Then its own entry in `params` is empty: what trains
        or adapts parameters has to name the other. None: every layer has its own.
      dtype: what layers compute in, `float32` or `bfloat16`; parameters, statistics
        and what the whole stack gives stay in float32.
    """

    layers: tuple[nn.Module, ...]
    tied: tuple[int, ...] | None = None
    dtype: str = "float32"

    def computing_in(self, dtype: str) -> Stack:
        """The stack, computing in `float32` or `bfloat16`."""
        if dtype not in COMPUTE_DTYPES:
            raise unknown_name("compute_dtype", dtype, COMPUTE_DTYPES)
        return dataclasses.replace(self, dtype=dtype)

    def __len__(self) -> int:
        return len(self.layers)

    def append(self, layer: nn.Module) -> Stack:
        """The stack with one more layer on top."""
        tied = None if self.tied is None else (*self.tied, len(self))
        return Stack((*self.layers, layer), tied, self.dtype)

    def _owner(self, index: int) -> int:
        """The layer whose parameters a layer uses."""
        return index if self.tied is None else self.tied[index]

    def init(self, key: Array, x: PyTree) -> tuple[tuple, tuple]:
        """Initialises all layers on an input `x`, every leaf `[N, ...]`.

        Returns:
          `(params, state)`, each a tuple with one entry a layer.
        """
        params, state = [], []
        for index, layer in enumerate(self.layers):
            layer_key = jax.random.fold_in(key, index)
            mode = Mode(train=False, batch_statistics=True)
            owner = self._owner(index)
            if owner == index:
                x, variables = layer.init_with_output(layer_key, x, mode)
            else:
                shared = {"params": params[owner]}
                x, variables = layer.apply(shared, x, mode, mutable=["batch_stats"])
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
        *,
        key: Array | None = None,
        mode: Mode = Mode(),
        weight: Array | None = None,
        hook: Hook | None = None,
    ) -> tuple[PyTree, tuple]:
        """Runs the layers `start..stop-1`: from `H^start` to `H^stop`.

        Args:
          params: one entry a layer, of the whole stack.
          state: running averages, one entry a layer, of the whole stack.
          h: `H^start`, every leaf `[N, ...]`.
          start: the layer whose input `h` is.
          stop: the first layer that is not run; all the rest if None.
          key: a PRNG key for noise, needed if a layer draws any in training.
          mode: train or not, and which statistics normalise.
          weight: `[N]`, 0 for samples that must not enter the statistics.
          hook: `(layer, LinearMap) -> output`, may change what a block's linear map
            gives before it is normalised.

        Returns:
          `(H^stop, state)`, with the state of the layers run brought up to date.
        """
        stop = len(self) if stop is None else stop
        state = list(state)
        h = _cast(h, self.dtype)
        for index in range(start, stop):
            rngs = {} if key is None else {"dropout": jax.random.fold_in(key, index)}
            layer_hook = None if hook is None else _bind(hook, index)
            h, updated = self.layers[index].apply(
                {
                    "params": _cast(params[self._owner(index)], self.dtype),
                    "batch_stats": state[index],
                },
                h,
                mode,
                weight=weight,
                hook=layer_hook,
                rngs=rngs,
                mutable=["batch_stats"] if mode.train else [],
            )
            if mode.train:
                state[index] = updated.get("batch_stats", state[index])
        return (_cast(h, "float32") if stop == len(self) else h), tuple(state)


def _cast(tree: PyTree, dtype: str) -> PyTree:
    """Float32 or bfloat16 leaves in `dtype`; others (tokens, float64) as they are."""

    def cast(leaf: Array) -> Array:
        return leaf.astype(dtype) if str(leaf.dtype) in COMPUTE_DTYPES else leaf

    return jax.tree.map(cast, tree)


def _bind(hook: Hook, index: int) -> LayerHook:
    return lambda linear: hook(index, linear)


def run_linear(
    hook: LayerHook | None,
    h: Array,
    kernel: Array,
    function: Callable[[Array, Array], Array],
) -> Array:
    """A block's linear map `function(h, kernel)`, and what the hook makes of it."""
    output = function(h, kernel)
    if hook is None:
        return output
    return hook(LinearMap(output, kernel, partial(function, h), h))
