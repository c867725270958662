"""Averages over seeds, and paired differences on the same test tasks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from experiments.tables.results import BySeed, Result
from mlti_jax.api._compare import crossed_interval
from mlti_jax.training import paired_difference
from mlti_jax.training._evaluation import mean_and_interval

# Fields that are equal if two results are on the same test tasks.
SAME_TASKS = (
    "dataset",
    "metric",
    "ways",
    "shots",
    "queries",
    "num_tasks",
    "eval_seed",
    "checksums",
    "train_steps",
)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Average over the seeds of a run.

    Attributes:
      mean: mean over tasks and seeds.
      ci95: half-width of the 95 % interval over tasks, each averaged over seeds.
      deviation: standard deviation of the seeds' means; NaN for a single seed.
      ci95_with_seeds: half-width of the 95 % interval over tasks and seeds, as in
        `mlti_jax.compare`; that over tasks for a single seed.
    """

    mean: float
    ci95: float
    deviation: float
    ci95_with_seeds: float


def _task_mismatch(results: list[Result]) -> str:
    """Names a field in which results differ so their tasks differ; else empty."""
    for field in SAME_TASKS:
        first = results[0][field]
        if any(result[field] != first for result in results):
            return f"different {field}"
    return ""


def summarize(by_seed: BySeed) -> Summary | str:
    """Average over the seeds of a run, or says why they cannot be averaged."""
    results = list(by_seed.values())
    if reason := _task_mismatch(results):
        return f"seeds with {reason}"
    values = np.array([result["per_task"] for result in results])
    mean, ci95 = mean_and_interval(values.mean(axis=0))
    return Summary(mean, ci95, _deviation(values), crossed_interval(values)[1])


@dataclasses.dataclass(frozen=True)
class Difference:
    """Paired difference between a run and a baseline, on the same tasks.

    Attributes:
      mean: mean over tasks, each averaged over the seeds that both have.
      ci95: half-width of the 95 % interval over tasks.
      deviation: standard deviation of the seeds' differences; NaN for a single seed.
      ci95_with_seeds: half-width of the 95 % interval over tasks and seeds, as in
        `mlti_jax.compare`; that over tasks for a single seed.
      seeds: number of seeds that both have.
    """

    mean: float
    ci95: float
    deviation: float
    ci95_with_seeds: float
    seeds: int


def compare(by_seed: BySeed, baseline: BySeed) -> Difference | str:
    """Return the paired difference to a baseline, or why they cannot be compared."""
    seeds = sorted(by_seed.keys() & baseline.keys())
    if not seeds:
        return "no seed in common"
    sides = [[side[seed] for seed in seeds] for side in (by_seed, baseline)]
    if reason := _task_mismatch(sides[0] + sides[1]):
        return reason
    ours, theirs = (np.array([result["per_task"] for result in side]) for side in sides)
    mean, ci95 = paired_difference(ours.mean(axis=0), theirs.mean(axis=0))
    with_seeds = crossed_interval(ours - theirs)[1]
    return Difference(mean, ci95, _deviation(ours - theirs), with_seeds, len(seeds))


def _deviation(values: np.ndarray) -> float:
    """Standard deviation of the seeds' means of `[seeds, tasks]`; NaN for one seed."""
    return float(values.mean(axis=1).std(ddof=1)) if len(values) > 1 else math.nan
