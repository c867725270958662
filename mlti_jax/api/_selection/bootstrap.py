r"""Intervals for scores of episodes within tasks, and paired comparisons.

A score has two sources of variation: tasks differ, and so do episodes of one task. The
hierarchical bootstrap draws tasks with replacement, then episodes within each drawn
task. With $K$ tasks, $E$ episodes each, task means $\bar x_k$, their variance $s^2$ and
the variance $s_k^2$ of the episodes of task $k$ (both with Bessel's correction), the
variance of the resampled mean has a closed form, so nothing has to be drawn:

$$\mathrm{Var}^*(\bar x) = \frac{K - 1}{K} \frac{s^2}{K}
  + \frac{1}{K^2} \sum_k \frac{E - 1}{E} \frac{s_k^2}{E}.$$

For few tasks its percentiles are too narrow, for two reasons: the factor $(K - 1) / K$,
and quantiles that ignore how uncertain $s^2$ is. So the interval uses the variance
without the bootstrap's bias and the quantile of Student's t:

$$\bar x \pm t_{K - 1,\, 1 - \alpha / 2m}\, \mathrm{se}, \qquad
  \mathrm{se}^2 = \frac{s^2}{K} + \frac{1}{K^2} \sum_k \frac{s_k^2}{E}.$$

Here $m$ is the number of comparisons (Bonferroni), so all intervals of one table hold
at the same time with a probability of at least $1 - \alpha$, however the candidates are
correlated. $s^2$ already includes the variance of episodes once; the second term keeps
the interval from collapsing if a few task means happen to agree.

Tasks that are tested with the same trained network are not independent. They form one
*unit*, and $K$ is the number of units: the folds of the cross-validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Scores of one candidate: for each unit the scores of its tasks, `[tasks, episodes]`.
Scores = Sequence[np.ndarray]

ALPHA = 0.05
BETTER, WORSE, UNCLEAR = "clearly better", "clearly worse", "no clear difference"


class Estimate(NamedTuple):
    """A mean over units.

    Attributes:
      mean: the mean.
      error: its standard error.
      half_width: half of the width of its interval.
    """

    mean: float
    error: float
    half_width: float


class Comparison(NamedTuple):
    """The paired difference of a candidate from the reference.

    Attributes:
      difference: mean, standard error and half-width of the simultaneous interval.
      verdict: `clearly better`, `clearly worse` or `no clear difference`.
    """

    difference: Estimate
    verdict: str


def unit_means(scores: Scores) -> np.ndarray:
    """Return the mean score of each unit, `[K]`; all tasks of a unit count equally."""
    return np.array([np.mean(unit) for unit in scores], np.float64)


def standard_error(scores: Scores) -> float:
    """Return the standard error of the mean over units, see the module's equation.

    Args:
      scores: `[tasks, episodes]` of each of at least two units.
    """
    means = unit_means(scores)
    number = len(means)
    between = means.var(ddof=1) / number
    within = sum(_episode_variance(unit) for unit in scores) / number**2
    return float(np.sqrt(between + within))


def _episode_variance(unit: np.ndarray) -> float:
    """Return the variance of the mean of a unit that is due to episodes."""
    unit = np.asarray(unit, np.float64)
    tasks, episodes = unit.shape
    if episodes < 2:
        return 0.0
    return float(unit.var(axis=1, ddof=1).sum() / episodes / tasks**2)


def estimate(scores: Scores, comparisons: int = 1, alpha: float = ALPHA) -> Estimate:
    """Return the mean over units with its interval.

    Args:
      scores: `[tasks, episodes]` of each unit.
      comparisons: number m of intervals that hold together with probability
        `1 - alpha`.
      alpha: the error probability.
    """
    from scipy import special  # slow to import, and not needed to train

    error = standard_error(scores)
    quantile = special.stdtrit(len(scores) - 1, 1 - alpha / 2 / comparisons)
    return Estimate(float(unit_means(scores).mean()), error, float(quantile) * error)


def paired(one: Scores, other: Scores) -> list[np.ndarray]:
    """Return the differences of two candidates, episode by episode."""
    return [
        np.asarray(a, np.float64) - np.asarray(b, np.float64)
        for a, b in zip(one, other, strict=True)
    ]


def compare_with(
    reference: Scores,
    others: Mapping[str, Scores],
    *,
    comparisons: int,
    higher_is_better: bool = True,
    alpha: float = ALPHA,
) -> dict[str, Comparison]:
    """Compare candidates with a reference on the same episodes.

    If no candidate differs from the reference, the probability that any of them is
    called clearly better or worse is at most `alpha`.

    Args:
      reference: scores of the reference.
      others: scores of each candidate, on the same episodes.
      comparisons: number of candidates that could have been compared; those that
        were stopped early count too.
      higher_is_better: whether a larger score is better.
      alpha: error probability of all comparisons together.
    """
    sign = 1 if higher_is_better else -1
    found = {}
    for name, scores in others.items():
        difference = estimate(paired(scores, reference), comparisons, alpha)
        verdict = UNCLEAR
        if difference.error > 0 and abs(difference.mean) > difference.half_width:
            verdict = BETTER if sign * difference.mean > 0 else WORSE
        found[name] = Comparison(difference, verdict)
    return found
