"""Several seeds of a run as one number, and differences on the same tasks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from experiments.tables.store import BySeed
from mlti_jax.training import mean_and_interval, paired_difference

# What two results must have in common, so that their tasks are the same.
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
    """The seeds of a run together.

    Attributes:
      mean: over tasks and seeds.
      ci95: half-width of the 95 % interval over tasks, of each task's mean over seeds.
      deviation: standard deviation of the seeds' means; NaN for a single seed.
    """

    mean: float
    ci95: float
    deviation: float


def why_incomparable(results: list[dict]) -> str:
    """In what results differ that makes their tasks differ; empty if in nothing."""
    for field in SAME_TASKS:
        first = results[0][field]
        if any(result[field] != first for result in results):
            return f"different {field}"
    return ""


def summarise(by_seed: BySeed) -> Summary | str:
    """The seeds of a run as one number, or why they can't be one."""
    results = list(by_seed.values())
    if reason := why_incomparable(results):
        return f"seeds with {reason}"
    values = np.array([result["per_task"] for result in results])
    mean, ci95 = mean_and_interval(values.mean(axis=0))
    return Summary(mean, ci95, _deviation(values))


@dataclasses.dataclass(frozen=True)
class Difference:
    """The seeds of a run against those of a baseline, on the same tasks.

    Attributes:
      mean: over tasks, of the difference of each task's means over the seeds that both
        have.
      ci95: half-width of its 95 % interval over tasks.
      deviation: standard deviation of the seeds' differences; NaN for a single seed.
      seeds: how many both have.
    """

    mean: float
    ci95: float
    deviation: float
    seeds: int


def paired(by_seed: BySeed, baseline: BySeed) -> Difference | str:
    """The difference from a baseline on the same tasks, or why there is none."""
    seeds = sorted(by_seed.keys() & baseline.keys())
    if not seeds:
        return "no seed in common"
    sides = [[side[seed] for seed in seeds] for side in (by_seed, baseline)]
    if reason := why_incomparable(sides[0] + sides[1]):
        return reason
    ours, theirs = (np.array([result["per_task"] for result in side]) for side in sides)
    mean, ci95 = paired_difference(ours.mean(axis=0), theirs.mean(axis=0))
    return Difference(mean, ci95, _deviation(ours - theirs), len(seeds))


def _deviation(values: np.ndarray) -> float:
    """Of the seeds' means, given `[seeds, tasks]`; NaN for a single seed."""
    return float(values.mean(axis=1).std(ddof=1)) if len(values) > 1 else math.nan
