"""Closed pipes, full disks, Ctrl-C and limits: whole processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.support.cli import ROOT
from tests.support.hostile import (
    filled,
    prediction,
    run_args,
)

# --------------------------------------------------------------------------- processes


def start(module, *args, before=(), python=(), **options):
    command = [*before, sys.executable, *python, "-m", module, *args]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("experiments.run", ["--list"]),
        ("experiments.run", ["--help"]),
        ("experiments.tables", ["--all"]),
    ],
    ids=["run-list", "run-help", "tables-all"],
)
def test_output_that_nobody_reads(module, args):
    """As in `python -m experiments.run --list | head -0`."""
    pipe = subprocess.PIPE
    process = start(module, *args, stdout=pipe, stderr=pipe)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(60) in (0, 128 + signal.SIGPIPE)
    assert error == ""


@pytest.mark.slow
def test_output_on_a_full_disk():
    with open("/dev/full", "w") as full:
        process = start(
            "experiments.run", "--list", stdout=full, stderr=subprocess.PIPE
        )
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert re.fullmatch("error: No space left on device.*\n", error), error


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["numpy", "jax._src.core", "flax.core", "mlti_jax.training"]
)
def test_interrupt_during_imports(module):
    """Ctrl-C right after the import of a module."""
    process = start(
        "experiments.run", python=("-X", "importtime"), stderr=subprocess.PIPE
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.split("|")[-1].strip() == module:
            process.send_signal(signal.SIGINT)
            break
    lines += process.stderr.read().splitlines(keepends=True)
    assert process.wait(60) == 128 + signal.SIGINT
    said = [line for line in lines if not line.startswith("import time:")]
    assert said == ["interrupted\n"]


@pytest.mark.slow
def test_limit_of_file_sizes(shared, tmp_path):
    """`ulimit -f`: one error, and a message that names the limit."""
    process = start(
        "experiments.run",
        *filled(run_args(), tmp_path, shared),
        before=("sh", "-c", 'ulimit -f 2; exec "$@"', "sh"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    printed, error = process.communicate(timeout=100)
    assert process.returncode == 2, error
    assert printed == ""
    assert "Traceback" not in error
    assert "File too large" in error
    assert "ulimit -f" in error


@pytest.mark.slow
def test_predictions_are_not_written_to_a_pipe(model, shared, tmp_path):
    row = prediction("", "", output="/dev/stdout", model=str(model))
    process = start(
        "experiments.predict",
        *filled(row.args, tmp_path, shared),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, error = process.communicate(timeout=60)
    assert (process.returncode, printed) == (2, "")
    assert "--output=/dev/stdout is a device or another special file" in error
