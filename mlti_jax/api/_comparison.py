"""Whether interpolation helps: strategies side by side on one's own held-out tasks."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mlti_jax._internal.progress import say
from mlti_jax.api._fitted import FittedLearner
from mlti_jax.api._fitting import as_splits, fit
from mlti_jax.data import Splits
from mlti_jax.errors import InputError
from mlti_jax.training import format_interval, paired_difference


class Difference(NamedTuple):
    """How a strategy does against the first one, on the same tasks.

    Attributes:
      mean: of the metric's differences.
      ci95: half-width of its 95 % interval.
      verdict: `helps`, `hurts` or `no clear difference`.
    """

    mean: float
    ci95: float
    verdict: str


class Comparison(NamedTuple):
    """What `compare` has found.

    Attributes:
      learners: one for each strategy, by its name.
      differences: for each but the first, against the first.
    """

    learners: dict[str, FittedLearner]
    differences: dict[str, Difference]

    def __str__(self) -> str:
        first, *others = self.learners
        return "\n".join(self._line(first, name) for name in others)

    def _line(self, first: str, name: str) -> str:
        mean, ci95, verdict = self.differences[name]
        result = self.learners[name].result
        values = " and ".join(
            f"{other} {format_interval(r, r['mean'], r['ci95'])}"
            for other, r in ((name, result), (first, self.learners[first].result))
        )
        verdict = f"{name} {verdict}" if verdict != UNCLEAR else f"{name}: {verdict}"
        return (
            f"{verdict} ({result['metric']} "
            f"{format_interval(result, mean, ci95, sign='+')} against {first}, on the "
            f"same {result['num_tasks']} test tasks, one training run each; {values})"
        )


HELPS, HURTS, UNCLEAR = "helps", "hurts", "no clear difference"


def compare(
    tasks: Splits | Mapping[str, Any],
    strategies: Sequence[str] = ("vanilla", "mlti"),
    *,
    workdir: str | pathlib.Path | None = None,
    verbose: bool = True,
    **arguments: Any,
) -> Comparison:
    """Fits a learner with each strategy and compares them on the same test tasks.

    All start from the same network and see the same data. The interval tells how far
    the test tasks determine the difference; of the chance in training, one seed tells
    nothing: where much depends on it, compare with several.

    Args:
      tasks: as in `fit`.
      strategies: the first is what the others are compared with.
      workdir: each strategy is trained in its own part of it; None for none.
      verbose: whether to print.
      **arguments: of `fit`, the same for all strategies.
    """
    names = tuple(strategies)
    if isinstance(strategies, str) or len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"strategies is {strategies!r}; expected two or more different names, such "
            "as ('vanilla', 'mlti')"
        )
    splits = as_splits(tasks)
    learners = {}
    for name in names:
        if verbose:
            say(f"--- {name}")
        learners[name] = fit(
            splits,
            strategy=name,
            workdir=None if workdir is None else pathlib.Path(workdir) / name,
            verbose=verbose,
            **arguments,
        )
    differences = {
        name: difference(learners[name], learners[names[0]]) for name in names[1:]
    }
    comparison = Comparison(learners, differences)
    if verbose:
        print(comparison)
    return comparison


def difference(one: FittedLearner, other: FittedLearner) -> Difference:
    """How `one` does against `other`, task by task."""
    mean, ci95 = paired_difference(one.result["per_task"], other.result["per_task"])
    sign = 1 if one.learner.objective.higher_is_better else -1
    verdict = UNCLEAR
    if abs(mean) > ci95:
        verdict = HELPS if sign * mean > 0 else HURTS
    return Difference(mean, ci95, verdict)
