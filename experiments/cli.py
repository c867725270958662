"""Shared by the tools with a `--config`: field checks, `--list`, compilation cache.

Everything else that command-line tools share is in `mlti_jax._internal.command_line`.
"""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from experiments.config import config_names
from mlti_jax._internal import command_line
from mlti_jax._internal.progress import say
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.data._registry import DATASETS
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES, LEARNERS
from mlti_jax.strategies._registry import STRATEGIES, applies_to
from mlti_jax.training._config import base_config, flat_fields


def run(
    main: Callable[..., None],
    module_docstring: str | None,
    positional: Sequence[str] = (),
) -> int:
    """Run a tool with a `--config`; see `mlti_jax._internal.command_line.run`.

    An unknown `--config.FIELD` is reported with the fields that exist.
    """
    return command_line.run(main, module_docstring, positional, _check_config)


def use_compilation_cache(choice: str) -> None:
    """Enable JAX's persistent compilation cache, which makes the next start faster.

    The cache holds programs that are executed, so nobody else may write to it: the
    user's folder is private (mode 0700).

    Args:
      choice: `user` for a folder in the user's cache directory, `off`, or a path that
        contains a slash. A directory that is already set (`JAX_COMPILATION_CACHE_DIR`)
        is not changed.
    """
    if choice not in ("user", "off") and "/" not in choice:
        raise InputError(
            f"config.compilation_cache is {choice!r}; expected user, off, or a path "
            "that contains a /"
        )
    if choice == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return
    path = _user_cache() if choice == "user" else pathlib.Path(choice).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if choice == "user":
            path.chmod(0o700)  # fails if it belongs to somebody else
    except OSError as error:
        if choice != "user":
            raise InputError(
                f"config.compilation_cache={choice} cannot be created "
                f"({error.strerror}); choose another path, or off"
            ) from None
        say(f"compiled programs are not kept: {path} ({error.strerror})")
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _user_cache() -> pathlib.Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(root).expanduser() / "mlti_jax" / "compiled"


def listing() -> str:
    """Return the names of all learners, strategies, backbones, datasets, configs."""
    families: dict[str, Iterable[str]] = {
        "learners": LEARNERS,
        "strategies": STRATEGIES,
        "backbones": BACKBONES,
        "datasets": DATASETS,
        "configs": config_names(),
    }
    lines = [
        f"{family + ':':12} {' '.join(names)}" for family, names in families.items()
    ]
    lines += ["", "Combine strategies with +, as in strategy=NAME+NAME.", ""]
    lines += ["Strategies that apply to each learner:", _applicability()]
    return "\n".join(lines)


def _applicability() -> str:
    """Table of the strategies and the families of learners that they apply to."""
    width = max(map(len, STRATEGIES)) + 2
    heads = [f"{family} ({', '.join(names)})" for family, names in FAMILIES.items()]
    lines = [" " * width + "  ".join(heads)]
    for name in STRATEGIES:
        cells = [
            f"{'yes' if family in applies_to(name) else '-':{len(head)}}"
            for family, head in zip(FAMILIES, heads, strict=True)
        ]
        lines.append(f"{name:{width}}" + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _check_config(argv: list[str]) -> list[str]:
    argv = _joined(argv)
    _check_fields(argv)
    return argv


def _joined(argv: list[str]) -> list[str]:
    """Rewrite `--config FILE` to `--config=FILE`."""
    joined: list[str] = []
    for arg in argv:
        if joined and joined[-1] in ("--config", "-config"):
            joined[-1] = f"--config={arg}"
        else:
            joined.append(arg)
    sys.argv = joined
    return joined


def _check_fields(argv: list[str]) -> None:
    """Raise `InputError` for a `--config.FIELD` that the config does not have."""
    files = [arg for arg in argv if arg.startswith("--config=")]
    if not files:
        return
    name = files[-1].removeprefix("--config=").partition(":")[0]
    path = pathlib.Path(name)
    if not path.is_file():
        fault = "is not a file" if name and path.exists() else "does not exist"
        raise InputError(
            f"config file {name!r} {fault}; available configs: "
            f"{', '.join(config_names())}, as experiments/configs/NAME.py"
        )
    # While it parses --config, ml_collections defines a flag for each --config.FIELD
    # that it finds in `sys.argv`. Hide these to get the config without overrides.
    everything, sys.argv = sys.argv, [argv[0], *files]
    try:
        flags.FLAGS([argv[0], *files])
        config: Any = flags.FLAGS["config"].value
    except flags.Error as error:
        raise _argument_error(path, error) from None
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # The file is a program.
        raise _config_error(path, error) from error
    finally:
        sys.argv = everything
        flags.FLAGS.unparse_flags()
    _check_result(path, config)
    for arg in argv:
        if arg.startswith("--config."):
            _check_field(config, arg.partition("=")[0].removeprefix("--config."))


def _check_result(path: pathlib.Path, config: Any) -> None:
    """Raise `InputError` if `get_config` returns something else than a config.

    The options of each backbone, learner and strategy may be missing.
    """
    if not isinstance(config, ConfigDict):
        # ml_collections keeps an `OSError` of the file until the config is used.
        error = getattr(config, "__dict__", {}).get("_error")
        if isinstance(error, OSError):
            raise _config_error(path, error) from error
        raise InputError(
            f"config file {path}: get_config returns {config!r:.80}; expected a "
            "ConfigDict, such as a changed mlti_jax.training.base_config()"
        )
    known = flat_fields(config)
    for field in flat_fields(base_config()):
        if field.count(".") < 2 and field not in known:
            raise InputError(
                f"config file {path}: the config has no field {field}; start with "
                "mlti_jax.training.base_config(), which has every field"
            )


def _argument_error(path: pathlib.Path, error: flags.Error) -> InputError:
    """Return the error for a `TypeError` or `ValueError` of `get_config`.

    ml_collections makes it a flag's error, whose text ends with the original one.
    """
    text = str(error).strip().splitlines()[-1]
    kind, _, message = text.partition(": ")
    if kind == f"{InputError.__module__}.{InputError.__name__}":
        return InputError(message)
    if message.startswith("get_config() takes 0 positional arguments"):
        return InputError(f"config file {path} takes no argument after the colon")
    return InputError(f"config file {path}: {text}; correct the file")


def _config_error(path: pathlib.Path, error: BaseException) -> InputError:
    """Return the error for a config file that fails, with the line where it does."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path.absolute()) or frame.filename.endswith(str(path))
    ]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    place = "" if line is None else f", line {line}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return InputError(
        f"config file {path}{place}: {type(error).__name__}: {text}; correct the file"
    )


def _check_field(config: Mapping[str, Any], name: str) -> None:
    section, prefix = config, "config"
    for part in name.split("."):
        known = sorted(section.keys()) if hasattr(section, "keys") else []
        if part not in known:
            raise InputError(
                f"unknown config field {name!r}; {prefix} has: "
                f"{', '.join(known) or 'no fields'}"
            )
        section, prefix = section[part], f"{prefix}.{part}"
    if isinstance(section, ConfigDict):
        raise InputError(
            f"config field {name!r} is a section; set one of its fields, such as "
            f"--config.{name}.{min(section, key=lambda field: field != 'name')}"
        )
