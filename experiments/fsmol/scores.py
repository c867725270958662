"""Scores of a ranking of molecules, and tables of scores per assay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlti_jax.training._evaluation import mean_and_interval

METRICS = ("delta_auprc", "accuracy")
# Values of one method: by support size and assay, one per draw
Values = dict[int, dict[str, list[float]]]


def average_precision(scores: np.ndarray, y: np.ndarray) -> float:
    r"""Compute $\sum_n (R_n - R_{n-1}) P_n$ over the distinct thresholds.

    $R_n$ and $P_n$ are recall and precision among the samples that score at least the
    n-th largest threshold.

    Args:
      scores: larger for samples that are more likely active, `[M]`.
      y: 1 for active and 0 for inactive, `[M]`.
    """
    order = np.argsort(-scores, kind="stable")
    scores, y = scores[order], y[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(y) - 1)  # of equal scores
    hits = np.cumsum(y)[last]
    precision = hits / (last + 1)
    return float(np.sum(np.diff(hits, prepend=0) * precision) / hits[-1])


def delta_auprc(scores: np.ndarray, y: np.ndarray) -> float:
    """Compute the average precision minus that of random scores, the share of 1."""
    return average_precision(scores, y) - float(y.mean())


def score(logits: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Compute all `METRICS` of logits (or log-probabilities) `[M, 2]`."""
    return {
        "delta_auprc": delta_auprc(logits[:, 1] - logits[:, 0], y),
        "accuracy": float((logits.argmax(axis=1) == y).mean()),
    }


def per_assay(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean over the draws of each assay."""
    return {assay: float(np.mean(draws)) for assay, draws in values.items()}


def difference(
    values: Mapping[str, float], others: Mapping[str, float]
) -> tuple[float, float, int]:
    """Compare two methods on the assays that both have.

    Returns:
      The mean of `values - others`, its 95 % half-width, and the number of assays.
    """
    common = sorted(values.keys() & others.keys())
    if not common:
        return np.nan, np.nan, 0
    pairs = np.array([[values[assay], others[assay]] for assay in common])
    return *mean_and_interval(pairs[:, 0] - pairs[:, 1]), len(common)


def summary(values: Mapping[int, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Return mean over assays, 95 % half-width and number of assays per size."""
    out = {}
    for size, by_assay in values.items():
        mean, half = mean_and_interval(np.array(list(per_assay(by_assay).values())))
        out[str(size)] = {"mean": mean, "ci95": half, "assays": len(by_assay)}
    return out


def table(
    heading: str, sizes: Sequence[int], lines: Mapping[str, Sequence[str]]
) -> str:
    """Format a table with one column per support size."""
    width = max(len(name) for name in (heading, *lines)) + 2
    rows = [f"{heading:{width}}" + "".join(f"{size:>18}" for size in sizes)]
    rows += [
        f"{name:{width}}" + "".join(f"{cell:>18}" for cell in cells)
        for name, cells in lines.items()
    ]
    return "\n".join(row.rstrip() for row in rows)


def cell(mean: float, half: float, *, signed: bool = False) -> str:
    """Format a mean and its 95 % half-width."""
    if np.isnan(mean):
        return "-"
    return f"{mean:{'+' if signed else ''}.3f} ± {half:.3f}"
