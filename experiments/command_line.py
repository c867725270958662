"""What the command-line tools share: one line for an error, and the listing."""

from __future__ import annotations

import errno
import pathlib
import sys
from collections.abc import Callable

from absl import flags

from experiments.config import config_names
from mlti_jax.backbones import BACKBONES
from mlti_jax.data import DATASETS
from mlti_jax.errors import InputError
from mlti_jax.learners import LEARNERS
from mlti_jax.strategies import STRATEGIES
from mlti_jax.training import Interrupted


def run(main: Callable[[list[str]], None], module_docstring: str) -> int:
    """Parses the flags and runs `main`, telling errors of the user in one message.

    `main` is given the arguments that are no flags, the program's name first.

    Returns:
      The exit code.
    """
    try:
        argv = _parse(sys.argv, module_docstring)
        if argv is not None:
            main(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(str(stop), file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"error: {error.strerror}{where}; what was saved before is kept. Make "
            "room or choose another directory, and run the same command again",
            file=sys.stderr,
        )
        return 2
    return 0


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
    lines += ["", "Strategies are combined with +, as in strategy=NAME+NAME."]
    return "\n".join(lines)


def _parse(argv: list[str], module_docstring: str) -> list[str] | None:
    """The arguments that are no flags; None if help was asked for."""
    if any(arg.lstrip("-") in ("help", "h", "helpfull") for arg in argv[1:]):
        print(module_docstring)
        print(_flag_help())
        return None
    try:
        argv = _joined(argv)
        _check_fields(argv)
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        raise InputError(f"unknown flag --{error.flagname}; see --help") from None
    except flags.Error as error:
        raise InputError(_last_line(error)) from None


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


def _flag_help() -> str:
    known = flags.FLAGS.get_flags_for_module(sys.argv[0])
    lines = [f"  --{flag.name}: {flag.help}" for flag in known]
    if "config" in flags.FLAGS:
        lines.append("  --config.FIELD=VALUE: sets a field of the config.")
    return "\n".join(["Flags:", *lines])


def _last_line(error: Exception) -> str:
    """What matters of an error that carries a traceback in its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if "Traceback" in str(error) else " ".join(lines)
    return text.removeprefix("mlti_jax.errors.InputError: ")
