"""The precision of matrix products and convolutions of float32 arrays."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax

from mlti_jax._internal.checks import unknown_name

# JAX's names, and `default` for JAX's own setting.
PRECISIONS = ("default", "high", "highest")


def check_precision(name: str) -> None:
    """Raise `InputError` if the precision is unknown."""
    if name not in PRECISIONS:
        raise unknown_name("precision", name, PRECISIONS)


def at_precision(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a jitted function that is traced, lowered and compiled at a precision.

    JAX's setting is changed during its calls only. It is part of the key of the
    compiled program, so the same function can be used at several precisions.

    Args:
      function: the function; returned as it is for `default`.
      name: one of `PRECISIONS`.
    """
    check_precision(name)  # now, not at the first call
    if name == "default":
        return function

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with matmul_precision(name):
            return function(*args)

    return call


def matmul_precision(name: str) -> contextlib.AbstractContextManager[None]:
    """Return the context of one of `PRECISIONS`; `InputError` if it is unknown."""
    check_precision(name)
    if name == "default":
        return contextlib.nullcontext()
    return jax.default_matmul_precision(name)
