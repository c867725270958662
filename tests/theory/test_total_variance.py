"""Covariances within and between tasks and classes, against NumPy loops."""

import jax
import numpy as np
import pytest

from mlti_jax import theory
from mlti_jax.theory._total_variance import Covariances


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def ragged_samples(seed=0):
    """Features, tasks and classes; task 2 has no samples and task 1 no class 0."""
    rng = np.random.default_rng(seed)
    tasks = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 3, 3, 3, 3])
    classes = np.array([0, 0, 1, 2, 2, 1, 1, 2, 1, 0, 2, 1, 0])
    features = rng.normal(size=(13, 3)) + rng.normal(size=(4, 3))[tasks]
    return features, tasks, classes


def covariances(*args):
    return jax.jit(theory.covariances, static_argnums=(3, 4))(*args)


def loop_covariances(features, tasks, classes):
    """Total, within tasks and within classes, from moments task by task."""
    total, within_task, within_class, mean = 0.0, 0.0, 0.0, 0.0
    share = 1 / len(set(tasks))
    for task in set(tasks):
        present = set(classes[tasks == task])
        groups = [features[(tasks == task) & (classes == r)] for r in present]
        task_mean = np.mean([group.mean(0) for group in groups], axis=0)
        second = np.mean([group.T @ group / len(group) for group in groups], axis=0)
        scatter = [group - group.mean(0) for group in groups]
        mean += share * task_mean
        total += share * second
        within_task += share * (second - np.outer(task_mean, task_mean))
        within_class += share * np.mean([s.T @ s / len(s) for s in scatter], axis=0)
    return total - np.outer(mean, mean), within_task, within_class


def test_covariances_equal_loops_and_the_law_of_total_variance():
    samples = ragged_samples()
    found = covariances(*samples, 4, 3)
    total, within_task, within_class = loop_covariances(*samples)
    expected = Covariances(
        total,
        within_task,
        within_class,
        between_tasks=total - within_task,
        between_classes=within_task - within_class,
    )
    for part, value in expected._asdict().items():
        np.testing.assert_allclose(getattr(found, part), value, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_differences_are_positive_semi_definite(seed):
    found = covariances(*ragged_samples(seed), 4, 3)
    for larger, smaller in (
        (found.total, found.within_task),
        (found.within_task, found.within_class),
    ):
        eigenvalues = np.linalg.eigvalsh(np.asarray(larger - smaller))
        assert eigenvalues.min() > -1e-12
        assert eigenvalues.max() > 0.01


def test_partner_weights_are_probabilities_of_the_draw():
    _, tasks, classes = ragged_samples()
    weight = np.asarray(theory.partner_weights(tasks, classes, 4, 3))
    np.testing.assert_allclose(weight.sum(), 1)
    np.testing.assert_allclose(weight[3], 1 / 3 / 3 / 2)  # of 3 tasks, classes, 2
    np.testing.assert_allclose(weight[5], 1 / 3 / 2 / 3)  # of 3 tasks, 2 classes, 3
    uniform = theory.partner_weights(tasks, np.zeros_like(tasks), 4, 1)
    np.testing.assert_allclose(uniform[0], 1 / 3 / 5)


def test_a_task_may_vary_more_than_all_in_the_direction_of_its_head():
    """App. B.3 compares means over tasks, not the variance along each head."""
    rng = np.random.default_rng(0)
    scale = np.array([[3.0, 0.1], [0.1, 3.0]])  # each task in another direction
    features = rng.normal(size=(2, 50, 2)) * scale[:, None]
    tasks = np.repeat([0, 1], 50)
    found = covariances(features.reshape(-1, 2), tasks, np.zeros_like(tasks), 2, 1)
    for task, head in enumerate(np.eye(2)):
        own = head @ np.cov(features[task].T, bias=True) @ head
        assert own > 1.5 * head @ found.total @ head


def test_relative_partners_do_not_vary_between_tasks():
    rng = np.random.default_rng(0)
    num_tasks, per_class, size = 4, 3, 5
    centers = rng.normal(size=(num_tasks, 2, 1, size))
    x = centers + rng.normal(size=(num_tasks, 2, per_class, size))
    prototypes = x.mean(axis=2)
    relative = x - prototypes.mean(axis=1)[:, None, None]
    tasks = np.repeat(np.arange(num_tasks), 2 * per_class)
    classes = np.tile(np.repeat([0, 1], per_class), num_tasks)
    plain, seen = (
        covariances(samples.reshape(-1, size), tasks, classes, num_tasks, 2)
        for samples in (x, relative)
    )
    assert np.trace(plain.between_tasks) > 0.1
    np.testing.assert_allclose(seen.between_tasks, 0, atol=1e-12)
    np.testing.assert_allclose(seen.total, plain.within_task, atol=1e-12)
