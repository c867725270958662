"""Calibration of probabilities: temperature scaling and calibration error.

Guo et al. (2017) divide the logits of all classes by one temperature, which keeps the
order of the classes. It is fitted on validation tasks, on which the network was not
trained, and evaluated on test tasks, on which it was not fitted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlti_jax.training._evaluation import QueryOutputs

# Outside of these bounds, the samples do not determine a temperature.
_COLDEST, _HOTTEST = 1e-3, 1e4
_BINS = 15


class Calibration(NamedTuple):
    """Temperature scaling of probabilities and its effect.

    Attributes:
      temperature: the number that divides logits.
      tasks: number of validation tasks that it was fitted on.
      test_tasks: number of test tasks that the two errors were measured on.
      error_before, error_after: expected calibration error without and with it.
    """

    temperature: float
    tasks: int
    test_tasks: int
    error_before: float
    error_after: float


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float | None:
    r"""Return the T that minimizes $-\sum_k \log \mathrm{softmax}(z_k / T)_{y_k}$.

    The sum is convex in $\beta = 1 / T$, so its derivative,
    $\sum_k \mathbb{E}_{r \sim p_k} z_{kr} - z_{k y_k}$, has at most one zero, which is
    found by bisection.

    Args:
      logits: `[M, C]`.
      labels: `[M]`, integers.

    Returns:
      T; None if no temperature from 0.001 to 10,000 is optimal: if all samples are
      classified correctly, no confidence is too high.
    """
    logits = np.asarray(logits, np.float64)
    own = logits[np.arange(len(logits)), labels]

    def slope(log_beta: float) -> float:
        p = softmax(np.exp(log_beta) * logits)
        return float(((p * logits).sum(axis=1) - own).mean())

    low, high = -np.log(_HOTTEST), -np.log(_COLDEST)
    if not slope(low) < 0 < slope(high):
        return None
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities `[N, C]` of logits."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def expected_calibration_error(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0
) -> float:
    """Return the mean distance between confidence and accuracy.

    Samples are put into 15 bins of equal width by the probability of their most likely
    class; a bin is weighted with its number of samples.
    """
    p = softmax(np.asarray(logits, np.float64) / temperature)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gap = np.bincount(place, weights=confidence - correct, minlength=_BINS)
    return float(np.abs(gap).sum() / len(p))


def calibrate(
    validation: QueryOutputs, test: QueryOutputs, tasks: int
) -> Calibration | None:
    """Fit a temperature and measure its effect; None if none can be fitted.

    Args:
      validation: outputs on validation tasks, to fit on.
      test: outputs on test tasks, to measure on.
      tasks: the number of tasks of each.
    """
    temperature = fit_temperature(validation.outputs, validation.labels.argmax(axis=1))
    if temperature is None:
        return None
    logits, labels = test.outputs, test.labels.argmax(axis=1)
    return Calibration(
        temperature=temperature,
        tasks=tasks,
        test_tasks=tasks,
        error_before=expected_calibration_error(logits, labels),
        error_after=expected_calibration_error(logits, labels, temperature),
    )
