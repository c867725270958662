"""What the tables of hostile inputs share: valid data, a finished run, a saved model.

A row of a table is a command or a call with an input that a careless or hostile user
may give, and the message that must refuse it. Commands must exit with code 2 and print
one `error:`, no traceback and no result; calls must raise `InputError`. No file may
change.
"""

from __future__ import annotations

import numpy as np
import pytest

from experiments import run
from mlti_jax import data
from tests.support.hostile import (
    call_in_process,
    caller,
    check_refused,
    filled,
    fit_small,
    run_args,
    table_text,
    task_arrays,
)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder of valid data: arrays, a table, and files of a new task."""
    folder = tmp_path_factory.mktemp("shared")
    np.savez(folder / "tasks.npz", **task_arrays())
    (folder / "tasks.csv").write_text(table_text())
    (folder / "support.csv").write_text(table_text(tasks=1))
    (folder / "query.csv").write_text(table_text(tasks=1, per_class=2))
    return folder


@pytest.fixture(scope="session")
def finished(shared, tmp_path_factory):
    """The work directory of a finished run of the arrays in `shared`."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        args = filled(run_args(), folder, shared)
        done = call_in_process(run, args, monkeypatch)
    assert done == 0
    return folder / "work"


@pytest.fixture(scope="session")
def model(shared, tmp_path_factory):
    """The directory of a learner that was trained on the table in `shared`."""
    folder = tmp_path_factory.mktemp("model") / "model"
    splits = data.from_table(shared / "tasks.csv", label="label", task="task")
    fit_small(splits).save(folder)
    return folder


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """A function that calls the command of a module in the folder of the row."""
    return lambda module: caller(module, monkeypatch, capsys, tmp_path)


@pytest.fixture
def refuse(call, shared, tmp_path):
    """A function that checks a row of a command."""

    def check(module, row):
        row.prepare(tmp_path)
        args = filled(row.args, tmp_path, shared)
        check_refused(call(module), args, row.message, tmp_path)

    return check
