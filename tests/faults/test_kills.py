"""Killed runs: at named points and at random times, the result stays bit for bit."""

import signal
import time

import numpy as np
import pytest

from tests.support import kill_at
from tests.support.runs_to_break import (
    CASES,
    SECONDS,
    finish,
    start,
    trace,
    write_data,
)

pytestmark = pytest.mark.slow
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
KILLS_PER_CASE = 8
LOOP, CHECKPOINTS = "mlti_jax.training._loop", "mlti_jax.training._checkpoints"
# Function, before or after a call of it, which call, signal.
POINTS = [
    (f"{LOOP}:open_workdir", "before", 1, "SIGKILL"),
    (f"{LOOP}:open_workdir", "after", 1, "SIGKILL"),
    ("mlti_jax._internal.storage:os.replace", "before", 1, "SIGKILL"),  # config.json
    (f"{CHECKPOINTS}:Checkpoints.save", "before", 1, "SIGKILL"),
    (f"{CHECKPOINTS}:Checkpoints.save", "after", 1, "SIGKILL"),
    (f"{CHECKPOINTS}:Checkpoints.save", "after", 9, "SIGKILL"),
    (f"{CHECKPOINTS}:Checkpoints.save", "after", 9, "SIGTERM"),
    (f"{CHECKPOINTS}:reserve", "after", 4, "SIGKILL"),
    (f"{CHECKPOINTS}:Checkpoints.wait", "before", 12, "SIGKILL"),
    (f"{LOOP}:_Run._validate", "before", 2, "SIGTERM"),
    (f"{LOOP}:_Run._validate", "after", 2, "SIGKILL"),
    (f"{LOOP}:_Run._log", "before", 7, "SIGKILL"),
    (f"{LOOP}:_Run._log", "after", 7, "SIGINT"),
    (f"{LOOP}:_Run._test", "before", 1, "SIGKILL"),
    (f"{LOOP}:_Run._test", "after", 1, "SIGKILL"),
    (f"{LOOP}:_Run._test", "before", 1, "SIGTERM"),
    (f"{LOOP}:write_json", "before", 1, "SIGKILL"),  # results.json
    (f"{LOOP}:write_json", "after", 1, "SIGTERM"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    write_data(folder)
    found = {}
    for name, case in CASES.items():
        finish(case.flags(folder, folder / name))
        found[name] = trace(folder / name)
    return folder, found


@pytest.mark.parametrize(
    ("point", "when", "call", "number"),
    POINTS,
    ids=[f"{p.partition(':')[2]}-{w}-{c}-{n}" for p, w, c, n in POINTS],
)
def test_a_run_killed_at_a_point_resumes(whole, tmp_path, point, when, call, number):
    folder, found = whole
    flags = CASES["protonet"].flags(folder, tmp_path / "run")
    program = (kill_at.__file__, point, when, str(call), number)
    process = start(flags, *program)
    _, said = process.communicate(timeout=SECONDS)
    stopped = signal.Signals[number]
    assert process.returncode in (-stopped, 128 + stopped), said
    assert "Traceback" not in said
    finish(flags)
    assert trace(tmp_path / "run") == found["protonet"]
    # One test point: a kill after the test must not double it.
    events = list((tmp_path / "run" / "tensorboard" / "test").glob("events*"))
    assert len(events) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_run_killed_at_random_times_resumes(whole, tmp_path, name):
    folder, found = whole
    rng = np.random.default_rng(sum(map(ord, name)))
    flags = CASES[name].flags(folder, tmp_path / "run")
    killed = 0
    for kill in range(KILLS_PER_CASE):
        number = signal.Signals[SIGNALS[kill % len(SIGNALS)]]
        process = start(flags)
        time.sleep(rng.uniform(0.3, 2.5))
        process.send_signal(number)  # does nothing if the run has finished
        _, said = process.communicate(timeout=SECONDS)
        assert "Traceback" not in said
        assert process.returncode in (0, -number, 128 + number), said
        killed += process.returncode != 0
    assert killed > 0
    finish(flags)
    assert trace(tmp_path / "run") == found[name]
