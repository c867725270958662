"""Optional dependencies, grouped in extras of the package."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from types import ModuleType

from mlti_jax.errors import InputError


def require(package: str, extra: str) -> ModuleType:
    """Import an optional package; `InputError` names the extra if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise _missing(package, extra) from error


def package_file(package: str, name: str, extra: str) -> pathlib.Path:
    """Return a file of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(package, extra)
    path = pathlib.Path(spec.submodule_search_locations[0]) / name
    if not path.is_file():
        raise InputError(
            f"the installed {package} has no file {path}; pip install -e '.[{extra}]'"
            " for a version that has it"
        )
    return path


def _missing(package: str, extra: str) -> InputError:
    return InputError(
        f"this needs the package {package!r}; pip install -e '.[{extra}]'"
    )
