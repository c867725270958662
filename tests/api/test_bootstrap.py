"""Intervals over tasks and episodes: against resampling, and on simulated scores."""

import numpy as np
import pytest
from scipy import stats

from experiments.select_study import simulated
from mlti_jax.api._selection.bootstrap import (
    BETTER,
    UNCLEAR,
    WORSE,
    compare_with,
    estimate,
    paired,
    standard_error,
)


def scores(seed=0, units=5, tasks=1, episodes=8, between=1.0):
    rng = np.random.default_rng(seed)
    return [
        between * rng.normal() + rng.normal(size=(tasks, episodes))
        for _ in range(units)
    ]


@pytest.mark.parametrize("tasks", [1, 3])
def test_standard_error_is_that_of_resampling(tasks):
    found = scores(tasks=tasks)
    number, episodes = len(found), found[0].shape[1]
    rng = np.random.default_rng(1)
    means = []
    for _ in range(20_000):
        drawn = []
        for unit in rng.integers(number, size=number):
            columns = rng.integers(episodes, size=(tasks, episodes))
            drawn.append(np.take_along_axis(found[unit], columns, axis=1).mean())
        means.append(np.mean(drawn))
    # The module's second equation with the bootstrap's factors.
    unit_means = np.array([unit.mean() for unit in found])
    between = unit_means.var() / number
    within = sum(unit.var(axis=1).sum() for unit in found)
    within /= number**2 * episodes * tasks**2
    np.testing.assert_allclose(np.var(means), between + within, rtol=0.05)
    exact = between * number / (number - 1) + within * episodes / (episodes - 1)
    np.testing.assert_allclose(standard_error(found) ** 2, exact)


def test_interval_without_episode_variance_is_the_t_interval():
    means = np.array([0.3, 0.5, 0.4, 0.9])
    found = estimate([np.full((1, 7), mean) for mean in means])
    low, high = stats.t.interval(0.95, df=3, loc=means.mean(), scale=stats.sem(means))
    np.testing.assert_allclose(found.mean - found.half_width, low)
    np.testing.assert_allclose(found.mean + found.half_width, high)


def test_interval_grows_with_the_number_of_comparisons():
    widths = [estimate(scores(), number).half_width for number in (1, 3, 7)]
    ratio = stats.t.ppf(1 - 0.025 / 7, 4) / stats.t.ppf(1 - 0.025, 4)
    assert widths == sorted(widths)
    np.testing.assert_allclose(widths[2] / widths[0], ratio)


def test_differences_are_paired_by_episode():
    one, other = scores(0), scores(1)
    differences = paired(one, other)
    assert differences[2][0, 3] == one[2][0, 3] - other[2][0, 3]


@pytest.mark.parametrize(
    ("shift", "higher", "verdict"),
    [
        (3.0, True, BETTER),
        (-3.0, True, WORSE),
        (-3.0, False, BETTER),
        (0.01, True, UNCLEAR),
        (0.0, True, UNCLEAR),
    ],
)
def test_verdicts(shift, higher, verdict):
    reference = scores(0, between=0.1)
    rng = np.random.default_rng(2)
    other = [unit + shift + 0.1 * rng.normal(size=unit.shape) for unit in reference]
    found = compare_with(
        reference, {"it": other}, comparisons=3, higher_is_better=higher
    )
    assert found["it"].verdict == verdict


def test_identical_candidates_do_not_differ():
    reference = scores(0)
    found = compare_with(reference, {"it": reference}, comparisons=1)
    assert found["it"].verdict == UNCLEAR


# ------------------------------------------------------------------ simulated scores


def false_alarms(tasks, others, repetitions, interaction, seed=0):
    """Rate at which any of several equal candidates is called better."""
    rng = np.random.default_rng(seed)
    alarms = 0
    for _ in range(repetitions):
        effects = interaction * rng.normal(size=(others + 1, tasks, 1, 1))
        drawn = effects + 0.05 * rng.normal(size=(others + 1, tasks, 1, 20))
        named = {str(n): list(drawn[n + 1]) for n in range(others)}
        found = compare_with(list(drawn[0]), named, comparisons=others)
        alarms += any(result.verdict == BETTER for result in found.values())
    return alarms / repetitions


@pytest.mark.parametrize(("tasks", "others"), [(5, 1), (5, 4), (8, 4)])
@pytest.mark.parametrize("interaction", [0.0, 0.03])
def test_false_alarms_are_rare(tasks, others, interaction):
    # Of 1,500 with a rate of 2.5 %, 3.7 % or more has a probability below 0.3 %.
    assert false_alarms(tasks, others, 1500, interaction) < 0.037


def test_whole_searches_rarely_raise_false_alarms_and_find_what_is_better():
    equal = simulated.study(simulated.Model([0.7] * 4, 5), 400, 0, nested=False)
    assert equal["false_alarms"] <= 0.05
    better = simulated.Model([0.7, 0.7, 0.7, 0.85], 6)
    found = simulated.study(better, 200, 0, nested=False)
    assert found["power"] > 0.6
    assert found["chooses_best"] > 0.95


def test_nested_estimate_is_unbiased_where_the_best_mean_is_not():
    model = simulated.Model([0.7] * 4, 6, interaction=0.05)
    found = simulated.study(model, 400, 0, nested=True)
    assert abs(found["bias_of_nested"]) < found["standard_error_of_nested"] / 4
    assert found["bias_of_cross_validation"] > 2 * abs(found["bias_of_nested"])


def test_percentiles_of_the_bootstrap_raise_more_false_alarms():
    # The reason why the interval uses Student's t.
    model = simulated.Model([0.7] * 4, 5)
    assert simulated.percentile_false_alarms(model, 300, 0, 200) > 0.05
