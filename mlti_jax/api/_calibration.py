"""Whether probabilities can be believed: temperature, and calibration error.

Guo et al. (2017): the logits of all classes are divided by one number, which leaves
the order of the classes as it is. It is fitted on validation tasks, which the network
was not trained on, and judged on test tasks, which it was not fitted on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlti_jax.data import Pool
from mlti_jax.learners import Variables
from mlti_jax.training import Evaluator
from mlti_jax.types import Array

# Outside of these, the samples do not determine a temperature.
COLDEST, HOTTEST = 1e-3, 1e4
BINS = 15


class Calibration(NamedTuple):
    """How probabilities were calibrated, and how well it went.

    Attributes:
      temperature: that logits are divided by.
      tasks: validation tasks that it was fitted on.
      test_tasks: that the two errors were measured on.
      error_before, error_after: expected calibration error, without and with it.
    """

    temperature: float
    tasks: int
    test_tasks: int
    error_before: float
    error_after: float


class Outputs(NamedTuple):
    """Logits of the queries of many tasks.

    Attributes:
      logits: `[M, C]`.
      labels: `[M]`, whole numbers.
    """

    logits: np.ndarray
    labels: np.ndarray


def query_outputs(
    evaluator: Evaluator, variables: Variables, pool: Pool, key: Array, num_tasks: int
) -> Outputs:
    """What a learner says of the queries of the tasks that an evaluator draws."""
    outputs, labels = evaluator.outputs(variables, pool, key, num_tasks)
    return Outputs(outputs, labels.argmax(axis=1))


def fit_temperature(outputs: Outputs) -> float | None:
    r"""The T that minimises :math:`-\sum_k \log \mathrm{softmax}(z_k / T)_{y_k}`.

    The sum is convex in :math:`\beta = 1 / T`, so that its derivative,
    :math:`\sum_k \mathbb{E}_{r \sim p_k} z_{kr} - z_{k y_k}`, has one zero at most: it
    is found by halving an interval.

    Returns:
      None if there is none between `COLDEST` and `HOTTEST`: where all samples are
      classified rightly, no confidence is too high.
    """
    logits = np.asarray(outputs.logits, np.float64)
    own = logits[np.arange(len(logits)), outputs.labels]

    def slope(log_beta: float) -> float:
        p = softmax(np.exp(log_beta) * logits)
        return float(((p * logits).sum(axis=1) - own).mean())

    low, high = -np.log(HOTTEST), -np.log(COLDEST)
    if not slope(low) < 0 < slope(high):
        return None
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities `[N, C]` of logits."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def expected_calibration_error(outputs: Outputs, temperature: float = 1.0) -> float:
    """The mean distance between confidence and accuracy.

    Samples are put into `BINS` bins of equal width by the probability of their
    likeliest class; a bin counts by its number of samples.
    """
    p = softmax(np.asarray(outputs.logits, np.float64) / temperature)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == outputs.labels
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gap = np.bincount(place, weights=confidence - right, minlength=BINS)
    return float(np.abs(gap).sum() / len(p))


def calibrate(fitting: Outputs, judging: Outputs, tasks: int) -> Calibration | None:
    """Fits a temperature and measures what it brings; None if none can be fitted.

    Args:
      fitting: of validation tasks.
      judging: of test tasks.
      tasks: how many of each.
    """
    temperature = fit_temperature(fitting)
    if temperature is None:
        return None
    return Calibration(
        temperature=temperature,
        tasks=tasks,
        test_tasks=tasks,
        error_before=expected_calibration_error(judging),
        error_after=expected_calibration_error(judging, temperature),
    )
