"""A Flax linen module as a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import unfreeze
from flax.traverse_util import flatten_dict

from mlti_jax.backbones._stack import Context
from mlti_jax.backbones._wrapped import (
    MODES,
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
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

_COLLECTIONS = ("params", "batch_stats")


@dataclasses.dataclass(frozen=True)
class LinenLayer(WrappedLayer):
    """A linen module, called as `module(x)` with those of `MODES` that it accepts.

    Attributes:
      module: the module, see `hashable`.
      start: initial `{"params", "batch_stats"}`, each optional; None for random ones.
    """

    module: Any
    start: Arrays | None = None

    @classmethod
    def of(cls, module: nn.Module, params: PyTree | None) -> LinenLayer:
        """Build the layer; `params` are parameters alone, or all variables."""
        if params is None:
            return cls(hashable(module))
        if not isinstance(params, Mapping):
            raise InputError(
                f"params of {type(module).__name__} is of type "
                f"{type(params).__name__}; expected a dictionary, as `module.init` "
                "returns it"
            )
        params = unfreeze(dict(params))
        if not ("params" in params and set(params) <= set(_COLLECTIONS)):
            params = {"params": params}
        return cls(hashable(module), Arrays(params))

    def init(
        self, key: Array, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree, PyTree]:
        module, name = unwrapped(self.module), self._name
        names = argument_names(module.__call__)
        test = Context(batch_statistics=False)
        modes = mode_arguments(names, test, has_statistics=True)
        keys = {"params": key, "dropout": jax.random.fold_in(key, 0)}
        _, variables = module.init_with_output(keys, h, **modes)
        variables = unfreeze(variables)
        if others := sorted(set(variables) - set(_COLLECTIONS)):
            raise InputError(
                f"{name} has variables in the collection {others[0]!r}; only 'params' "
                "and 'batch_stats' are supported"
            )
        params, state = (variables.get(kind, {}) for kind in _COLLECTIONS)
        if state and not set(MODES) & set(names):
            raise InputError(
                f"{name} has batch statistics, and its __call__ accepts none of "
                f"{', '.join(MODES)}; add such an argument, which chooses between the "
                "statistics of the batch and running averages"
            )
        check_state(name, state)
        if self.start is not None:
            start = self.start.tree
            params = given_values(name, start["params"], params)
            if "batch_stats" in start:
                state = given_values(name, start["batch_stats"], state)
        out, _ = self.apply(params, state, h, context)
        check_output(name, h, out)
        return out, params, state

    def apply(
        self, params: PyTree, state: PyTree, h: PyTree, context: Context
    ) -> tuple[PyTree, PyTree]:
        module = unwrapped(self.module)
        batch = bool(state) and uses_batch(context)
        normalized: set[tuple[str, ...]] = set()
        with nn.intercept_methods(_interceptor(context, normalized)):
            out, updated = module.apply(
                {"params": params, "batch_stats": state},
                h,
                **mode_arguments(argument_names(module.__call__), context, bool(state)),
                rngs={} if context.key is None else {"dropout": context.key},
                mutable=["batch_stats"] if batch else [],
            )
        if batch and context.weight is not None:
            owners = {path[:-1] for path in flatten_dict(state)}
            if not owners <= normalized:
                raise no_padding(self._name)
        if batch and context.train:
            state = constant_state(unfreeze(updated)["batch_stats"], state)
        return out, state

    @property
    def _name(self) -> str:
        return f"the module {type(unwrapped(self.module)).__name__}"


def _interceptor(
    context: Context, normalized: set[tuple[str, ...]]
) -> Callable[..., Any]:
    """Return a method interceptor for what a module's arguments cannot express.

    It turns dropout off at test time, also if the module is told to train so that it
    uses batch statistics, and leaves padding out of the statistics of `nn.BatchNorm`.

    Args:
      context: how the network runs.
      normalized: gets the paths of the `nn.BatchNorm` that leave padding out.
    """

    def intercept(
        call: Callable[..., Any],
        args: tuple,
        kwargs: dict[str, Any],
        of: nn.module.InterceptorContext,
    ) -> Any:
        if of.method_name != "__call__":
            return call(*args, **kwargs)
        if isinstance(of.module, nn.Dropout) and not context.train:
            return args[0] if args else kwargs["inputs"]
        if isinstance(of.module, nn.BatchNorm) and context.weight is not None:
            x = args[0] if args else kwargs["x"]
            if x.shape[0] == context.weight.shape[0]:
                mask = (context.weight > 0).reshape(-1, *(1,) * (x.ndim - 1))
                given = kwargs.get("mask")
                kwargs = {
                    **kwargs,
                    "mask": mask if given is None else jnp.logical_and(mask, given),
                }
                normalized.add(of.module.path)
        return call(*args, **kwargs)

    return intercept
