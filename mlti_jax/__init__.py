"""Meta-learning with fewer tasks, in JAX."""

import importlib

from mlti_jax._version import __version__ as __version__

# Imported when they are asked for, so that the package itself is there at once.
_CALLS = ("compare", "fit", "load")
_MODULES = ("api", "data")


def __getattr__(name: str):
    if name in _CALLS:
        return getattr(importlib.import_module("mlti_jax.api"), name)
    if name in _MODULES:
        return importlib.import_module(f"mlti_jax.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_CALLS, *_MODULES])
