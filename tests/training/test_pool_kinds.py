"""Runs with samples on the device, in host memory, and in files: the same bits."""

import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

from mlti_jax import plotting
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.training import _batches as batches
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._experiment import checksum
from mlti_jax.training._loop import run_experiment
from tests.support.pool_kinds import make_pool, moved, small_config, splits

ROOT = pathlib.Path(__file__).parents[2]


def run(kind, workdir, *method, workers=0, **changes):
    folder = workdir / "records"
    folder.mkdir(parents=True, exist_ok=True)
    experiment = build(
        small_config(*method, **changes), splits=splits(kind, folder, workers)
    )
    result, variables = run_experiment(experiment, workdir / "run")
    lines = (workdir / "run" / "metrics.jsonl").read_text().splitlines()
    kept = [
        {k: v for k, v in json.loads(line).items() if k in WRITTEN} for line in lines
    ]
    return result, variables, kept


WRITTEN = ("step", "split", "loss", "accuracy", "ci95")


METHODS = ["maml,mlti", "sl,vanilla", "protonet,mlti+views"]


@pytest.mark.slow
def test_results_are_the_same_bit_for_bit():
    """In a process of its own, since the tests' options of XLA round differently."""
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.pool_kinds_bits", *METHODS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=450,
    )
    assert found.stdout.splitlines() == [
        f"{method} {kind} result True variables True"
        for method in METHODS
        for kind in ("host", "stream")
    ], found.stderr[-2000:]


@pytest.mark.slow
def test_losses_of_all_steps(tmp_path):
    expected = run("device", tmp_path / "device", "protonet", "mlti")
    for kind in ("host", "stream"):
        result, _, metrics = run(kind, tmp_path / kind, "protonet", "mlti")
        assert result["per_task"] == pytest.approx(expected[0]["per_task"], abs=1e-5)
        assert [line["step"] for line in metrics] == [5, 10, 10, 15, 20, 20, 20]
        for line, other in zip(metrics, expected[2], strict=True):
            assert line.pop("split") == other["split"]
            for name, value in line.items():
                assert value == pytest.approx(other[name], rel=1e-4), name


@pytest.mark.slow
def test_resuming_in_the_middle_of_a_stream(tmp_path, monkeypatch):
    """Stopped at step 13, which is no boundary of anything, with two processes."""
    (tmp_path / "whole").mkdir()
    expected = run("stream", tmp_path / "whole")
    run_steps = batches.HostBatches.run

    def interrupted(self, state, stop):
        found = run_steps(self, state, min(stop, 13) if self._step < 13 else stop)
        if self._step == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(batches.HostBatches, "run", interrupted)
    monkeypatch.setattr("mlti_jax.training._loop._Run._next_stop", _one_more)
    with pytest.raises(Interrupted, match="stopped at step 13"):
        run("stream", tmp_path / "stream", workers=2)
    assert not multiprocessing.active_children()
    monkeypatch.undo()
    result, variables, _ = run("stream", tmp_path / "stream")
    assert result == expected[0]
    chex.assert_trees_all_equal(variables, expected[1])


def _one_more(self, step, steps_per_call):
    return step + 1


@pytest.mark.slow
def test_a_record_that_cannot_be_read_during_a_run(tmp_path):
    found = splits("stream", tmp_path)
    source, reads = found.train.x.source, []

    class Fails:
        def __getitems__(self, keys):
            reads.append(keys)
            if len(reads) > 30:  # of 2 per step
                raise OSError("no such device")
            return source.__getitems__(keys)

    found.train.x.source = Fails()
    experiment = build(small_config(), splits=found)
    message = "cannot read the tasks of a training step: damaged: OSError: no such dev"
    with pytest.raises(InputError, match=message):
        train_and_evaluate(experiment, tmp_path / "run")


def test_a_stream_is_identified_without_reading_it(tmp_path):
    """Its checksum depends on which records are used, and on their version."""
    pool = moved(make_pool("non_label_sharing"), "stream", tmp_path)
    (tmp_path / "x.array_record").unlink()
    first = checksum(pool)
    pool.x.version = b"another"
    assert checksum(pool) != first
    pool.x.version = b""
    assert checksum(pool) == first
    pool.x.rows = pool.x.rows[::-1]
    assert checksum(pool) != first


def test_arrays_in_host_memory_have_the_checksum_of_the_device(tmp_path):
    pool = make_pool("label_sharing")
    assert checksum(moved(pool, "host", tmp_path)) == checksum(pool)


@pytest.mark.parametrize("kind", ["host", "stream"])
def test_the_first_task_and_state_are_those_of_the_device(kind, tmp_path):
    ours = build(small_config(), splits=splits(kind, tmp_path))
    device = build(small_config(), splits=splits("device", tmp_path))
    chex.assert_trees_all_equal(ours.sample_task(), device.sample_task())
    chex.assert_trees_all_equal(ours.init_state(), device.init_state())


@pytest.mark.slow
def test_interpolated_tasks_of_a_stream(tmp_path):
    figures = [
        plotting.interpolated_tasks(
            build(small_config(), splits=splits(kind, tmp_path)), rows=2
        )
        for kind in ("device", "stream")
    ]
    shown = [[ax.images[0].get_array() for ax in fig.axes] for fig in figures]
    assert len(shown[0]) == 4
    jax.tree.map(np.testing.assert_array_equal, *shown)
