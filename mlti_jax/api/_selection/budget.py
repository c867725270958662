"""How long the training runs of `select` may be: from a time to a number of steps."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from mlti_jax._internal.checks import check_range
from mlti_jax._internal.progress import format_seconds, say
from mlti_jax.api._selection.halving import Rung, plan_rungs
from mlti_jax.api._selection.trainer import Fit, Trainer
from mlti_jax.errors import InputError

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_PROBES = (4, 8)  # steps; the first run also compiles
_LONGER = (64, 512)  # steps, until they take clearly longer than the others
_CLEARLY = 0.3  # seconds
_FEWEST = 50  # steps of the last rung
_FEW = 300  # steps, below which a warning is printed


class Cost(NamedTuple):
    """The time that a candidate takes, in seconds.

    Attributes:
      compilation: once for each shape of the training pool.
      fit: of each fit, apart from its steps.
      step: of each step.
    """

    compilation: float
    fit: float
    step: float


def parse_budget(budget: object) -> tuple[int | None, float | None]:
    """Return `(steps, None)` or `(None, seconds)`; raise `InputError` if malformed."""
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", budget)
        if found and float(found[1]) > 0:
            return None, float(found[1]) * _UNITS[found[2]]
    elif not isinstance(budget, float):
        check_range("budget", budget, 2**31 - 1)
        return int(budget), None  # type: ignore[call-overload]
    raise InputError(
        f"budget is {budget!r}; expected a time such as '30s', '10min' or '2h', or a "
        "number of training steps per fit"
    )


def measure(trainer: Trainer) -> list[Cost]:
    """Measure each candidate with a few short fits."""

    def seconds(number: int, steps: int) -> float:
        start = time.monotonic()
        trainer.run(Fit(number, (0,), steps))
        return time.monotonic() - start

    costs = []
    for number, candidate in enumerate(trainer.candidates):
        first, short = (seconds(number, steps) for steps in _PROBES)
        for steps in _LONGER:
            long = seconds(number, steps)
            if long - short > _CLEARLY:
                break
        step = max(1e-6, (long - short) / (steps - _PROBES[1]))
        fit = max(0.0, short - _PROBES[1] * step)
        costs.append(Cost(max(0.0, first - short), fit, step))
        say(
            f"{candidate.name}: {1 / step:,.0f} steps/s, {fit:.2f} s per fit, "
            f"{first - short:.1f} s to compile"
        )
    return costs


def choose_steps(
    costs: Sequence[Cost],
    seconds: float,
    *,
    fold_sets: int,
    shapes: int,
    largest: int,
    jobs: int = 1,
) -> tuple[int, str]:
    """Return the steps of the last rung that fit into a time, and a note.

    Costs are linear in the number of steps, and all candidates are assumed to be
    equally likely to reach a rung.

    Args:
      costs: of each candidate.
      seconds: the time left.
      fold_sets: number of sets of folds that each candidate is trained without, times
        the number of seeds.
      shapes: number of shapes of the training pool.
      largest: the largest number of steps.
      jobs: number of processes.
    """
    rungs = plan_rungs(len(costs), 4**6)
    share = [rung.candidates / len(costs) for rung in rungs]
    fixed = sum(
        shapes * cost.compilation + fold_sets * sum(share) * cost.fit / jobs
        for cost in costs
    )
    lengths = [rung.steps / rungs[-1].steps for rung in rungs]
    relative = sum(a * b for a, b in zip(share, lengths, strict=True))
    refit = max(cost.step for cost in costs)
    slope = sum(fold_sets * relative * cost.step / jobs for cost in costs) + refit
    affordable = int((seconds - fixed) / slope)
    steps = min(largest, max(_FEWEST, affordable))
    if steps >= 100:
        steps -= steps % 10
    needed = format_seconds(fixed + slope * steps)
    if affordable < _FEWEST:
        note = (
            f"warning: the budget is too small for {_FEWEST} steps per fit, which are "
            f"used nevertheless; about {needed}. Use nested=False, fewer candidates "
            "or folds, or a larger budget"
        )
    elif steps < min(_FEW, largest):
        note = (
            f"warning: the budget allows only {steps} steps per fit, about {needed}; "
            "the choice may differ for longer training"
        )
    else:
        note = f"{steps} steps per fit, about {needed} from here"
    return steps, note


def describe_rungs(rungs: Sequence[Rung]) -> str:
    """Return one sentence on the rounds of successive halving."""
    first, *others = rungs
    text = f"all {first.candidates} candidates with {first.steps} steps"
    for rung in others:
        text += f", then the best {rung.candidates} and the reference with {rung.steps}"
    return text
