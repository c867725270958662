r"""False alarms, power and bias of `select` on simulated scores.

The score of candidate c on episode e of task k, after training without the folds H:

$$\mu_c + a_k + b_{ck} + d_{cH} + f_{ke} + g_{cke},$$

with independent normal effects of the task, of the candidate on the task, of the
training run, of the episode, and of the candidate on the episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mlti_jax.api._selection.bootstrap import BETTER
from mlti_jax.api._selection.halving import Found, Searcher, plan_rungs
from mlti_jax.api._selection.result import candidate_results, nested_estimate
from mlti_jax.api._selection.trainer import Fit

_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Model:
    """Standard deviations of the effects, and the sizes.

    Attributes:
      means: expected score of each candidate; the first is the reference.
      tasks: number of tasks, each a fold of its own.
      episodes: number of episodes per task.
      task, interaction, training, episode, noise: standard deviations of a, b, d, f
        and g.
    """

    means: Sequence[float]
    tasks: int = 6
    episodes: int = 20
    task: float = 0.05
    interaction: float = 0.02
    training: float = 0.01
    episode: float = 0.08
    noise: float = 0.05


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one simulated selection concluded.

    Attributes:
      better: positions of the candidates that were called clearly better.
      winner: the chosen candidate.
      truth: its expected score.
      cross_validated: its mean over all folds.
      nested: the nested estimate; NaN without.
      error: the standard error of the nested estimate; NaN without.
    """

    better: tuple[int, ...]
    winner: int
    truth: float
    cross_validated: float
    nested: float
    error: float


def simulate(model: Model, rng: np.random.Generator, *, nested: bool) -> Outcome:
    """Run the search of `select` on simulated scores."""
    number, tasks, episodes = len(model.means), model.tasks, model.episodes
    task = model.task * rng.normal(size=tasks)
    interaction = model.interaction * rng.normal(size=(number, tasks))
    shared = model.episode * rng.normal(size=(tasks, episodes))

    def execute(fits: list[Fit]) -> dict[Fit, Found]:
        found = {}
        for fit in fits:
            training = model.training * rng.normal()
            noise = model.noise * rng.normal(size=(len(fit.held_out), episodes))
            found[fit] = {
                fold: (
                    model.means[fit.candidate]
                    + task[fold]
                    + interaction[fit.candidate, fold]
                    + training
                    + shared[fold]
                    + noise[place]
                )[None]
                for place, fold in enumerate(fit.held_out)
            }
        return found

    rungs = plan_rungs(number, _STEPS)
    searcher = Searcher(number, 0, tasks, rungs, 1, True, execute)
    search = searcher.search(nested)
    names = [str(candidate) for candidate in range(number)]
    results = candidate_results(searcher, search, names)
    winner = search.choice.winner
    expected = nested_estimate(searcher, search, names)
    return Outcome(
        better=tuple(
            candidate
            for candidate, result in enumerate(results.values())
            if result.comparison is not None
            and result.steps == _STEPS
            and result.comparison.verdict == BETTER
        ),
        winner=winner,
        truth=model.means[winner],
        cross_validated=results[names[winner]].score.mean,
        nested=expected.score.mean if expected else np.nan,
        error=expected.score.error if expected else np.nan,
    )


def study(model: Model, repetitions: int, seed: int, *, nested: bool) -> dict:
    """Repeat a simulation; return rates, power and biases."""
    rng = np.random.default_rng(seed)
    outcomes = [simulate(model, rng, nested=nested) for _ in range(repetitions)]
    best = int(np.argmax(model.means))
    nulls = [c for c, mean in enumerate(model.means) if c and mean <= model.means[0]]
    return {
        "tasks": model.tasks,
        "means": list(model.means),
        "repetitions": repetitions,
        "false_alarms": float(
            np.mean([any(c in nulls for c in o.better) for o in outcomes])
        ),
        "power": float(np.mean([best in o.better for o in outcomes])) if best else None,
        "chooses_best": float(np.mean([o.winner == best for o in outcomes])),
        "bias_of_cross_validation": float(
            np.mean([o.cross_validated - o.truth for o in outcomes])
        ),
        "bias_of_nested": float(np.mean([o.nested - o.truth for o in outcomes]))
        if nested
        else None,
        "standard_error_of_nested": float(np.mean([o.error for o in outcomes]))
        if nested
        else None,
    }


def percentile_false_alarms(
    model: Model, repetitions: int, seed: int, resamples: int = 400
) -> float:
    """Return the false-alarm rate of plain percentiles of the hierarchical bootstrap.

    The reference against each other candidate, both without halving, with Bonferroni's
    correction. All candidates of the model must have the same mean.
    """
    rng = np.random.default_rng(seed)
    others, tasks, episodes = len(model.means) - 1, model.tasks, model.episodes
    alarms = 0
    level = 0.05 / 2 / others
    for _ in range(repetitions):
        per_task = model.interaction * rng.normal(size=(others + 1, tasks))
        per_task += model.training * rng.normal(size=(others + 1, tasks))
        scores = per_task[..., None] + model.noise * rng.normal(
            size=(others + 1, tasks, episodes)
        )
        differences = scores[1:] - scores[0]
        drawn = rng.integers(tasks, size=(resamples, tasks, 1))
        within = rng.integers(episodes, size=(resamples, tasks, episodes))
        means = differences[:, drawn, within].mean(axis=(2, 3))
        alarms += bool((np.quantile(means, level, axis=1) > 0).any())
    return alarms / repetitions
