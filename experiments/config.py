"""What the files in `experiments/configs/` share: how to read their argument.

The fields and their defaults are in `mlti_jax.training.base_config`; what makes an
experiment is in its own file.
"""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES

CONFIG_DIR = pathlib.Path(__file__).parent / "configs"
METRIC_BASED = tuple(FAMILIES["metric"])  # learners
_INTERPOLATING = ("mlti", "intra", "cross", "metamix", "maxup")


def config_names() -> list[str]:
    """Return the names of all config files."""
    return sorted(
        path.stem for path in CONFIG_DIR.glob("*.py") if path.stem != "__init__"
    )


def parse_arg(arg: str | None, **defaults: str | int) -> ConfigDict:
    """Parse `learner=maml,strategy=mlti`, the part of `--config` after the colon.

    Args:
      arg: the text; None or empty for all defaults.
      **defaults: the known names, each with its default. A value must have the type of
        its default.

    Returns:
      A `ConfigDict` with a value for every known name.
    """
    values = dict(defaults)
    given: set[str] = set()
    for part in arg.split(",") if arg else ():
        name, equals, text = part.partition("=")
        if not equals:
            raise InputError(
                f"config argument {part!r} is not of the form name=value; known names: "
                f"{', '.join(defaults)}"
            )
        if name not in defaults:
            raise unknown_name("config argument", name, defaults)
        if name in given:
            raise InputError(f"config argument {name} is given twice; give it once")
        if not text:
            raise InputError(f"config argument {name} is empty; give a value")
        given.add(name)
        kind = type(defaults[name])
        try:
            values[name] = kind(text)
        except ValueError:
            raise InputError(
                f"config argument {name} must be of type {kind.__name__}, got {text!r}"
            ) from None
    return ConfigDict(values)


def set_alpha(config: ConfigDict, alpha: float) -> None:
    """Set `alpha` of Beta(alpha, alpha) for every strategy that interpolates."""
    for name in _INTERPOLATING:
        config.strategy[name].alpha = alpha
