"""Options of the factories of learners, strategies and backbones.

A factory states each option and its default once, in its signature. The sections of a
config (`learner.maml`, `strategy.mlti`, `backbone.conv4`) are generated from it.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

# Arguments with a default that the program sets from the data, the config section
# `interpolation` or the user's network; they are not options of a single learner or
# strategy.
_SET_BY_PROGRAM = frozenset(
    {"objective", "setting", "method", "layers", "partners", "name", "adapted"}
)


class Option(typing.NamedTuple):
    """An option of a factory.

    Attributes:
      default: its default value.
      type: the type of a value other than None.
    """

    default: Any
    type: type


def options_of(
    factory: Callable[..., Any], forwards_to: Callable[..., Any] | None = None
) -> dict[str, Option]:
    """Return the options of a factory, by name.

    An option is a parameter with a default, unless the program sets it (`objective`,
    `setting`, `method`, ...) or a `functools.partial` has bound it.

    Args:
      factory: a function, or a `functools.partial` of one.
      forwards_to: the function that receives the `**options` of `factory`.
    """
    bound: set[str] = set()
    if isinstance(factory, functools.partial):
        bound = set(factory.keywords)
        factory = factory.func
    parameters = inspect.signature(factory).parameters.values()
    hints = typing.get_type_hints(factory)
    options = {
        p.name: Option(p.default, _value_type(hints[p.name], p.default))
        for p in parameters
        if p.default is not p.empty and p.name not in _SET_BY_PROGRAM | bound
    }
    if forwards_to is not None and _takes_any(parameters):
        options |= options_of(forwards_to)
    return options


def _takes_any(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _value_type(hint: Any, default: Any) -> type:
    """Return the type of an option's values: `float` for `float | None`."""
    if default is not None:
        return type(default)
    members = typing.get_args(hint)
    is_union = isinstance(hint, types.UnionType) or (
        typing.get_origin(hint) is typing.Union
    )
    named = [member for member in members if member is not types.NoneType]
    return named[0] if is_union and named else hint
