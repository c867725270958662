"""Plots of the remainders and of the variance between tasks."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import numpy as np

from experiments.theory.remainders import BY, NOISE, PRINTED, RIGHT, RIGHT_MEAN
from mlti_jax._internal.figures import (
    COLORS,
    COLUMN_WIDTH,
    new_figure,
    save_with_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EIGENVALUE_TICKS = tuple(m * 10.0**n for n in range(-3, 5) for m in (1, 2, 3, 5))
STYLES = {
    RIGHT: ("o-", COLORS[2], "correct constants"),
    PRINTED: ("s-", COLORS[1], "as printed"),
    RIGHT_MEAN: ("^--", COLORS[4], r"as printed, with the correct $\bar\lambda$"),
}
SHRUNK = {"features": "size of the features", "spread": "spread of the mixtures"}
PARTS = {
    "within_class": "within\na class",
    "between_classes": "between\nclasses",
    "between_tasks": "between\ntasks",
}
CURVES = {
    "total": ("o-", COLORS[1], "partners from all tasks"),
    "within_task": ("s-", COLORS[2], "partners from the same task"),
}


def remainders(results: list[dict], path: pathlib.Path) -> None:
    """Plot remainders against the size of the perturbation, one row per case."""
    fig = new_figure(COLUMN_WIDTH, 1.45 * len(results))
    axes = fig.subplots(len(results), 2, sharex=True, sharey=True, squeeze=False)
    for row, result in zip(axes, results, strict=True):
        for axis, by in zip(row, BY, strict=True):
            remainder = result["remainder"][by]
            for label in filter(remainder.get, STYLES):
                style, color, name = STYLES[label]
                values = np.array(remainder[label])
                values[values < NOISE] = np.nan
                line = {"color": color, "ms": 3, "lw": 1.2, "label": name}
                axis.loglog(result["sizes"], values, style, **line)
            _guides(axis, result, by)
        row[0].set_ylabel("remainder")
        row[0].set_title(result["case"], fontsize=8, loc="left", fontweight="bold")
    for axis, by in zip(axes[-1], BY, strict=True):
        axis.set_xlabel(SHRUNK[by])
    save_with_legend(fig, axes, path, columns=3, legend_of=axes[0, -1])


def _guides(axis: Axes, result: dict, by: str) -> None:
    """Draw guides with the slope of a correct expansion and with slope 2."""
    remainder, order = result["remainder"][by], result["order"][by]
    _guide(axis, order, result["sizes"][5], remainder[RIGHT][5] / 30)
    size = result["sizes"][9]
    _guide(axis, 2, size, remainder[PRINTED][0] * size**2 / 30)


def _guide(axis: Axes, slope: int, size: float, value: float) -> None:
    """Draw a line through (size, value), labeled with its slope."""
    ends = np.array([size / 2, 6 * size])
    axis.loglog(ends, value * (ends / size) ** slope, ":", color="grey", lw=1)
    axis.text(
        0.8 * size, value / 3, f"slope {slope}", color="grey", fontsize=7, va="top"
    )


def total_variance(results: list[dict], path: pathlib.Path) -> None:
    """Plot the shares of the variance (left) and the largest eigenvalues (right)."""
    fig = new_figure(COLUMN_WIDTH, 0.6 + 1.7 * len(results))
    axes = fig.subplots(len(results), 2, squeeze=False)
    for (left, right), result in zip(axes, results, strict=True):
        trace = result["trace"]
        for place, part in enumerate(PARTS):
            share = 100 * trace[part] / trace["total"]
            left.barh(place, share, color=COLORS[0], height=0.6)
            left.text(share + 2, place, f"{share:.1f} %", fontsize=7, va="center")
        left.set_yticks(range(len(PARTS)), PARTS.values())
        left.set_ylim(len(PARTS) - 0.5, -0.5)
        left.set_xlim(0, 115)
        left.set_xticks((0, 50, 100))
        left.set_title(result["data"], fontsize=8, loc="left", fontweight="bold")
        for part, (style, color, name) in CURVES.items():
            values = result["eigenvalues"][part]
            line = {"color": color, "ms": 3, "lw": 1.2, "label": name}
            right.semilogy(np.arange(1, len(values) + 1), values, style, **line)
        right.set_ylabel("eigenvalue")
        low, high = right.get_ylim()
        ticks = [tick for tick in EIGENVALUE_TICKS if low <= tick <= high]
        right.set_yticks(ticks[:: len(ticks) // 4 or 1])
        right.yaxis.set_major_formatter("{x:g}")
        right.minorticks_off()
    axes[-1, 0].set_xlabel("share of the variance, %")
    axes[-1, 1].set_xlabel("index of the eigenvalue")
    save_with_legend(fig, axes, path, columns=2, legend_of=axes[0, -1])
