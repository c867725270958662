"""Full runs: their files, resuming bit for bit, and learning."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.configs import rainbow_mnist
from mlti_jax._internal.locks import locked
from mlti_jax._internal.storage import write_json
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.training import (
    Evaluator,
    build,
    paired_difference,
    train_and_evaluate,
)
from mlti_jax.training import _loop as loop
from mlti_jax.training import _metrics as metrics
from mlti_jax.training._checkpoints import Checkpoints
from mlti_jax.training._workdir import read_result

ROOT = pathlib.Path(__file__).parents[2]
# Fields of results.json that other tools read.
CONTRACT = [
    "dataset",
    "split",
    "learner",
    "strategy",
    "backbone",
    "ways",
    "shots",
    "train_classes",
    "seed",
    "step",
    "checkpoint",
    "metric",
    "mean",
    "ci95",
    "num_tasks",
    "per_task",
    "norm_policy",
]


def small_config(**changes):
    config = rainbow_mnist.get_config("learner=protonet,strategy=mlti")
    config.dataset.source = "builtin"
    config.backbone.conv4.filters = 4
    config.train.update({"steps": 30, "log_every": 10, "checkpoint_every": 10})
    config.eval.update({"every": 15, "validation_tasks": 8, "num_tasks": 12})
    config.update_from_flattened_dict(changes)
    return config


@pytest.mark.slow
def test_files_of_a_run_and_skipping_a_finished_one(tmp_path, capsys):
    result = train_and_evaluate(build(small_config()), tmp_path)
    saved = json.loads((tmp_path / "results.json").read_text())
    text = json.dumps(result, sort_keys=True, separators=(",", ":"))
    assert saved.pop("sha256") == hashlib.sha256(text.encode()).hexdigest()
    assert saved == result
    for name in CONTRACT:
        assert name in saved, name
    assert saved["num_tasks"] == len(saved["per_task"]) == 12
    np.testing.assert_allclose(saved["mean"], np.mean(saved["per_task"]), atol=1e-5)
    assert saved["train_classes"] == 16
    assert saved["step"] in (15, 30)
    lines = metrics.read(tmp_path / "metrics.jsonl")
    assert [x["step"] for x in lines if x["split"] == "train"] == [10, 20, 30]
    assert [x["step"] for x in lines if x["split"] == "validation"] == [15, 30]
    best = max(
        (x for x in lines if x["split"] == "validation"),
        key=lambda x: (x["accuracy"], -x["step"]),
    )
    assert saved["step"] == best["step"]
    assert json.loads((tmp_path / "config.json").read_text())["train"]["steps"] == 30
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "best",
        "last",
        "layout.json",
    ]
    assert train_and_evaluate(build(small_config()), tmp_path) == saved
    assert "finished run" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"seed: 0 -> 5"):
        train_and_evaluate(build(small_config(seed=5)), tmp_path)


@pytest.mark.slow
def test_not_finite_keeps_the_last_good_checkpoint(tmp_path):
    experiment = build(small_config())
    # A finite step for 25 steps, and one that is not from then on.
    schedule = optax.join_schedules(
        [optax.constant_schedule(1e-3), optax.constant_schedule(jnp.inf)], [25]
    )
    experiment = dataclasses.replace(experiment, optimiser=optax.adam(schedule))
    message = "not finite at step 2[67]; the checkpoint of step 20 is kept"
    with pytest.raises(InputError, match=message):
        train_and_evaluate(experiment, tmp_path)
    assert not (tmp_path / "results.json").exists()
    saved = Checkpoints(tmp_path / "checkpoints" / "last", 3)
    step, state = saved.restore(experiment.init_state())
    saved.close()
    assert step == 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.variables))


@pytest.mark.slow
def test_different_data_with_the_same_config_raises(tmp_path):
    train_and_evaluate(build(small_config(**{"train.steps": 10})), tmp_path)
    experiment = build(small_config(**{"train.steps": 10}))
    pool = experiment.splits.train
    changed = dataclasses.replace(
        experiment.splits, train=pool.replace(x=pool.x.at[0].set(7))
    )
    other = dataclasses.replace(experiment, splits=changed)
    with pytest.raises(InputError, match="data.checksums.train"):
        train_and_evaluate(other, tmp_path)


@pytest.mark.slow
def test_a_run_stopped_during_validation_gives_the_same_result(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_and_evaluate(build(small_config()), whole)
    evaluate = Evaluator.__call__

    def interrupted(self, *args):
        monkeypatch.setattr(Evaluator, "__call__", evaluate)
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *args)

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    with pytest.raises(Interrupted, match="stopped at step 15"):
        train_and_evaluate(build(small_config()), broken)
    train_and_evaluate(build(small_config()), broken)
    results = [json.loads((d / "results.json").read_text()) for d in (whole, broken)]
    assert results[0] == results[1]
    chex.assert_trees_all_equal(last_state(whole), last_state(broken))


def test_two_processes_do_not_share_a_work_directory(tmp_path):
    with (
        locked(tmp_path, "--workdir"),
        pytest.raises(InputError, match="another process"),
        locked(tmp_path, "--workdir"),
    ):
        pass


@pytest.mark.slow
def test_a_run_that_another_process_finishes_meanwhile_is_shown(
    tmp_path, monkeypatch, capsys
):
    experiment = build(small_config(**{"train.steps": 10}))

    @contextlib.contextmanager
    def finished_by_another(folder, flag):
        monkeypatch.undo()
        train_and_evaluate(experiment, tmp_path)
        with locked(folder, flag) as check:
            yield check

    monkeypatch.setattr(loop, "locked", finished_by_another)
    result = train_and_evaluate(experiment, tmp_path)
    assert result == read_result(tmp_path)
    assert "holds a finished run" in capsys.readouterr().err


def run_by_command(workdir, **changes):
    """Start a run of `small_config` as a command."""
    small = {
        "dataset.source": "builtin",
        "backbone.conv4.filters": 4,
        "train.log_every": 10,
        "train.checkpoint_every": 10,
        "eval.validation_tasks": 8,
        "eval.num_tasks": 12,
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.run", f"--workdir={workdir}"),
            "--config=experiments/configs/rainbow_mnist.py:"
            "learner=protonet,strategy=mlti",
            *(
                f"--config.{name}={value}"
                for name, value in {**small, **changes}.items()
            ),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def send_at_a_random_moment(process, workdir, number):
    """Wait until training proceeds, and then for a random time."""
    lines = workdir / "metrics.jsonl"
    saved = workdir / "checkpoints" / "last"
    before = lines.stat().st_size if lines.exists() else 0
    deadline = time.time() + 300
    while process.poll() is None and time.time() < deadline:
        # The first checkpoint is complete some time after its line is written, and
        # until then nothing can be resumed. Incomplete ones are not numbers.
        complete = saved.exists() and any(p.name.isdigit() for p in saved.iterdir())
        if complete and lines.exists() and lines.stat().st_size > before:
            break
        time.sleep(0.02)
    time.sleep(np.random.default_rng().uniform(0, 1))
    assert process.poll() is None, "the run ended before it could be interrupted"
    os.kill(process.pid, number)
    return process.communicate()[1]


def last_state(workdir):
    saved = Checkpoints(workdir / "checkpoints" / "last", 3)
    step, state = saved.restore(build(small_config()).init_state())
    saved.close()
    return step, state


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path):
    changes = {"train.steps": 600, "eval.every": 150}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_and_evaluate(build(small_config(**changes)), whole)
    process = run_by_command(broken, **changes)
    send_at_a_random_moment(process, broken, signal.SIGKILL)
    process = run_by_command(broken, **changes)
    said = send_at_a_random_moment(process, broken, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert "resuming from step" in said
    assert "run the same command again" in said
    process = run_by_command(broken, **changes)
    said = process.communicate()[1]
    assert process.returncode == 0, said

    (step_a, state_a), (step_b, state_b) = last_state(whole), last_state(broken)
    assert step_a == step_b == 600
    chex.assert_trees_all_equal(state_a, state_b)
    results = [json.loads((d / "results.json").read_text()) for d in (whole, broken)]
    assert results[0] == results[1]
    curves = [
        [
            {k: v for k, v in line.items() if k != "steps_per_second"}
            for line in metrics.read(d / "metrics.jsonl")
        ]
        for d in (whole, broken)
    ]
    assert curves[0] == curves[1]


def test_lists_of_numbers_take_one_line_and_nothing_is_changed(tmp_path):
    value = {"a": [1, 2.5, -3e-8], "b": [{"c": [1]}, "[1,   2]"], "d": [[], ["x", 1]]}
    write_json(tmp_path / "value.json", value)
    text = (tmp_path / "value.json").read_text()
    assert json.loads(text) == value
    assert '"a": [1, 2.5, -3e-08]' in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_it_learns_on_held_out_tasks_of_real_images(tmp_path, name):
    config = rainbow_mnist.get_config(f"learner={name},strategy=mlti")
    config.dataset.source = "builtin"
    config.backbone.conv4.filters = 16
    config.train.steps = 300
    config.eval.update({"num_tasks": 100, "validation_tasks": 50, "every": 300})
    experiment = build(config)
    untrained = experiment.evaluator(
        experiment.init_state().variables,
        experiment.splits.test,
        experiment.eval_key(1),
        100,
    )
    result = train_and_evaluate(experiment, tmp_path)
    mean, ci95 = paired_difference(result["per_task"], untrained)
    assert result["mean"] - result["ci95"] > 0.15  # ten classes: chance is 0.1
    assert mean - 2 * ci95 > 0
