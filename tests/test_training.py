"""Training and evaluation: compiled once, resumed bit for bit, and it learns."""

import dataclasses
import errno
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
from mlti_jax import backbones, data, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.locks import locked
from mlti_jax.training import (
    Checkpoints,
    Episode,
    Evaluator,
    Interrupted,
    adam,
    build,
    init_state,
    make_run_steps,
    mean_and_interval,
    metrics,
    paired_difference,
    train_and_evaluate,
)

ROOT = pathlib.Path(__file__).parent.parent
KEY = jax.random.key(0)
EPISODE = Episode(ways=3, shots=2, queries=3)
# What other tools read of results.json.
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


def vector_pool(seed=0, domains=4, spread=1.5):
    """Domains whose three classes lie around means of their own."""
    rng = np.random.default_rng(seed)
    domain = np.repeat(np.arange(domains), 60)
    label = np.tile(np.repeat(np.arange(3), 20), domains)
    means = spread * rng.normal(size=(domains, 3, 10))
    x = means[domain, label] + rng.normal(size=(len(label), 10))
    return data.DomainPool.from_arrays(x.astype(np.float32), domain, label)


def make_learner(name):
    network = backbones.mlp((16, 16))
    options = {"steps": 2, "inner_learning_rate": 0.1} if name == "maml" else {}
    return learners.make(name, network, 3, **options)


def make_strategy(learner, layers=(0, 1)):
    form = "non_label_sharing" if learner.class_pairs else "label_sharing"
    return strategies.mlti(form=form, method="mixup", layers=layers)


def start(learner, strategy):
    return init_state(learner, strategy, adam(1e-3), KEY, jnp.zeros((2, 10)))


# ------------------------------------------------------------------ the compiled step


@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_steps_compile_once_and_do_not_depend_on_how_they_are_divided(name):
    learner = make_learner(name)
    strategy = make_strategy(learner)
    run = make_run_steps(learner, strategy, adam(1e-3), EPISODE, 4)
    pool = vector_pool()
    whole, _ = run(start(learner, strategy), pool, KEY, 7)
    parts = start(learner, strategy)
    for stop in (1, 2, 6, 7):
        parts, bad_step = run(parts, pool, KEY, stop)
        assert bad_step == -1
    chex.assert_trees_all_equal(parts, whole)
    assert run._cache_size() == 1


def test_one_step_equals_the_step_written_out():
    learner = make_learner("maml")
    strategy = strategies.vanilla()
    pool = vector_pool()
    state = start(learner, strategy)
    params = jax.tree.map(np.array, state.variables.params)
    run = make_run_steps(learner, strategy, optax.sgd(0.1), EPISODE, 2)
    state = state.replace(optimiser=optax.sgd(0.1).init((params, ())))
    after, _ = run(state, pool, KEY, 1)

    key_tasks, _ = jax.random.split(jax.random.fold_in(KEY, 0))
    tasks = [
        data.sample_task(pool, k, **EPISODE._asdict())
        for k in jax.random.split(key_tasks, 2)
    ]
    variables = start(learner, strategy).variables

    def loss(params):
        each = [
            learner.loss(variables.replace(params=params), task, KEY, 0, True)[0]
            for task in tasks
        ]
        return sum(each) / 2

    gradient = jax.jit(jax.grad(loss))(params)
    by_hand = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    chex.assert_trees_all_close(after.variables.params, by_hand, rtol=1e-4, atol=1e-6)


def test_training_stops_at_a_loss_that_is_not_finite():
    learner = make_learner("protonet")
    strategy = strategies.vanilla()
    run = make_run_steps(learner, strategy, adam(1e-3), EPISODE, 2)
    state = start(learner, strategy)
    broken = jax.tree.map(lambda p: p * jnp.nan, state.variables.params)
    state = state.replace(variables=state.variables.replace(params=broken))
    state, bad_step = run(state, vector_pool(), KEY, 10)
    assert bad_step == 1
    assert state.step == 1


def test_state_is_donated():
    learner = make_learner("protonet")
    strategy = strategies.vanilla()
    run = make_run_steps(learner, strategy, adam(1e-3), EPISODE, 2)
    state = start(learner, strategy)
    run(state, vector_pool(), KEY, 1)
    assert jax.tree.leaves(state.variables.params)[0].is_deleted()


# ---------------------------------------------------------------------- evaluation


def test_tasks_are_fixed_by_the_key_and_not_by_the_passes():
    learner = make_learner("maml")
    variables = start(learner, strategies.vanilla()).variables
    pool = vector_pool()
    values = [
        Evaluator(learner, strategies.vanilla(), EPISODE, size)(
            variables, pool, KEY, 10
        )
        for size in (4, 10)
    ]
    assert values[0].shape == (10,)
    np.testing.assert_allclose(values[0], values[1], atol=1e-6)
    for index in (0, 7):
        key_task, key_noise = jax.random.split(jax.random.fold_in(KEY, index))
        task = data.sample_task(pool, key_task, **EPISODE._asdict())
        aux = learner.loss(variables, task, key_noise, 0, False)[1]
        np.testing.assert_allclose(values[0][index], aux.metric, atol=1e-6)


def test_mean_and_interval_by_hand():
    values = [0.2, 0.4, 0.9]
    mean, ci95 = mean_and_interval(np.array(values))
    by_hand = (sum((v - 0.5) ** 2 for v in values) / 2) ** 0.5
    np.testing.assert_allclose(mean, 0.5)
    np.testing.assert_allclose(ci95, 1.96 * by_hand / 3**0.5)
    difference = paired_difference([0.5, 0.7], [0.4, 0.4])
    np.testing.assert_allclose(difference, (0.2, 1.96 * 0.1 * 2**0.5 / 2**0.5))


# --------------------------------------------------------------------- checkpoints


def small_state(value):
    return {"a": jnp.full((3,), float(value)), "b": (jnp.int32(value), {})}


def test_checkpoints_keep_the_newest_and_fall_back_from_a_damaged_one(tmp_path, caplog):
    saved = Checkpoints(tmp_path / "last", keep=2)
    for step in (1, 2, 3):
        saved.save(step, small_state(step))
    saved.wait()
    saved.close()
    files = [f for f in (tmp_path / "last" / "3").rglob("*") if f.is_file()]
    largest = max(files, key=lambda f: f.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    again = Checkpoints(tmp_path / "last", keep=2)
    assert again.steps() == [2, 3]
    step, state = again.restore(small_state(0.0))
    assert step == 2
    chex.assert_trees_all_equal(state, small_state(2.0))
    assert "can't be read" in caplog.text
    again.save(3, small_state(3.0))  # The step can be saved anew.
    again.wait()
    assert again.restore(small_state(0.0))[0] == 3
    again.close()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    saved = Checkpoints(tmp_path, keep=1)
    saved.save(1, small_state(1.0))
    saved.wait()
    with pytest.raises(InputError, match=r"a is float32\[3\], expected float32\[4\]"):
        saved.restore({"a": jnp.zeros(4), "b": (jnp.int32(0), {})})
    with pytest.raises(InputError, match="lacks c"):
        saved.restore({**small_state(0.0), "c": jnp.zeros(2)})
    saved.close()


def test_metrics_beyond_the_resumed_step_are_taken_away(tmp_path):
    writer = metrics.MetricsWriter(tmp_path)
    for step in (10, 20, 30):
        writer.write(step, "train", {"loss": step / 10})
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 40, "spl')  # cut short by a kill
    metrics.MetricsWriter(tmp_path, step=20).close()
    steps = [line["step"] for line in metrics.read(tmp_path / "metrics.jsonl")]
    assert steps == [10, 20]


# ---------------------------------------------------------------------- whole runs


def small_config(**changes):
    config = rainbow_mnist.get_config("learner=protonet,strategy=mlti")
    config.dataset.source = "builtin"
    config.backbone.filters = 4
    config.train.update({"steps": 30, "log_every": 10, "checkpoint_every": 10})
    config.eval.update({"every": 15, "validation_tasks": 8, "num_tasks": 12})
    config.update_from_flattened_dict(changes)
    return config


def test_a_run_leaves_what_it_promises_and_is_not_run_twice(tmp_path, capsys):
    result = train_and_evaluate(build(small_config()), tmp_path)
    saved = json.loads((tmp_path / "results.json").read_text())
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
    ]
    assert train_and_evaluate(build(small_config()), tmp_path) == saved
    assert "finished run" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"seed: 0 -> 5"):
        train_and_evaluate(build(small_config(seed=5)), tmp_path)


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


def test_other_data_under_the_same_config_is_refused(tmp_path):
    train_and_evaluate(build(small_config(**{"train.steps": 10})), tmp_path)
    experiment = build(small_config(**{"train.steps": 10}))
    pool = experiment.splits.train
    changed = dataclasses.replace(
        experiment.splits, train=pool.replace(x=pool.x.at[0].set(7))
    )
    other = dataclasses.replace(experiment, splits=changed)
    with pytest.raises(InputError, match="data.checksums.train"):
        train_and_evaluate(other, tmp_path)


def test_a_signal_during_validation_is_answered_and_the_result_is_the_same(
    tmp_path, monkeypatch
):
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


def test_a_full_disk_under_orbax_is_told_as_such(tmp_path):
    saved = Checkpoints(tmp_path, keep=1)

    def full(*args, **kwargs):
        raise ValueError('RESOURCE_EXHAUSTED: Error writing "a/0" in OCDBT database')

    saved._manager.save = full
    with pytest.raises(OSError, match="No space left") as error:
        saved.save(1, small_state(1.0))
    assert error.value.errno == errno.ENOSPC
    saved.close()


def test_errors_of_the_machine_are_not_taken_for_damage(tmp_path):
    saved = Checkpoints(tmp_path / "last", keep=1)
    saved.save(1, small_state(1.0))
    saved.wait()

    def too_many(*args, **kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    saved._manager.restore = too_many
    with pytest.raises(OSError, match="Too many"):
        saved.restore(small_state(0.0))
    assert saved.steps() == [1]
    saved.close()


def test_two_processes_do_not_share_a_work_directory(tmp_path):
    with (
        locked(tmp_path, "--workdir"),
        pytest.raises(InputError, match="another process"),
        locked(tmp_path, "--workdir"),
    ):
        pass


def run_by_command(workdir, **changes):
    """The same as `small_config`, as a user types it."""
    small = {
        "dataset.source": "builtin",
        "backbone.filters": 4,
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
    """Waits until training goes on, and then for a random while."""
    lines = workdir / "metrics.jsonl"
    before = lines.stat().st_size if lines.exists() else 0
    deadline = time.time() + 300
    while process.poll() is None and time.time() < deadline:
        if lines.exists() and lines.stat().st_size > before:
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
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path):
    changes = {"train.steps": 600, "eval.every": 150}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_and_evaluate(build(small_config(**changes)), whole)
    process = run_by_command(broken, **changes)
    send_at_a_random_moment(process, broken, signal.SIGKILL)
    process = run_by_command(broken, **changes)
    said = send_at_a_random_moment(process, broken, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert "going on from step" in said
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_it_learns_on_held_out_tasks_of_real_images(tmp_path, name):
    config = rainbow_mnist.get_config(f"learner={name},strategy=mlti")
    config.dataset.source = "builtin"
    config.backbone.filters = 16
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
