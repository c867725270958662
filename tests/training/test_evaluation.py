"""Evaluation on features of the pool equals evaluation task by task."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from mlti_jax import backbones, learners, strategies
from mlti_jax.api._fit import choose_config
from mlti_jax.data import ClassPool, sample_task
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.training import (
    Episode,
    Evaluator,
    build,
    init_state,
    make_run_steps,
    train_and_evaluate,
)
from mlti_jax.training import _evaluation as evaluation
from tests.support.api_cases import SMALL, class_splits, regression_splits

KEY = jax.random.key(0)


def ragged_pool(sizes=(9, 7, 12, 8)):
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(len(sizes)), sizes)
    means = 60 * rng.normal(size=(len(sizes), 6))
    x = 128 + means[label] + 40 * rng.normal(size=(len(label), 6))
    return ClassPool.from_arrays(x.clip(0, 255).astype(np.uint8), label)


def trained(learner, pool):
    """Variables after some steps, so that running averages are not as they began."""
    strategy, episode = strategies.vanilla(), Episode(3, 2, 2)
    task = sample_task(pool, KEY, **episode._asdict())
    optimiser = optax.adam(1e-2)
    state = init_state(learner, strategy, optimiser, KEY, task.support.x)
    run = make_run_steps(learner, strategy, optimiser, episode, 2)
    return run(state, pool, KEY, 20)[0].variables


@pytest.mark.slow
@pytest.mark.parametrize("samples_per_pass", [7, 256])
@pytest.mark.parametrize("queries", [3, None])
@pytest.mark.parametrize("name", ["protonet", "maml"])
def test_features_of_the_pool_change_nothing(
    monkeypatch, name, queries, samples_per_pass
):
    monkeypatch.setattr(evaluation, "SAMPLES_PER_PASS", samples_per_pass)
    pool = ragged_pool()
    learner = learners.make(name, backbones.mlp((16, 12)), 3, norm="running")
    variables = trained(learner, pool)
    episode = Episode(3, 2, queries)
    evaluator = Evaluator(learner, strategies.vanilla(), episode, 4)
    assert evaluator._features_pay(pool, 12)
    got = evaluator(variables, pool, KEY, 12)

    @jax.jit
    def one_task(index):
        key_task, key_noise = jax.random.split(jax.random.fold_in(KEY, index))
        task = sample_task(pool, key_task, **episode._asdict())
        return learner.loss(variables, task, TaskContext(key_noise, False), 0)[1].metric

    np.testing.assert_allclose(got, [one_task(i) for i in range(12)], atol=1e-6)
    assert len(set(got.tolist())) > 1


def test_features_pay_only_where_they_are_fewer():
    pool = ragged_pool()  # 36 samples
    for norm, num_tasks, pays in (
        ("running", 3, False),  # 36 samples in the tasks
        ("running", 4, True),
        ("batch", 4, False),  # features depend on the task
    ):
        learner = learners.make("protonet", backbones.mlp((8,)), 3, norm=norm)
        evaluator = Evaluator(learner, strategies.vanilla(), Episode(3, 1, 3))
        assert evaluator._features_pay(pool, num_tasks) == pays


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["classes", "targets"])
def test_outputs_that_are_not_finite_are_an_error(setting, tmp_path):
    """The accuracy of NaN would look like that of any other guess."""
    splits = class_splits() if setting == "classes" else regression_splits()
    learner = "protonet" if setting == "classes" else "maml"
    config = choose_config(
        splits,
        {"learner.name": learner, "strategy.name": "mlti", "train.steps": 20},
        {**SMALL, "train.checkpoint_every": 5},
    )
    huge = splits.test.replace(x=splits.test.x.at[:].multiply(1e30))
    broken = dataclasses.replace(splits, test=huge)
    message = r"cannot test at step 20: the outputs for task \d+.* are not finite"
    for _ in range(2):  # the second only repeats the test
        with pytest.raises(InputError, match=message):
            train_and_evaluate(build(config, splits=broken), tmp_path)
        steps = [p.name for p in (tmp_path / "checkpoints" / "last").iterdir()]
        assert "20" in steps
    assert not (tmp_path / "results.json").exists()
