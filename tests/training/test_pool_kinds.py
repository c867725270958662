"""Runs with samples on the device, in host memory, and in files: the same bits."""

import json
import multiprocessing
import os
import signal

import chex
import jax
import numpy as np
import pytest

from experiments.configs import mini_imagenet
from mlti_jax import plotting
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.training import _batches as batches
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._experiment import checksum
from mlti_jax.training._loop import run_experiment
from tests.support.pool_kinds import make_pool, moved, splits


def small_config(learner="protonet", strategy="mlti", **changes):
    config = mini_imagenet.get_config(f"learner={learner},strategy={strategy}")
    config.task.update({"ways": 3, "shots": 2, "queries": 3})
    config.backbone.conv4.update({"filters": 4, "blocks": 2})
    config.train.update({"steps": 20, "log_every": 5, "checkpoint_every": 10})
    config.eval.update({"every": 10, "num_tasks": 10, "validation_tasks": 5})
    config.eval.update({"queries": 3, "tasks_per_pass": 4})
    config.update_from_flattened_dict(changes)
    return config


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ("protonet", "mlti"),
        ("maml", "mlti"),
        ("sl", "vanilla"),
        ("protonet", "vanilla"),
    ],
)
def test_results_are_the_same_bit_for_bit(method, tmp_path):
    expected = run("device", tmp_path / "device", *method)
    assert [line["step"] for line in expected[2] if line["split"] == "train"] == [
        5,
        10,
        15,
        20,
    ]
    for kind in ("host", "stream"):
        result, variables, metrics = run(kind, tmp_path / kind, *method)
        assert result == expected[0]
        assert metrics == expected[2]
        chex.assert_trees_all_equal(variables, expected[1])


@pytest.mark.slow
def test_resuming_in_the_middle_of_a_stream(tmp_path, monkeypatch):
    """Stopped at step 13, which is no boundary of anything, with two processes."""
    expected = run("device", tmp_path / "device")
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
