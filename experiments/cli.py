"""What the tools with a `--config` share: checks of its fields, and the listing."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable

import jax
from absl import flags

from experiments.config import config_names
from mlti_jax._internal import command_line
from mlti_jax.backbones import BACKBONES
from mlti_jax.data import DATASETS
from mlti_jax.errors import InputError
from mlti_jax.learners import LEARNERS
from mlti_jax.strategies import STRATEGIES
from mlti_jax.strategies import _applicability as applicability


def run(main: Callable[[list[str]], None], module_docstring: str) -> int:
    """Runs a tool that has a `--config`; see `mlti_jax._internal.command_line.run`."""
    return command_line.run(main, module_docstring, check_arguments=_check_config)


def keep_compiled(choice: str, workdir: str) -> None:
    """Lets JAX keep compiled programs on disk, so that the next start is quick.

    Args:
      choice: `beside` the work directory, `off`, or a path. A directory that is set
        for JAX already (`JAX_COMPILATION_CACHE_DIR`) is left as it is.
      workdir: the run's work directory.
    """
    if choice == "off" or jax.config.jax_compilation_cache_dir:
        return
    beside = pathlib.Path(workdir).absolute().parent / "compilation_cache"
    path = beside if choice == "beside" else pathlib.Path(choice)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def listing() -> str:
    """What can be chosen, one family a line."""
    families = {
        "learners": LEARNERS,
        "strategies": STRATEGIES,
        "backbones": BACKBONES,
        "datasets": DATASETS,
        "configs": config_names(),
    }
    lines = [
        f"{family + ':':12} {' '.join(names)}" for family, names in families.items()
    ]
    lines += ["", "Strategies are combined with +, as in strategy=NAME+NAME.", ""]
    lines += ["Which strategies apply to which learners:", applicability.table()]
    return "\n".join(lines)


def _check_config(argv: list[str]) -> list[str]:
    argv = _joined(argv)
    _check_fields(argv)
    return argv


def _joined(argv: list[str]) -> list[str]:
    """`--config FILE` as `--config=FILE`."""
    joined = []
    for arg in argv:
        if joined and joined[-1] in ("--config", "-config"):
            joined[-1] = f"--config={arg}"
        else:
            joined.append(arg)
    sys.argv = joined
    return joined


def _check_fields(argv: list[str]) -> None:
    """Refuses a `--config.FIELD` that the config does not have."""
    files = [arg for arg in argv if arg.startswith("--config=")]
    if not files:
        return
    path = pathlib.Path(files[-1].removeprefix("--config=").partition(":")[0])
    if not path.is_file():
        raise InputError(
            f"there is no config file {path}; configs here: "
            f"{', '.join(config_names())}, as experiments/configs/NAME.py"
        )
    # The flags of single fields are made while the file's flag is parsed, from what
    # stands in `sys.argv`; without them the plain config comes out.
    everything, sys.argv = sys.argv, [argv[0], *files]
    try:
        flags.FLAGS([argv[0], *files])
        config = flags.FLAGS["config"].value
    finally:
        sys.argv = everything
        flags.FLAGS.unparse_flags()
    for arg in argv:
        if arg.startswith("--config."):
            _check_field(config, arg.partition("=")[0].removeprefix("--config."))


def _check_field(config, name: str) -> None:
    section, place = config, "config"
    for part in name.split("."):
        known = sorted(section.keys()) if hasattr(section, "keys") else []
        if part not in known:
            raise InputError(
                f"unknown config field {name!r}; {place} has: "
                f"{', '.join(known) or 'no fields'}"
            )
        section, place = section[part], f"{place}.{part}"
