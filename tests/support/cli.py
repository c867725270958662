"""Call the command-line tools inside the test process."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from absl import flags

from experiments import cli, run

ROOT = pathlib.Path(__file__).parents[2]

# Returns the exit code and what was printed (`.out`, `.err`).
Call = Callable[..., tuple[int, Any]]


def reset_flags() -> None:
    """Unset all flags and remove those of config fields, as in a new process."""
    flags.FLAGS.unparse_flags()
    for name in list(flags.FLAGS):
        if name.startswith("config."):
            delattr(flags.FLAGS, name)
        else:
            flags.FLAGS[name].unparse()


def command(
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    defaults: tuple[str, ...] = (),
) -> Call:
    """Return a function that calls the command of a module with given arguments.

    Args:
      module: has the function `main` and a docstring.
      monkeypatch, capsys: fixtures of the test.
      defaults: arguments of all calls, before those of a call.
    """

    def call(*args: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", [module.__name__, *defaults, *args])
        reset_flags()
        code = cli.run(module.main, module.__doc__)
        return code, capsys.readouterr()

    return call


def run_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
) -> Call:
    """Return a function that calls `experiments.run`, from the project's root."""
    monkeypatch.chdir(ROOT)
    defaults = (f"--data_dir={tmp_path}",)
    call = command(run, monkeypatch, capsys, defaults)
    work = tmp_path / "work"
    return lambda *args, workdir=work: call(f"--workdir={workdir}", *args)
