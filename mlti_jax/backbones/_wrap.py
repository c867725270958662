"""Any network as a stack of layers: modules, functions, and pairs (init, apply)."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

from mlti_jax.backbones._stack import Context, Stack
from mlti_jax.backbones._wrapped import (
    Arrays,
    WrappedLayer,
    argument_names,
    check_output,
    check_state,
    constant_state,
    given_values,
    hashable,
    mode_arguments,
    no_padding,
    unwrapped,
    uses_batch,
)
from mlti_jax.backbones._wrapped_linen import LinenLayer
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

_STATE, _KEYS = "state", ("key", "rng")


def wrap(network: Any, *, params: PyTree | None = None, frozen: bool = False) -> Stack:
    """Make a backbone of any network.

    Args:
      network: one of

        - a Flax linen module, called as `module(x)`, with `train`, `training`,
          `deterministic` or `use_running_average` if its `__call__` accepts them. Its
          collections are `params` and `batch_stats`;
        - a Flax NNX module, which starts from the parameters that it has, or a
          function or class `rngs -> module`, which is initialized from the seed;
        - a pair `(init, apply)` of functions, as a tuple or an object with these
          attributes: `init(key, x) -> params` and `apply(params, x) -> y`. If `apply`
          has arguments called `state`, `key` or `rng`, or one of those above, it gets
          them; with `state`, `init` returns `(params, state)` and `apply` returns
          `(y, state)`;
        - a function `x -> y` without parameters;
        - a list of these, or of stacks. Each is one layer, so tasks can be interpolated
          between any two. (A tuple of two functions is a pair.)

        Every layer maps N samples to one array `[N, ...]` of real numbers.
      params: initial parameters, such as pretrained ones: of a linen module its
        parameters, or its variables `{"params": ..., "batch_stats": ...}`; of a pair
        what `init` returns. None for random ones. In a list, wrap the layers that have
        some.
      frozen: whether the network is a fixed function. Its parameters are not trained
        and not adapted; normalization uses the running averages, which do not change,
        and dropout is off.

    Returns:
      A stack of one layer, or one per entry of a list. It is equal to the stack of an
      equal network (with the same arrays as `params`), so nothing is compiled twice.

    Raises:
      InputError: if the network is of another type. If parameters or outputs do not
        have the expected shapes, `Stack.init` raises it.

    Examples:
      >>> import flax.linen as nn
      >>> from mlti_jax import backbones
      >>> len(backbones.wrap(nn.Dense(8)))
      1
      >>> len(backbones.wrap([nn.Dense(8), nn.relu, nn.Dense(4)]))
      3
    """
    if not isinstance(frozen, bool):
        raise InputError(f"frozen is {frozen!r}; expected True or False")
    if isinstance(network, Stack) or _is_sequence(network):
        if params is not None:
            raise InputError(
                "params is given for several layers; wrap each layer that has some: "
                "wrap([wrap(encoder, params=...), other])"
            )
        stack = network if isinstance(network, Stack) else _joined(network)
    else:
        stack = Stack((_layer(network, params),))
    if not frozen:
        return stack
    if stack.tied is not None:
        raise InputError(
            "a stack that shares parameters between layers can't be frozen"
        )
    return dataclasses.replace(stack, frozen=tuple(range(len(stack))))


def _joined(networks: Sequence[Any]) -> Stack:
    """Put the layers of several networks into one stack."""
    layers: list[Any] = []
    frozen: list[int] = []
    for network in networks:
        stack = wrap(network)
        if stack.tied is not None:
            raise InputError(
                "a stack that shares parameters between layers can't be part of a "
                "sequence"
            )
        frozen += [len(layers) + index for index in stack.frozen]
        layers += stack.layers
    if not layers:
        raise InputError(
            "the network is an empty sequence; expected at least one layer"
        )
    return Stack(tuple(layers), frozen=tuple(frozen))


def _layer(network: Any, params: PyTree | None) -> Any:
    """Return the layer of a network that is not a sequence."""
    if isinstance(network, nn.Module):
        return LinenLayer.of(network, params)
    if inspect.isclass(network) and issubclass(network, nn.Module):
        raise InputError(
            f"the network is the class {network.__name__}; expected a module, such as "
            f"{network.__name__}(...)"
        )
    if _is_nnx(network) or _takes_rngs(network):
        if params is not None:
            raise InputError(
                "an NNX module has its own parameters; load the given params into it "
                "with nnx.update"
            )
        # On use: not imported by Flax linen, and this package should import fast.
        from mlti_jax.backbones._wrapped_nnx import NnxLayer

        return NnxLayer.of(network)
    if (pair := _pair(network)) is not None:
        return PairLayer.of(*pair, params)
    if callable(network) and not inspect.isclass(network):
        if params is not None:
            raise InputError(
                "params is given for a function; give a pair (init, apply) with "
                "apply(params, x)"
            )
        if any(leaf is not network for leaf in jax.tree.leaves(network)):
            raise InputError(
                f"the network is a function of type {type(network).__name__} that "
                "holds arrays, which would not be trained; give a pair (init, apply) "
                "with apply(params, x)"
            )
        return FunctionLayer(hashable(network))
    raise InputError(
        f"the network is of type {type(network).__name__}; expected a Flax module, a "
        "pair of functions (init, apply), a function, or a list of these"
    )


def _is_sequence(network: Any) -> bool:
    return isinstance(network, list | tuple) and _pair(network) is None


def _is_nnx(network: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")  # nobody can have a module of it otherwise
    return nnx is not None and isinstance(network, nnx.Module)


def _takes_rngs(network: Any) -> bool:
    """Whether this is a function or class that makes NNX modules."""
    while isinstance(network, functools.partial):
        network = network.func
    # The metaclass of NNX modules hides their signature.
    function = network.__init__ if inspect.isclass(network) else network
    return callable(network) and "rngs" in argument_names(function)


def _pair(network: Any) -> tuple[Callable, Callable] | None:
    """Return the functions of a pair (init, apply); None if it is not one."""
    if isinstance(network, tuple) and len(network) == 2:
        init, apply = network
    else:
        init, apply = getattr(network, "init", None), getattr(network, "apply", None)
    if isinstance(network, Stack) or not all(map(_is_function, (init, apply))):
        return None
    return init, apply


def _is_function(thing: Any) -> bool:
    is_module = isinstance(thing, nn.Module) or _is_nnx(thing)
    return callable(thing) and not is_module and not isinstance(thing, Stack)


@dataclasses.dataclass(frozen=True)
class FunctionLayer(WrappedLayer):
    """A function `x -> y` without parameters.

    Attributes:
      function: the function, see `hashable`.
    """

    function: Any

    def init(
        self, key: Array, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree, PyTree]:
        del key
        out, _ = self.apply({}, {}, h, context)
        check_output(_name(unwrapped(self.function)), h, out)
        return out, {}, {}

    def apply(
        self, params: PyTree, state: PyTree, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree]:
        del params, context
        return unwrapped(self.function)(h), state


@dataclasses.dataclass(frozen=True)
class PairLayer(WrappedLayer):
    """A pair of functions `init(key, x) -> params` and `apply(params, x) -> y`.

    Attributes:
      init_fn: `init`, see `hashable`.
      apply_fn: `apply`, see `hashable`.
      start: what `init` returns, if given.
    """

    init_fn: Any
    apply_fn: Any
    start: Arrays | None = None

    @classmethod
    def of(cls, init: Callable, apply: Callable, params: PyTree | None) -> PairLayer:
        """Build the layer; `params` are what `init` returns, None for random ones."""
        start = None if params is None else Arrays(params)
        return cls(hashable(init), hashable(apply), start)

    def init(
        self, key: Array, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree, PyTree]:
        name, init = self._name, unwrapped(self.init_fn)
        if self.start is None:
            made = init(key, h)
        else:
            made = given_values(name, self.start.tree, jax.eval_shape(init, key, h))
        params: PyTree = made
        state: PyTree = {}
        if self._has_state:
            if not (isinstance(made, tuple) and len(made) == 2):
                raise InputError(
                    f"{name} has an argument `state`, so init must return (params, "
                    f"state); it returns {type(made).__name__}"
                )
            params, state = made
        check_state(name, state)
        out, _ = self.apply(params, state, h, context)
        check_output(name, h, out)
        return out, params, state

    def apply(
        self, params: PyTree, state: PyTree, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree]:
        apply, names = (
            unwrapped(self.apply_fn),
            argument_names(unwrapped(self.apply_fn)),
        )
        has_state = self._has_state
        if has_state and uses_batch(context) and context.weight is not None:
            raise no_padding(self._name)
        # With one switch for both, a function that is told to use batch statistics
        # draws noise at test time too, if it has a key.
        one_switch = has_state and "deterministic" not in names
        noisy = context.train or not (one_switch and uses_batch(context))
        # In the order of the arguments, which is how libraries call them.
        given: list[Any] = [params]
        for name in names[1:]:
            if name == _STATE:
                given.append(state)
            elif name in _KEYS:
                key = jax.random.key(0) if context.key is None else context.key
                given.append(key if noisy else None)
            else:
                break
        modes = mode_arguments(names, context, has_state)
        if not noisy:
            try:
                out = apply(*given, h, **modes)
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{self._name} cannot use batch statistics without noise, for "
                    f"which it gets no key ({error}); add an argument `deterministic`, "
                    "or use norm='running'"
                ) from error
        else:
            out = apply(*given, h, **modes)
        if not has_state:
            return out, state
        if not (isinstance(out, tuple) and len(out) == 2):
            raise InputError(
                f"{self._name} has an argument `state`, so it must return (output, "
                f"state); it returns {type(out).__name__}"
            )
        out, updated = out
        return out, constant_state(updated, state) if context.train else state

    @property
    def _has_state(self) -> bool:
        return _STATE in argument_names(unwrapped(self.apply_fn))

    @property
    def _name(self) -> str:
        return _name(unwrapped(self.apply_fn))


def _name(function: Callable) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"the function {name}"
