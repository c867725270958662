"""Many runs that start in one work directory at once: one runs, the others are told."""

import json
import subprocess
import sys

import pytest

from tests.support import many_starts
from tests.support.runs_to_break import CASES, ROOT, start, trace, write_data

STARTS, ROUNDS = 40, 6


@pytest.mark.slow
def test_one_of_many_starts_runs_and_the_others_are_refused(tmp_path):
    entered = refused = 0
    for number in range(ROUNDS):
        workdir = tmp_path / str(number)
        done = subprocess.run(
            [sys.executable, many_starts.__file__, str(workdir), str(STARTS)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        outcomes = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(outcomes) == STARTS, done.stderr
        assert [o["crash"] for o in outcomes if "crash" in o] == []
        inside = sorted((o["entered"], o["left"], o) for o in outcomes if "left" in o)
        # One at a time, and all of them beside their own config.
        for (_, left, _), (entered_next, _, _) in zip(inside, inside[1:], strict=False):
            assert left <= entered_next
        assert {o["config"] == o["seed"] for *_, o in inside} == {True}
        assert len({o["seed"] for *_, o in inside}) == 1
        for outcome in outcomes:
            if "left" not in outcome:
                expected = ("another process is using", "run of a different config")
                assert any(text in outcome["refused"] for text in expected)
        names = sorted(path.name for path in workdir.iterdir())
        assert names == [".lock", "config.json", "state.json"]
        entered, refused = entered + len(inside), refused + STARTS - len(inside)
    assert entered >= ROUNDS
    assert refused > 0


@pytest.mark.slow
def test_commands_that_start_at_once(tmp_path):
    write_data(tmp_path)
    flags = CASES["protonet"].flags(tmp_path, tmp_path / "run")
    processes = [start(flags) for _ in range(4)]
    outputs = [process.communicate(timeout=120) for process in processes]
    codes = [process.returncode for process in processes]
    assert set(codes) <= {0, 2}
    assert 0 in codes
    for code, (_, said) in zip(codes, outputs, strict=True):
        assert "Traceback" not in said
        assert code == 0 or "another process is using" in said
    alone = start(CASES["protonet"].flags(tmp_path, tmp_path / "alone"))
    alone.communicate(timeout=120)
    assert trace(tmp_path / "run") == trace(tmp_path / "alone")
