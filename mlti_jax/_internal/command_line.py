"""Shared by all command-line tools: parsing, errors, `--help`, input and output paths.

Tools with a `--config` use `experiments.cli` on top of this.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pathlib
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import overload

from absl import flags

from mlti_jax._internal.storage import check_target, make_folder, write_text
from mlti_jax.errors import InputError, Interrupted

_SIGPIPE = 13

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
    _make_printable()
    threading.excepthook, sys.unraisablehook = _report_thread, _report_callback
    try:
        if _is_help(sys.argv):
            print(module_docstring)
            print(_flag_help())
            return 0
        arguments = _parse(sys.argv, preprocess)
        _check_positional(arguments, positional)
        main(*arguments)
        sys.stdout.flush()  # here, where a closed pipe is handled
    except Interrupted as stop:
        print(str(stop), file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return _close_output()
    except Exception as error:
        message = describe(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2
    return 0


def describe(error: Exception) -> str | None:
    """Describe what a user or the machine causes; None for a fault of the program."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        return describe_os_error(error)
    # XLA raises a RuntimeError with this text if an allocation fails.
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        text = " ".join(str(error).split())
        reason = f" ({text[:200]})" if text else ""
        return (
            f"out of memory{reason}; use smaller tasks, a smaller network or a machine "
            "with more memory"
        )
    return None


_ADVICE = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "what was saved before is intact; free some space or choose another "
        "directory, and run the same command again",
    ),
    errno.EFBIG: "what was saved before is intact; raise the limit (ulimit -f) and run "
    "the same command again",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "change its permissions or choose another path",
    ),
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOENT: "it does not exist, or was removed while it was used; check the "
    "path, and run the same command again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def describe_os_error(error: OSError) -> str:
    """Describe an error of the operating system in one line: what, where, advice."""
    where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk")
    return f"{error.strerror or error}{where}; {advice}"


def _make_printable() -> None:
    """Print what a terminal cannot show, such as odd file names, with escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# Orbax raises what failed in its threads, such as a full disk, where it is waited for.
# So their own tracebacks, several for one failure, say nothing new.


def _report_thread(args: threading.ExceptHookArgs) -> None:
    """Print an exception of a thread, unless it is one of Orbax's."""
    frames = traceback.extract_tb(args.exc_traceback)
    if not any(f"{os.sep}orbax{os.sep}" in frame.filename for frame in frames):
        threading.__excepthook__(args)


def _report_callback(args: sys.UnraisableHookArgs) -> None:
    """Print an exception of a callback, unless Orbax has stopped waiting for it."""
    if str(args.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(args)


def _close_output() -> int:
    """End quietly if the reader of the output has gone, as in `... | head`."""
    # Otherwise Python would try to flush the output once more at exit.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + _SIGPIPE


@overload
def absolute(path: str) -> pathlib.Path: ...


@overload
def absolute(path: str | None) -> pathlib.Path | None: ...


def absolute(path: str | None) -> pathlib.Path | None:
    """Return the absolute path with `~` expanded; None for None."""
    return None if path is None else pathlib.Path(path).expanduser().absolute()


def output_folder(path: str | None) -> pathlib.Path:
    """Return the folder given with `--output`, after creating it if needed."""
    if not path:
        raise InputError("--output is missing, the folder to write to; see --help")
    folder = absolute(path)
    make_folder(folder, f"--output={folder}")
    return folder


def write_output(text: str, path: pathlib.Path) -> None:
    """Write the file given with `--output`, completely or not at all."""
    check_output(path)
    write_text(path, text)


def check_output(path: pathlib.Path) -> None:
    """Raise `InputError` if `--output` cannot be a file; call it before long work."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"--output={path}: the folder {path.parent} does not exist")
    try:
        check_target(path)
    except InputError as error:
        raise InputError(f"--output={error}") from None


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
