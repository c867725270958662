"""Checks of arguments, and helpers for the messages of `InputError`."""

from __future__ import annotations

import difflib
import inspect
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from mlti_jax.errors import InputError


def check_range(field: str, value: object, largest: int, smallest: int = 1) -> None:
    """Raise `InputError` unless `value` is an integer in `[smallest, largest]`."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or not smallest <= value <= largest:  # type: ignore[operator]
        raise InputError(
            f"{field} is {value!r}; expected an integer from {smallest} to {largest}"
        )


def check_positive(name: str, value: float | jax.Array) -> None:
    """Raise `InputError` if a parameter of the Beta distribution is not positive.

    The values of traced arrays are unknown, so these are not checked.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if not np.all((np.asarray(value) > 0) & np.isfinite(value)):
        raise InputError(f"Beta's {name} must be positive and finite, got {value}")


def check_options(
    kind: str,
    function: Callable[..., Any],
    options: Iterable[str],
    forwards_to: Callable[..., Any] | None = None,
) -> None:
    """Raise `InputError` if `function` does not accept one of the options.

    Args:
      kind: what the options belong to, for the error message.
      function: the function that receives the options.
      options: names of the options.
      forwards_to: the function that receives the `**options` of `function`. If None,
        a function with `**options` accepts any name.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    if len(known) < len(parameters):
        if forwards_to is None:
            return
        forwarded = inspect.signature(forwards_to).parameters.values()
        known += [p.name for p in forwarded if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {kind}", name, known)


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Return the error for a `name` that is not among the `known` ones."""
    return InputError(
        f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(known))}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)` with the closest known name, or `""`."""
    closest = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {closest[0]!r}?)" if closest else ""


def first_few(names: Sequence[str]) -> str:
    """Join names for a message, abbreviated after the first five."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
