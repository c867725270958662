"""What all command-line tools share: one line for an error of the user, and help."""

from __future__ import annotations

import errno
import pathlib
import sys
from collections.abc import Callable

from absl import flags

from mlti_jax.errors import InputError, Interrupted

# Shared by several tools; one that has it declares it as a key flag.
DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Where prepared datasets live; else MLTI_DATA_DIR, else ~/.cache/mlti_jax.",
)


def run(
    main: Callable[[list[str]], None],
    module_docstring: str,
    check_arguments: Callable[[list[str]], list[str]] = list,
) -> int:
    """Parses the flags and runs `main`, telling errors of the user in one message.

    Args:
      main: is given the arguments that are no flags, the program's name first.
      module_docstring: what `--help` prints.
      check_arguments: looks at all arguments before they are parsed, and may refuse or
        change them.

    Returns:
      The exit code.
    """
    try:
        argv = _parse(sys.argv, module_docstring, check_arguments)
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


def absolute(text: str | None) -> pathlib.Path | None:
    """A path that was given, its `~` expanded; None for none."""
    return None if text is None else pathlib.Path(text).expanduser().absolute()


def output_folder(text: str | None) -> pathlib.Path:
    """The folder that `--output` names, made if need be."""
    if text is None:
        raise InputError("--output is missing, the folder to write to; see --help")
    folder = absolute(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--output={folder} is a file, not a directory") from None
    return folder


def write_output(text: str, path: pathlib.Path) -> None:
    """Writes the file that `--output` names."""
    try:
        path.write_text(text, encoding="utf-8")
    except IsADirectoryError:
        raise InputError(f"--output={path} is a directory, not a file") from None
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"--output={path}: there is no folder {path.parent}") from None


def _parse(
    argv: list[str],
    module_docstring: str,
    check_arguments: Callable[[list[str]], list[str]],
) -> list[str] | None:
    """The arguments that are no flags; None if help was asked for."""
    if any(arg.lstrip("-") in ("help", "h", "helpfull") for arg in argv[1:]):
        print(module_docstring)
        print(_flag_help())
        return None
    try:
        return flags.FLAGS(check_arguments(argv))
    except flags.UnrecognizedFlagError as error:
        raise InputError(f"unknown flag --{error.flagname}; see --help") from None
    except flags.Error as error:
        raise InputError(_last_line(error)) from None


def _flag_help() -> str:
    known = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    lines = [f"  --{flag.name}: {flag.help}" for flag in known]
    if "config" in flags.FLAGS:
        lines.append("  --config.FIELD=VALUE: sets a field of the config.")
    return "\n".join(["Flags:", *lines])


def _last_line(error: Exception) -> str:
    """What matters of an error that carries a traceback in its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if "Traceback" in str(error) else " ".join(lines)
    return text.removeprefix("mlti_jax.errors.InputError: ")
