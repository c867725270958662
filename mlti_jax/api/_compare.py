"""The comparison of strategies on the same test tasks, with one or more seeds."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax

from mlti_jax import parallel, report
from mlti_jax._internal.checks import check_range
from mlti_jax._internal.progress import (
    number_format,
    say,
    silence,
    without_repeats,
)
from mlti_jax.api._fit import as_splits, fit
from mlti_jax.api._model import FittedLearner
from mlti_jax.data import Splits
from mlti_jax.errors import InputError
from mlti_jax.strategies._registry import parse
from mlti_jax.training._config import flat_fields
from mlti_jax.training._evaluation import mean_and_interval
from mlti_jax.training._metrics import format_interval

_HELPS, _HURTS, _UNCLEAR = "helps", "hurts", "no clear difference"
_MAX_SEEDS = 1000
_MAX_SEED = 2**32 - 1


class Difference(NamedTuple):
    """The paired difference between a strategy and the first one, on the same tasks.

    Attributes:
      mean: mean difference of the metric over tasks and seeds.
      ci95: half-width of its 95 % interval, see `compare`.
      verdict: `helps`, `hurts` or `no clear difference`.
      per_seed: mean difference over tasks, for each seed.
    """

    mean: float
    ci95: float
    verdict: str
    per_seed: tuple[float, ...]

    @property
    def seed_std(self) -> float:
        """Standard deviation of the difference over seeds; NaN for a single seed."""
        if len(self.per_seed) < 2:
            return math.nan
        return float(np.std(self.per_seed, ddof=1))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `compare`; printed as a table of the strategies.

    Attributes:
      runs: the fitted learners of each strategy, by name; one for each seed.
      differences: of each strategy but the first, against the first.
    """

    runs: dict[str, tuple[FittedLearner, ...]]
    differences: dict[str, Difference]

    @property
    def learners(self) -> dict[str, FittedLearner]:
        """The fitted learner of each strategy, of the first seed."""
        return {name: learners[0] for name, learners in self.runs.items()}

    @property
    def verdict(self) -> str:
        """One sentence for each strategy but the first."""
        return "\n".join(self._sentence(name) for name in self.differences)

    def __repr__(self) -> str:
        metric, setup = self._setup()
        first, width = next(iter(self.runs)), max(10, *map(len, self.runs))
        lines = [f"{metric} on {setup}:"]
        for name in self.runs:
            line = f"  {name:{width}} {self._value(name)}"
            if name != first:
                line += f"   {self._against_first(name)}, paired"
            lines.append(line)
        return "\n".join(lines)

    def _sentence(self, name: str) -> str:
        verdict, first = self.differences[name].verdict, next(iter(self.runs))
        verdict = f"{name} {verdict}" if verdict != _UNCLEAR else f"{name}: {verdict}"
        metric, setup = self._setup()
        values = " and ".join(f"{n} {self._value(n)}" for n in (name, first))
        return f"{verdict} ({metric} {self._against_first(name)}, on {setup}; {values})"

    def _setup(self) -> tuple[str, str]:
        """Return the metric, and tasks and runs in words."""
        learners = next(iter(self.runs.values()))
        result, number = learners[0].result, len(learners)
        runs = "one training run" if number == 1 else f"{number} training runs"
        tasks = f"the same {result['num_tasks']} test tasks"
        return result["metric"], f"{tasks}, {runs} each"

    def _value(self, name: str) -> str:
        """Return the mean over seeds, with its interval over tasks."""
        metric = self.runs[name][0].result["metric"]
        values = _per_task(self.runs[name]).mean(axis=0)
        return format_interval(metric, *mean_and_interval(values))

    def _against_first(self, name: str) -> str:
        metric, first = self._setup()[0], next(iter(self.runs))
        found = self.differences[name]
        text = format_interval(metric, found.mean, found.ci95, sign="+")
        if len(found.per_seed) > 1:
            std = f"{found.seed_std:{number_format(found.mean, found.ci95)}}"
            if metric == "accuracy":
                std = f"{100 * found.seed_std:.2f} %"
            text += f" (standard deviation over seeds {std})"
        return f"{text} against {first}"


def compare(
    tasks: Splits | Mapping[str, Any],
    strategies: Sequence[str] = ("vanilla", "mlti"),
    *,
    learner: str | None = None,
    network: Any = None,
    adapted: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    ways: int | None = None,
    shots: int | None = None,
    steps: int = 2000,
    seed: int = 0,
    seeds: int = 1,
    workdir: str | pathlib.Path | None = None,
    verbose: bool = True,
    overrides: Mapping[str, Any] | None = None,
) -> Comparison:
    r"""Fit a learner with each strategy and compare them on the same test tasks.

    With the same seed, all start from the same network and the same data. Test tasks
    do not depend on the seed. Let $d_{st}$ be the difference of the metric between a
    strategy and the first one, for seed s of S and task t of T.

    With a single seed, the 95 % interval of the mean difference covers the choice of
    test tasks, not the randomness of training. Its half-width is $c_T = 1.96\,
    \sqrt{\mathrm{Var}_t(\bar d_t) / T}$, where $\bar d_t$ is the mean over seeds.

    With several seeds, it covers both. Its half-width is $\sqrt{c_T^2 + c_S^2}$ with
    $c_S = q_{S-1} \sqrt{\mathrm{Var}_s(\bar d_s) / S}$, where $\bar d_s$ is the mean
    over tasks and $q_{S-1}$ the 97.5 % quantile of Student's t distribution: 12.7 for
    two seeds, 4.3 for three, 2.8 for five. In simulations with independent effects of
    seeds and tasks, $d_{st} = \mu + a_s + b_t + e_{st}$, it contains $\mu$ in about
    95 % of the cases or more, since the variance of e enters both terms.

    A strategy `helps` or `hurts` if 0 is outside of the interval. The verdict is
    printed, unless `verbose` is False, and is an attribute of the result.

    Args:
      tasks: as in `fit`.
      strategies: two or more names; the others are compared with the first.
      learner: the learner of all strategies, as in `fit`.
      network: the network of all strategies, as in `fit`.
      adapted: the adapted parameters, as in `fit`.
      optimizer: the optimizer of all strategies, as in `fit`.
      ways: classes per task, as in `fit`.
      shots: support samples per class, as in `fit`.
      steps: number of meta-training steps of each run.
      seed: first seed of initialization and training, the same for all strategies.
      seeds: number of runs of each strategy, with the seeds `seed`, `seed + 1`, ...
      workdir: directory for `report.html` and the work directory of each strategy,
        `<strategy>` for the first seed and `<strategy>/seed<number>` for the others, in
        which interrupted runs resume; None keeps everything in memory.
      verbose: whether to print choices, progress and results.
      overrides: fields of the config by name, as in `fit`.
    """
    names = tuple(strategies)
    if isinstance(strategies, str) or len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"strategies is {strategies!r}; expected two or more different names, such "
            "as ('vanilla', 'mlti')"
        )
    for name in names:
        parse(name)  # raises before the first of them is trained
    _check_seeds(seed, seeds, overrides)
    parallel.use_all_cores()  # before data is put on devices
    splits = as_splits(tasks)
    arguments: dict[str, Any] = {
        "network": network,
        "adapted": adapted,
        "optimizer": optimizer,
        "ways": ways,
        "shots": shots,
        "steps": steps,
        "verbose": verbose,
        "overrides": overrides,
    }
    runs: dict[str, tuple[FittedLearner, ...]] = dict.fromkeys(names, ())
    with silence(not verbose), without_repeats():
        for number in range(seeds):
            for name in names:
                say(f"--- {name}" + (f", seed {seed + number}" if seeds > 1 else ""))
                folder = None if workdir is None else pathlib.Path(workdir) / name
                if folder is not None and number:
                    folder /= f"seed{seed + number}"
                fitted = fit(
                    splits,
                    learner,
                    name,
                    seed=seed + number,
                    workdir=folder,
                    **arguments,
                )
                runs[name] += (fitted,)
    differences = {name: difference(runs[name], runs[names[0]]) for name in names[1:]}
    comparison = Comparison(runs, differences)
    if verbose:
        print(comparison.verdict)
    if workdir is not None:
        with silence(not verbose):
            _write_report(comparison, workdir)
    return comparison


def _write_report(comparison: Comparison, workdir: str | pathlib.Path) -> None:
    """Write `report.html` of the means over seeds."""
    results = {}
    for name, learners in comparison.runs.items():
        values = _per_task(learners).mean(axis=0)
        mean, ci95 = mean_and_interval(values)
        results[name] = {
            **learners[0].result,
            "mean": mean,
            "ci95": ci95,
            "per_task": values.tolist(),
        }
    report.write_comparison(
        comparison.learners,
        results,
        workdir,
        verdicts={
            name: (found.mean, found.ci95, found.verdict)
            for name, found in comparison.differences.items()
        },
        runs=len(next(iter(comparison.runs.values()))),
    )


def _check_seeds(seed: int, seeds: int, overrides: Mapping[str, Any] | None) -> None:
    check_range("seeds", seeds, _MAX_SEEDS)
    if seeds == 1:
        return
    check_range("seed", seed, _MAX_SEED + 1 - seeds, smallest=0)
    if isinstance(overrides, Mapping) and "seed" in flat_fields(overrides):
        raise InputError(
            f"overrides has the field 'seed', which would give all {seeds} runs of a "
            "strategy the same seed; use the argument seed"
        )


def difference(
    learners: Sequence[FittedLearner], others: Sequence[FittedLearner]
) -> Difference:
    """Return the paired difference from others on their test tasks, seed by seed."""
    values = _per_task(learners) - _per_task(others)
    mean, ci95 = crossed_interval(values)
    sign = 1 if learners[0].learner.objective.higher_is_better else -1
    verdict = _UNCLEAR
    if abs(mean) > ci95:
        verdict = _HELPS if sign * mean > 0 else _HURTS
    return Difference(mean, ci95, verdict, tuple(values.mean(axis=1).tolist()))


def crossed_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of values `[S, T]`, and its 95 % half-width over seeds and tasks.

    `compare` has the equations.
    """
    mean, over_tasks = mean_and_interval(values.mean(axis=0))
    number = len(values)
    if number == 1:
        return mean, over_tasks
    from scipy.special import stdtrit  # here, since it is slow to import

    deviation = values.mean(axis=1).std(ddof=1)
    over_seeds = stdtrit(number - 1, 0.975) * deviation / math.sqrt(number)
    return mean, math.hypot(over_tasks, float(over_seeds))


def _per_task(learners: Sequence[FittedLearner]) -> np.ndarray:
    """Return the metric of each seed and task, float64 `[S, T]`."""
    return np.array([learner.result["per_task"] for learner in learners], np.float64)
