"""How to repeat a run: the command or call, and the versions of everything used."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from mlti_jax._internal.revision import revision
from mlti_jax._version import __version__
from mlti_jax.strategies._registry import parse
from mlti_jax.training._config import base_config, flat_fields
from mlti_jax.training._optimizer import CUSTOM

_LIBRARIES = ("jax", "jaxlib", "optax", "flax", "numpy")
_COMMANDS = "experiments."  # the modules that are commands
# Fields that `fit` chooses from the data unless they are given.
_CHOSEN = (
    "task.",
    "interpolation.",
    "train.steps",
    "train.ema",
    "eval.every",
    "eval.queries",
)


def versions() -> dict[str, str]:
    """Return versions by name, with the platform and the devices."""
    found = {__name__.partition(".")[0]: __version__}
    if (code := revision()) is not None:
        found["git revision"] = code
    for library in _LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = "unknown"
    devices = jax.devices()
    return {
        **found,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
    }


def command() -> str | None:
    """Return the command that started this process; None if it is not one of ours."""
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    if specification is None or not specification.name.startswith(_COMMANDS):
        return None
    module = specification.name.removesuffix(".__main__")
    return " \\\n  ".join([f"python -m {module}", *map(shlex.quote, sys.argv[1:])])


def call(
    config: Any,
    function: str = "fit",
    arguments: str = "",
    adapted: Sequence[str] | None = None,
) -> str:
    """Return Python code that trains with the same settings.

    Args:
      config: the config of the run.
      function: `fit` or `compare`.
      arguments: further arguments, such as `", ('vanilla', 'mlti')"`.
      adapted: names of the adapted parameters; None if whole layers are adapted.
    """
    fields = flat_fields(config)
    default = flat_fields(base_config())
    given = {
        name: value
        for name, value in fields.items()
        if _has_effect(name, config)
        and not name.startswith("dataset.")
        and (name.startswith(_CHOSEN) or value != default.get(name))
        and not (function == "compare" and name in ("strategy.name", "seed"))
    }
    if adapted is not None:
        arguments += f", adapted={tuple(adapted)!r}"
    about = "# tasks: the data, as described above\n"
    for field, argument in (
        ("backbone.name", "network"),
        ("train.optimizer.name", "optimizer"),
    ):
        if fields[field] == CUSTOM:  # an object, which a config cannot describe
            del given[field]
            about += f"# {argument}: your own, as in this run\n"
            arguments += f", {argument}={argument}"
    lines = "".join(f"    {name!r}: {value!r},\n" for name, value in given.items())
    return (
        f"{about}overrides = {{\n{lines}}}\n"
        f"mlti_jax.{function}(tasks{arguments}, overrides=overrides, workdir=...)"
    )


def settings(config: Any) -> tuple[list[tuple[str, str, str]], ...]:
    """Return the fields that differ from their default: with an effect, and without.

    Each is name, value and default. Options of methods that are not used, such as
    `learner.maml.steps` of a run with another learner, have no effect.
    """
    fields: Mapping[str, Any] = flat_fields(config)
    default = flat_fields(base_config())
    used: list[tuple[str, str, str]] = []
    unused: list[tuple[str, str, str]] = []
    for name, value in fields.items():
        if name in default and value == default[name]:
            continue
        row = (name, _text(value), _text(default[name]) if name in default else "")
        (used if _has_effect(name, config) else unused).append(row)
    return used, unused


def _has_effect(field: str, config: Any) -> bool:
    section, _, rest = field.partition(".")
    option, _, inner = rest.partition(".")
    if not inner or section not in ("backbone", "learner", "strategy"):
        return True
    name = config[section].name
    return option in (parse(name) if section == "strategy" else (name,))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value or "(none)"
    return "(none)" if value is None else str(value)
