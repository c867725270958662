"""Temperature and calibration error, against other ways to work them out."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from mlti_jax.api._calibration import (
    calibrate,
    expected_calibration_error,
    fit_temperature,
)
from mlti_jax.training import Evaluator
from mlti_jax.training._evaluation import QueryOutputs
from mlti_jax.training._experiment import TEST, VALIDATION, build
from mlti_jax.training._step import Episode
from tests.support.api_cases import class_splits, fit_small, fitted


def logits_and_labels(seed, temperature, number=4000, classes=4):
    """Labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(number, classes))
    p = np.exp(logits / temperature)
    p /= p.sum(axis=1, keepdims=True)
    labels = (rng.random((number, 1)) > p.cumsum(axis=1)).sum(axis=1)
    return logits, np.minimum(labels, classes - 1)


def loss(logits, labels, temperature):
    z = logits / temperature
    z = z - z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return -np.mean([row[label] for row, label in zip(log_p, labels, strict=True)])


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0, 20.0])
def test_temperature_minimises_the_loss(temperature):
    outputs = logits_and_labels(0, temperature)
    found = fit_temperature(*outputs)
    best = minimize_scalar(
        lambda t: loss(*outputs, np.exp(t)),
        bounds=(-5, 6),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert found == pytest.approx(np.exp(best.x), rel=1e-4)
    assert found == pytest.approx(temperature, rel=0.2)
    for other in (0.9 * found, 1.1 * found):
        assert loss(*outputs, found) < loss(*outputs, other)


def test_no_temperature_where_all_is_right_or_all_is_chance():
    logits, labels = np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 0])
    assert fit_temperature(logits, labels) is None
    assert fit_temperature(logits, np.array([1, 2, 0, 1])) is None
    assert fit_temperature(np.zeros((4, 3)), labels) is None


def test_expected_calibration_error_bin_by_bin():
    logits, labels = logits_and_labels(1, 2.0, number=300)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    error = 0.0
    for i in range(15):
        inside = [
            k
            for k in range(300)
            if i / 15 <= p[k].max() < (i + 1) / 15 or (i == 14 and p[k].max() == 1.0)
        ]
        if inside:
            confidence = np.mean([p[k].max() for k in inside])
            accuracy = np.mean([p[k].argmax() == labels[k] for k in inside])
            error += len(inside) / 300 * abs(confidence - accuracy)
    assert expected_calibration_error(logits, labels) == pytest.approx(error, abs=1e-9)


def test_calibration_lowers_the_error_of_overconfident_logits():
    validation, test = (
        QueryOutputs(logits, np.eye(4)[labels])
        for logits, labels in (logits_and_labels(seed, 3.0) for seed in (2, 3))
    )
    found = calibrate(validation, test, tasks=5)
    assert found.error_after < 0.3 * found.error_before
    assert found.temperature == pytest.approx(3.0, rel=0.1)
    assert (found.tasks, found.test_tasks) == (5, 5)


@pytest.mark.slow
def test_outputs_are_those_of_the_evaluators_tasks():
    """Their accuracy is the evaluator's, task by task."""
    fit = fitted("maml_running")
    evaluator = Evaluator(fit.learner, fit.strategy, Episode(3, 3, 4))
    experiment = build(fit.config, splits=fit.splits)
    key = experiment.eval_key(TEST)
    values = evaluator(fit.variables, fit.splits.test, key, 6)
    outputs, labels = evaluator.outputs(fit.variables, fit.splits.test, key, 6)
    right = (outputs.argmax(axis=1) == labels.argmax(axis=1)).reshape(6, -1)
    np.testing.assert_allclose(right.mean(axis=1), values, atol=1e-6)


def test_padding_is_left_out_where_all_samples_are_queries():
    fit = fitted("protonet")
    pool = fit.splits.test
    count = np.asarray(pool.count).copy()
    count[0] -= 4  # one class has fewer samples
    pool = pool.replace(count=count)
    evaluator = Evaluator(fit.learner, fit.strategy, Episode(4, 3, None))
    key = build(fit.config, splits=fit.splits).eval_key(TEST)
    outputs = evaluator.outputs(fit.variables, pool, key, 5)
    assert len(outputs.labels) == 5 * (count - 3).sum()


@pytest.mark.slow
def test_fit_calibrates_on_validation_tasks(capsys):
    fit = fit_small(class_splits(spread=2.5), ways=3, verbose=True)
    assert fit.calibrated
    experiment = build(fit.config, splits=fit.splits)
    outputs = {
        purpose: experiment.evaluator.outputs(
            fit.variables, pool, experiment.eval_key(purpose), 10
        )
        for purpose, pool in (
            (VALIDATION, fit.splits.validation),
            (TEST, fit.splits.test),
        )
    }
    logits, labels = outputs[VALIDATION]
    best = minimize_scalar(
        lambda t: loss(logits, labels.argmax(axis=1), np.exp(t)),
        bounds=(-6, 8),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fit.temperature == pytest.approx(np.exp(best.x), rel=1e-3)
    logits, labels = outputs[TEST]
    before = expected_calibration_error(logits, labels.argmax(axis=1))
    assert fit.calibration.error_before == pytest.approx(before)
    printed = capsys.readouterr().out
    assert f"temperature {fit.temperature:.3g}" in printed
    assert "probabilities are calibrated on 10 validation tasks" in printed


@pytest.mark.slow
def test_without_validation_tasks_nothing_is_calibrated():
    for name in ("protonet_domains", "regression"):
        fit = fitted(name)
        assert not fit.calibrated
        assert fit.temperature == 1.0
