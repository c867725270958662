"""Fits with standardized targets equal fits to targets standardized by hand."""

import numpy as np
import pytest

import mlti_jax
from experiments import finished_run
from mlti_jax.data import from_arrays
from mlti_jax.errors import InputError
from tests.support.api_cases import FEATURES, fit_small

TEST = ["t4", "t5"]
SCALE, OFFSET = np.array([300.0, 0.01]), np.array([4000.0, -2.0])
SMALLER = {"eval.num_tasks": 6, "learner.maml.norm": "running"}


def tasks(seed=0):
    """Tasks with two targets in very different units."""
    rng = np.random.default_rng(seed)
    given = {}
    for i in range(6):
        x = rng.normal(size=(20, FEATURES)).astype(np.float32)
        y = x @ rng.normal(size=(FEATURES, 2))
        given[f"t{i}"] = (x, y * SCALE + OFFSET)
    return given


def by_hand(given):
    """The same tasks with standardized targets, and the statistics."""
    y = np.concatenate([y for name, (_, y) in given.items() if name not in TEST])
    mean, scale = y.mean(axis=0), y.std(axis=0)
    return (
        {name: (x, (y - mean) / scale) for name, (x, y) in given.items()},
        mean,
        scale,
    )


@pytest.fixture(scope="module")
def pair():
    """A fit to targets in their units, one to standardized ones, and statistics."""
    given = tasks()
    standardized, mean, scale = by_hand(given)
    raw = from_arrays(standardized, test=TEST, standardise_targets=False)
    one = fit_small(from_arrays(given, test=TEST), shots=5, **SMALLER)
    return given, one, fit_small(raw, shots=5, **SMALLER), mean, scale


def test_predictions_are_those_by_hand(pair):
    given, fit, hand, mean, scale = pair
    x, y = given["t4"]
    found = fit.adapt(x[:10], y[:10]).predict(x[10:])
    model = hand.adapt(x[:10], (y[:10] - mean) / scale)
    expected = model.predict(x[10:]) * scale + mean
    assert np.abs(found - mean).max() > 100  # in the user's units
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-4)


def test_the_metric_is_in_the_units_of_the_targets(pair):
    given, fit, hand, mean, scale = pair
    outputs = hand.evaluate(num_tasks=6)
    assert fit.result["metric"] == "mse"
    assert fit.result["mean"] > 1000 * outputs.mean
    evaluation = fit.evaluate(num_tasks=6)
    np.testing.assert_allclose(evaluation.per_task, fit.result["per_task"], rtol=1e-4)
    # Of one task, with all its samples, in NumPy.
    one = from_arrays({"a": given["t0"], "t4": given["t4"]}, test=["t4"])
    one_task = fit.evaluate(one, num_tasks=2, shots=10, queries=10)
    x, y = given["t4"]
    errors = []
    for index in range(2):
        support, query = _rows(fit, one.test, index)
        predicted = fit.adapt(x[support], y[support]).predict(x[query])
        errors.append(np.mean((predicted - y[query]) ** 2))
    np.testing.assert_allclose(one_task.per_task, errors, rtol=1e-3)


def _rows(fit, pool, index):
    """Rows of the support set and the queries of a test task."""
    import jax

    from mlti_jax.data import sample_task
    from mlti_jax.training._experiment import TEST as PURPOSE

    key = jax.random.fold_in(jax.random.key(fit.config.eval.seed), PURPOSE)
    key, _ = jax.random.split(jax.random.fold_in(key, index))
    task = sample_task(pool, key, ways=1, shots=10, queries=10)
    x = np.asarray(pool.x)
    return (
        [int(np.flatnonzero((x == row).all(axis=1))[0]) for row in np.asarray(part.x)]
        for part in (task.support, task.query)
    )


def test_other_tasks_are_converted(pair):
    """Statistics of other tasks, or none, do not change the metric."""
    given, fit, _, mean, scale = pair
    own = fit.evaluate(num_tasks=6).per_task
    few = {name: given[name] for name in ("t0", *TEST)}
    for standardise in (True, False):
        other = from_arrays(few, test=TEST, standardise_targets=standardise)
        assert other.inputs.targets != fit.inputs.targets
        found = fit.evaluate(other, num_tasks=6).per_task
        np.testing.assert_allclose(found, own, rtol=1e-3)
    single = {name: (x, y[:, :1]) for name, (x, y) in given.items()}
    with pytest.raises(InputError, match="targets of length 1; .* of length 2"):
        fit.evaluate(from_arrays(single, test=TEST))


def test_saved_learners_keep_the_units(pair, tmp_path):
    given, fit, *_ = pair
    fit.save(tmp_path)
    loaded = mlti_jax.load(tmp_path)
    x, y = given["t5"]
    np.testing.assert_array_equal(
        loaded.adapt(x, y).predict(x), fit.adapt(x, y).predict(x)
    )
    assert loaded.facts == fit.facts
    splits = from_arrays(given, test=TEST)
    np.testing.assert_array_equal(
        loaded.evaluate(splits, num_tasks=6).per_task,
        fit.evaluate(num_tasks=6).per_task,
    )


def test_other_units_are_other_data(tmp_path):
    """The standardized values are the same, but the metric is not."""
    given = {name: (x, y[:, :1]) for name, (x, y) in tasks().items()}
    doubled = {name: (x, 2 * y) for name, (x, y) in given.items()}
    options = {"shots": 5, "steps": 2, "workdir": tmp_path, **SMALLER}
    first = fit_small(from_arrays(given, test=TEST), **options)
    again = fit_small(from_arrays(given, test=TEST), **options)
    assert again.result == first.result
    other = from_arrays(doubled, test=TEST)
    np.testing.assert_array_equal(other.train.y, from_arrays(given, test=TEST).train.y)
    with pytest.raises(InputError, match="data"):
        fit_small(other, **options)


@pytest.mark.slow
def test_a_finished_run_of_the_command_predicts_in_units(tmp_path):
    """`experiments.run` on a file, then `experiments.predict` on its directory."""
    from experiments.configs import own_data
    from experiments.predict import load_model
    from mlti_jax.training import build, train_and_evaluate
    from mlti_jax.training._config import set_fields

    given = tasks()
    np.savez(
        tmp_path / "d.npz",
        x=np.concatenate([x for x, _ in given.values()]),
        y=np.concatenate([y for _, y in given.values()]),
        task=np.repeat(list(given), 20),
    )
    config = own_data.get_config("learner=maml,strategy=mlti,shots=5")
    config.dataset.path, config.dataset.test = str(tmp_path / "d.npz"), "t4,t5"
    set_fields(config, {"train.steps": 3, "eval.num_tasks": 4, "eval.every": 3})
    result = train_and_evaluate(build(config), tmp_path / "run")
    experiment, _, _ = finished_run.load(tmp_path / "run")
    assert experiment.learner.objective.metric.scale == pytest.approx(
        by_hand(given)[2].tolist()
    )
    model = load_model(str(tmp_path / "run"))
    assert model.result["mean"] == result["mean"] > 1e3
    x, y = given["t4"]
    predicted = model.adapt(x, y).predict(x)
    assert np.abs(predicted.mean(axis=0) - OFFSET).max() < 3 * SCALE.max()
