"""The table of the time until the first step."""

import pytest

from experiments.benchmark import startup

CASE = "rainbow_mnist builtin protonet"


def test_unprepared_datasets_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("MLTI_DATA_DIR", str(tmp_path))
    assert all("builtin" in case for case in startup.available())
    (tmp_path / "pose").mkdir()
    assert "pose maml" in startup.available()


def test_rows_are_medians(monkeypatch):
    runs = iter([9.0, 1.0, 5.0, 2.0, 7.0, 3.0])  # cold and warm in turn

    def run_once(case, cache):
        return {**dict.fromkeys(startup.PARTS, next(runs)), startup.CPU: 4.0}

    monkeypatch.setattr(startup, "available", lambda: [CASE])
    monkeypatch.setattr(startup, "run_once", run_once)
    result = startup.measure(rounds=3, seconds=100.0)
    cold, warm = result["rows"]
    assert (cold["cache"], cold["XLA"], cold["total_s"]) == ("cold", 7.0, 42.0)
    assert (warm["cache"], warm["XLA"], warm["total_s"]) == ("warm", 2.0, 12.0)
    assert f"{CASE}, warm" in startup.table(result)


@pytest.mark.slow  # two runs in new processes
def test_the_second_run_reads_programs_from_the_cache(tmp_path):
    cold, warm = (startup.run_once(CASE, str(tmp_path)) for _ in range(2))
    assert set(cold) == {*startup.PARTS, startup.CPU}
    assert all(cold[part] > 0 for part in cold)
    assert warm["XLA"] < cold["XLA"] / 2


def test_failures_are_shown(monkeypatch, tmp_path):
    wrong = ("rainbow_mnist", "maml", ("--config.no_such_field=1",))
    monkeypatch.setitem(startup.CASES, "wrong", wrong)
    with pytest.raises(RuntimeError, match="no_such_field"):
        startup.run_once("wrong", str(tmp_path))
