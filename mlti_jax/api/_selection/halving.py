"""The search of `select`: successive halving, and nested cross-validation.

Cross-validation holds out one fold j at a time. For the estimate on new tasks, the
whole choice is repeated for every outer fold k, with the inner folds j != k: a fit of
that choice sees neither k nor j. The same fit, without {j, k}, serves the choices of
both folds, and the fit without {k} of the plain cross-validation tests the choice of
fold k. So nesting K folds takes K (K - 1) / 2 further fits of each candidate, not
K (K - 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mlti_jax.api._selection.bootstrap import Scores, unit_means
from mlti_jax.api._selection.trainer import Fit

ETA = 4  # ratio of the steps of consecutive rungs

# Scores `[tasks, episodes]` of a fit by held-out fold.
Found = Mapping[int, np.ndarray]


class Rung(NamedTuple):
    """A round of successive halving: its steps, and how many candidates enter it."""

    steps: int
    candidates: int


class Choice(NamedTuple):
    """The outcome of one search.

    Attributes:
      winner: position of the best candidate.
      reached: number of rungs that each candidate took part in.
    """

    winner: int
    reached: tuple[int, ...]


class Search(NamedTuple):
    """The outcome of all searches.

    Attributes:
      choice: on all folds.
      outer: for each outer fold, on the other folds; empty without nesting.
    """

    choice: Choice
    outer: tuple[Choice, ...]


def plan_rungs(candidates: int, steps: int) -> list[Rung]:
    """Return the rungs for a number of candidates; the last one has all steps.

    Up to three candidates are all trained to the end. Of more, the better half of each
    rung enters the next one, which has four times as many steps.
    """
    number = 1 if candidates <= 3 else 2 if candidates <= 8 else 3
    rungs = []
    for left in range(number - 1, -1, -1):
        rungs.append(Rung(max(1, steps // ETA**left), candidates))
        candidates = -(-candidates // 2)
    return rungs


def count_fits(rungs: Sequence[Rung], folds: int, nested: bool, seeds: int) -> int:
    """Return the number of fits, if all searches keep the same candidates."""
    sets = folds + (folds * (folds - 1) // 2 if nested else 0)
    return seeds * sets * sum(rung.candidates for rung in rungs)


class Searcher:
    """Runs the searches; fits that several of them need run once.

    Args:
      candidates: number of candidates.
      reference: position of the reference, which takes part in all rungs.
      folds: number of folds.
      rungs: the rounds of successive halving.
      seeds: number of repetitions of each fit with other seeds.
      higher_is_better: whether a larger score is better.
      execute: runs fits, and returns the scores of each.
    """

    def __init__(
        self,
        candidates: int,
        reference: int,
        folds: int,
        rungs: Sequence[Rung],
        seeds: int,
        higher_is_better: bool,
        execute: Callable[[list[Fit]], Mapping[Fit, Found]],
    ) -> None:
        self.reference, self.rungs = reference, list(rungs)
        self.higher_is_better = higher_is_better
        self._candidates, self._folds, self._seeds = candidates, folds, seeds
        self._sign = 1 if higher_is_better else -1
        self._execute = execute
        self._found: dict[Fit, Found] = {}

    def search(self, nested: bool) -> Search:
        """Choose on all folds and, if `nested`, without each of the folds."""
        problems: list[int | None] = [None, *(range(self._folds) if nested else ())]
        alive = {problem: list(range(self._candidates)) for problem in problems}
        reached = {problem: [0] * self._candidates for problem in problems}
        for number, rung in enumerate(self.rungs):
            last = number + 1 == len(self.rungs)
            self._run(
                fit
                for problem, survivors in alive.items()
                for candidate in survivors
                for fit in self._fits(candidate, problem, rung.steps)
            )
            for problem, survivors in alive.items():
                for candidate in survivors:
                    reached[problem][candidate] = number + 1
                ranked = self._ranked(survivors, problem, rung.steps)
                kept = 1 if last else self.rungs[number + 1].candidates
                alive[problem] = ranked[:kept]
                if not last and self.reference not in alive[problem]:
                    alive[problem].append(self.reference)
        choices = {
            problem: Choice(alive[problem][0], tuple(reached[problem]))
            for problem in problems
        }
        steps = self.rungs[-1].steps
        # To test the choice of each outer fold on that fold.
        self._run(
            Fit(choices[fold].winner, (fold,), steps, repeat)
            for fold in problems
            if fold is not None
            for repeat in range(self._seeds)
        )
        outer = tuple(choices[fold] for fold in problems if fold is not None)
        return Search(choices[None], outer)

    def scores(self, candidate: int, rung: int) -> Scores:
        """Return the scores of a candidate at a rung on all folds, over its seeds."""
        steps = self.rungs[rung].steps
        return [self.fold_scores(candidate, fold, steps) for fold in range(self._folds)]

    def fold_scores(
        self, candidate: int, fold: int, steps: int, outer: int | None = None
    ) -> np.ndarray:
        """Return the mean over seeds of the scores on one fold, `[tasks, episodes]`.

        Args:
          candidate: the candidate.
          fold: the fold that it is tested on.
          steps: number of training steps.
          outer: a further fold that it was not trained on.
        """
        held_out = _sorted(fold, outer)
        return np.mean(
            [
                self._found[Fit(candidate, held_out, steps, repeat)][fold]
                for repeat in range(self._seeds)
            ],
            axis=0,
        )

    def _fits(self, candidate: int, outer: int | None, steps: int) -> Iterable[Fit]:
        inner = (fold for fold in range(self._folds) if fold != outer)
        for fold, repeat in itertools.product(inner, range(self._seeds)):
            yield Fit(candidate, _sorted(fold, outer), steps, repeat)

    def _run(self, fits: Iterable[Fit]) -> None:
        missing = [fit for fit in dict.fromkeys(fits) if fit not in self._found]
        if missing:
            self._found.update(self._execute(missing))

    def _ranked(
        self, candidates: Sequence[int], outer: int | None, steps: int
    ) -> list[int]:
        """Sort candidates from best to worst; of equal ones the first is first."""

        def mean(candidate: int) -> float:
            scores = [
                self.fold_scores(candidate, fold, steps, outer)
                for fold in range(self._folds)
                if fold != outer
            ]
            return self._sign * float(unit_means(scores).mean())

        return sorted(candidates, key=lambda candidate: (-mean(candidate), candidate))


def _sorted(fold: int, outer: int | None) -> tuple[int, ...]:
    return (fold,) if outer is None else (min(fold, outer), max(fold, outer))
