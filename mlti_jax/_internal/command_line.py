"""Shared by all command-line tools: parsing, errors, `--help`, input and output paths.

Tools with a `--config` use `experiments.cli` on top of this.
"""

from __future__ import annotations

import errno
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import overload

from absl import flags

from mlti_jax.errors import InputError, Interrupted

# Shared by several tools; a tool that uses it calls `declare_key_flag("data_dir")`.
DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of prepared datasets; default MLTI_DATA_DIR, else ~/.cache/mlti_jax.",
)


def run(
    main: Callable[..., None],
    module_docstring: str | None,
    positional: Sequence[str] = (),
    preprocess: Callable[[list[str]], list[str]] = list,
) -> int:
    """Parse the flags, call `main`, and print user errors as a single message.

    Args:
      main: the tool; called with its positional arguments.
      module_docstring: the text that `--help` prints before the flags.
      positional: names of the positional arguments; all of them are required.
      preprocess: checks or rewrites the arguments before they are parsed.

    Returns:
      The exit code: 0, 2 for an error of the user, 128 + signal if interrupted.
    """
    try:
        if _is_help(sys.argv):
            print(module_docstring)
            print(_flag_help())
            return 0
        arguments = _parse(sys.argv, preprocess)
        _check_positional(arguments, positional)
        main(*arguments)
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
            f"error: {error.strerror}{where}; previously saved files are intact. Free "
            "some space or choose another directory, and run the same command again",
            file=sys.stderr,
        )
        return 2
    return 0


@overload
def absolute(path: str) -> pathlib.Path: ...


@overload
def absolute(path: str | None) -> pathlib.Path | None: ...


def absolute(path: str | None) -> pathlib.Path | None:
    """Return the absolute path with `~` expanded; None for None."""
    return None if path is None else pathlib.Path(path).expanduser().absolute()


def output_folder(path: str | None) -> pathlib.Path:
    """Return the folder given with `--output`, after creating it if needed."""
    if path is None:
        raise InputError("--output is missing, the folder to write to; see --help")
    folder = absolute(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--output={folder} is a file, not a directory") from None
    return folder


def write_output(text: str, path: pathlib.Path) -> None:
    """Write the file given with `--output`."""
    try:
        path.write_text(text, encoding="utf-8")
    except IsADirectoryError:
        raise InputError(f"--output={path} is a directory, not a file") from None
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"--output={path}: the folder {path.parent} does not exist"
        ) from None


def _is_help(argv: list[str]) -> bool:
    return any(arg.lstrip("-") in ("help", "h", "helpfull") for arg in argv[1:])


def _parse(argv: list[str], preprocess: Callable[[list[str]], list[str]]) -> list[str]:
    """Parse the flags. Returns the positional arguments."""
    try:
        return flags.FLAGS(preprocess(argv))[1:]
    except flags.UnrecognizedFlagError as error:
        raise InputError(f"unknown flag --{error.flagname}; see --help") from None
    except flags.Error as error:
        raise InputError(_last_line(error)) from None


def _check_positional(arguments: Sequence[str], names: Sequence[str]) -> None:
    if len(arguments) > len(names):
        raise InputError(f"unexpected argument {arguments[len(names)]!r}; see --help")
    if len(arguments) < len(names):
        raise InputError(f"missing argument {names[len(arguments)]}; see --help")


def _flag_help() -> str:
    known = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    lines = [f"  --{flag.name}: {flag.help}" for flag in known]
    if "config" in flags.FLAGS:
        lines.append("  --config.FIELD=VALUE: Override a field of the config.")
    return "\n".join(["Flags:", *lines])


def _last_line(error: Exception) -> str:
    """Extract the message of an error whose text contains a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if "Traceback" in str(error) else " ".join(lines)
    return text.removeprefix("mlti_jax.errors.InputError: ")
