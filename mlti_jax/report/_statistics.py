"""Numbers that a report shows, from the outputs on test tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlti_jax.data import ClassPool, DomainPool
from mlti_jax.training._evaluation import TaskOutputs

BINS = 15  # as many as the expected calibration error has


class Reliability(NamedTuple):
    """How often predictions are correct, by how confident they are.

    Attributes:
      confidence: `[B]`, mean probability of the predicted class in each bin; NaN if
        the bin is empty.
      accuracy: `[B]`, share of correct predictions in each bin; NaN likewise.
      queries: `[B]`, number of queries in each bin.
      error: expected calibration error.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    queries: np.ndarray
    error: float


def reliability(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0
) -> Reliability:
    """Put queries into bins of equal width by the probability of their prediction.

    Args:
      logits: `[M, C]`.
      labels: `[M]`, integers.
      temperature: divides the logits.
    """
    scaled = np.asarray(logits, np.float64) / temperature
    p = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    sums = [
        np.bincount(place, weights=values, minlength=BINS)
        for values in (confidence, correct)
    ]
    with np.errstate(invalid="ignore"):
        means = [total / count for total in sums]
    error = float(np.abs(sums[0] - sums[1]).sum() / len(p))
    return Reliability(means[0], means[1], count, error)


def confusion(tasks: Sequence[TaskOutputs], pool: DomainPool | ClassPool) -> np.ndarray:
    """Count queries by true and predicted class of the pool, `[C, C]`."""
    counts = np.zeros((len(pool.classes),) * 2, int)
    for task in tasks:
        # A domain has all classes in the order of the pool; otherwise classes are
        # drawn.
        drawn = isinstance(pool, ClassPool)
        classes = task.groups if drawn else np.arange(len(pool.classes))
        true, predicted = (
            classes[values.argmax(axis=1)] for values in (task.labels, task.outputs)
        )
        np.add.at(counts, (true, predicted), 1)
    return counts


def recall_by_class(tasks: Sequence[TaskOutputs], pool: ClassPool) -> list[np.ndarray]:
    """Return, for each class of the pool, its recall in each task that has it."""
    values: list[list[float]] = [[] for _ in pool.classes]
    for task in tasks:
        true, predicted = task.labels.argmax(axis=1), task.outputs.argmax(axis=1)
        for label, group in enumerate(task.groups):
            own = true == label
            if own.any():
                values[group].append(float((predicted[own] == label).mean()))
    return [np.array(value) for value in values]


def by_source(values: np.ndarray, sources: np.ndarray, number: int) -> list[np.ndarray]:
    """Split values of tasks `[T]` by the source of each task."""
    return [np.asarray(values)[sources == source] for source in range(number)]


def principal_axes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean `[D]` and two principal axes `[D, 2]` of samples `[N, D]`."""
    mean = x.mean(axis=0)
    axes = np.linalg.svd(x - mean, full_matrices=False)[2][:2].T
    if axes.shape[1] < 2:  # samples with a single feature
        axes = np.concatenate([axes, np.zeros_like(axes)], axis=1)
    return mean, axes
