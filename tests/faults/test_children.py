"""Runs that another program has started end with it, saved, and can be resumed."""

import json
import time

import pytest

from mlti_jax._internal.locks import is_locked
from tests.support import table_driver
from tests.support.runs_to_break import start

pytestmark = pytest.mark.slow
SECONDS = 120


def wait_for(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_table_leaves_no_run_behind_and_the_next_start_waits(tmp_path):
    arguments = [str(tmp_path / "runs"), str(tmp_path / "results"), "1500"]
    work = tmp_path / "runs" / "rainbow_mnist" / "protonet-mlti-steps1500-seed0"
    saved = work / "checkpoints" / "last"
    table = start(arguments, table_driver.__file__)
    wait_for(lambda: saved.is_dir() and any(p.name.isdigit() for p in saved.iterdir()))
    table.kill()
    table.communicate()
    # At once: the run of the killed process is still there, and saves.
    again = start(arguments, table_driver.__file__)
    _, said = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, said
    assert "failed" not in said
    log = next((tmp_path / "runs" / "logs").rglob("*.txt")).read_text()
    assert "progress is saved, run the same command again" in log
    assert "resuming from step" in log
    (recorded,) = (tmp_path / "results").rglob("*.json")
    assert json.loads(recorded.read_text())["train_steps"] == 1500
    assert not is_locked(work)
