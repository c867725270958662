"""Numbers of a report against loops."""

import math

import numpy as np
import pytest

from mlti_jax.report import _charts as charts
from mlti_jax.report import _statistics as statistics
from mlti_jax.training._evaluation import TaskOutputs
from tests.support.api_cases import class_pool, domain_pool


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_reliability_is_that_of_a_loop(temperature):
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.normal(size=(400, 4)), rng.integers(4, size=400)
    bins = [[] for _ in range(statistics.BINS)]
    for z, label in zip(logits.tolist(), labels.tolist(), strict=True):
        p = [math.exp(value / temperature) for value in z]
        confidence, predicted = max(p) / sum(p), p.index(max(p))
        place = min(int(confidence * statistics.BINS), statistics.BINS - 1)
        bins[place].append((confidence, predicted == label))
    found = statistics.reliability(logits, labels, temperature)
    error = 0.0
    for place, members in enumerate(bins):
        assert found.queries[place] == len(members)
        if not members:
            assert math.isnan(found.accuracy[place])
            continue
        confidence, correct = (sum(v) / len(v) for v in zip(*members, strict=True))
        assert found.confidence[place] == pytest.approx(confidence)
        assert found.accuracy[place] == pytest.approx(correct)
        error += len(members) / 400 * abs(confidence - correct)
    assert found.error == pytest.approx(error)


def outputs_of_tasks(groups_of_tasks):
    rng = np.random.default_rng(1)
    tasks = []
    for groups in groups_of_tasks:
        ways = len(groups)
        labels = np.eye(ways)[rng.integers(ways, size=7)]
        outputs = rng.normal(size=(7, ways))
        tasks.append(TaskOutputs(outputs, labels, 0, np.array(groups)))
    return tasks


def test_confusion_and_recall_of_drawn_classes():
    pool = class_pool("c", 5)
    tasks = outputs_of_tasks([(4, 0, 2), (1, 2, 4), (0, 1, 2)])
    counts = np.zeros((5, 5), int)
    recall = {c: [] for c in range(5)}
    for task in tasks:
        hits = {c: [] for c in task.groups}
        for output, label in zip(task.outputs, task.labels, strict=True):
            true = task.groups[list(label).index(1)]
            predicted = task.groups[list(output).index(max(output))]
            counts[true, predicted] += 1
            hits[true].append(true == predicted)
        for c, values in hits.items():
            if values:
                recall[c].append(sum(values) / len(values))
    np.testing.assert_array_equal(statistics.confusion(tasks, pool), counts)
    for c, values in enumerate(statistics.recall_by_class(tasks, pool)):
        np.testing.assert_allclose(values, recall[c])


def test_confusion_of_shared_classes():
    pool = domain_pool("d", 3)
    # Groups are numbered over all domains; the classes are the same in each.
    tasks = outputs_of_tasks([(0, 1), (4, 5), (2, 3)])
    counts = np.zeros((2, 2), int)
    for task in tasks:
        for output, label in zip(task.outputs, task.labels, strict=True):
            counts[int(label[1]), int(output[1] > output[0])] += 1
    np.testing.assert_array_equal(statistics.confusion(tasks, pool), counts)


def test_principal_axes_explain_the_most():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 4)) * [1, 5, 0.1, 2]
    mean, axes = statistics.principal_axes(x)
    np.testing.assert_allclose(mean, x.mean(axis=0))
    values, vectors = np.linalg.eigh(np.cov(x.T))
    for axis, vector in zip(axes.T, vectors.T[::-1], strict=False):
        assert abs(axis @ vector) == pytest.approx(1)
    assert statistics.principal_axes(x[:, :1])[1].shape == (1, 2)


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.2, 0.4, 0.4, 1.0]) * 100,
        np.round(np.random.default_rng(0).integers(0, 76, 600) / 75, 6) * 100,
        np.random.default_rng(0).normal(size=50),
        1e-9 * np.random.default_rng(0).normal(size=50),
        np.full(5, 40.0),
    ],
)
def test_bins_cover_all_values_evenly(values):
    edges = charts.bin_edges(values)
    assert len(edges) <= 25 + 1
    assert edges[0] < values.min()
    assert values.max() < edges[-1]
    np.testing.assert_allclose(np.diff(edges), np.diff(edges)[0])


def test_bins_of_accuracies_have_equally_many_possible_values():
    possible = np.arange(76) / 75 * 100
    edges = charts.bin_edges(possible)
    counts = np.histogram(possible, edges)[0]
    assert set(counts[:-1]) == {4}
