"""Plots of the benchmark's results."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.benchmark.breakdown import DISPATCH, PARTS
from mlti_jax._internal.figures import (
    COLORS,
    COLUMN_WIDTH,
    new_figure,
    save_with_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIO_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
SIDES = {
    "torch": "PyTorch",
    "torch_channels_last": "PyTorch, channels last",
    "torch_vmap": "PyTorch, vmap over tasks",
}
MEMORY_STYLES = {"plain": "o-", "remat": "s--", "passes": "^:"}
VARIED = {
    "tasks": "tasks, all at once",
    "tasks, passes": "tasks, 4 at a time",
    "inner_steps": "inner steps",
    "pool": "times as many samples",
}


def ratios(results: list[dict], path: pathlib.Path) -> None:
    """Plot PyTorch's step time divided by ours, one panel per strategy."""
    parts = [(*result["case"].rpartition("_")[::2], result) for result in results]
    steps = list(dict.fromkeys(step for step, _, _ in parts))
    strategies = sorted({strategy for _, strategy, _ in parts}, reverse=True)
    sides = [side for side in SIDES if any(side in r["ratio"] for r in results)]
    inches = 0.8 + len(steps) * (0.1 + 0.1 * len(sides))
    fig = new_figure(COLUMN_WIDTH, inches)
    axes = fig.subplots(1, len(strategies), squeeze=False, sharex=True, sharey=True)
    for axis, strategy in zip(axes[0], strategies, strict=True):
        own = {step: r["ratio"] for step, other, r in parts if other == strategy}
        for number, side in enumerate(sides):
            rows = [row for row, s in enumerate(steps) if side in own.get(s, {})]
            values = [own[steps[row]][side] for row in rows]
            middle = (number + 0.5) / len(sides) - 0.5
            places = [row + 0.8 * middle for row in rows]
            _ratio_bars(axis, places, values, 0.8 / len(sides), side)
        axis.axvline(1, color="black", lw=0.8)
        axis.set_title(strategy, fontsize=8)
    everything = [1.0, *(v for r in results for v in r["ratio"].values())]
    low, high = min(everything) / 2, max(everything) * 2
    ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
    axis.set(xscale="log", xlim=(low, high), ylim=(len(steps) - 0.5, -0.5))
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axes[0, 0].set_yticks(range(len(steps)), steps)
    fig.supxlabel("step time of PyTorch / ours (above 1: ours is faster)", fontsize=8)
    save_with_legend(fig, axes, path, columns=2)


def _ratio_bars(
    axis: Axes,
    places: Sequence[float],
    values: Sequence[float],
    height: float,
    side: str,
) -> None:
    """Draw bars that start at 1 (equally fast), labeled with their values."""
    color = COLORS[list(SIDES).index(side)]
    widths = np.array(values) - 1
    axis.barh(places, widths, height, left=1, color=color, label=SIDES[side])
    for place, value in zip(places, values, strict=True):
        axis.annotate(
            f"{value:.2g}" if value < 10 else f"{value:.0f}",
            (value, place),
            xytext=(2 if value >= 1 else -2, 0),
            textcoords="offset points",
            ha="left" if value >= 1 else "right",
            va="center",
            fontsize=6,
        )


def breakdown(results: list[dict], path: pathlib.Path) -> None:
    """Plot the share of each part in the step time, one bar per case."""
    from matplotlib import colormaps

    names = [result["case"] for result in results]
    fig = new_figure(COLUMN_WIDTH, 1.2 + 0.32 * len(names))
    axis = fig.subplots()
    left = np.zeros(len(names))
    shades = colormaps["viridis"](np.linspace(0.1, 0.95, len(PARTS)))
    for color, (part, label) in zip(shades, PARTS.items(), strict=True):
        width = np.array([_share(result, part) for result in results])
        axis.barh(range(len(names)), width, 0.7, left, color=color, label=label)
        left += width
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("share of the step time, %")
    save_with_legend(fig, axis, path, columns=2)


def _share(result: dict, part: str) -> float:
    """Percentage of a part; 0 if it is negative because of noise."""
    parts = {name: max(ms, 0.0) for name, ms in result["parts"].items()}
    parts.pop(DISPATCH)
    return 100 * parts[part] / sum(parts.values())


def memory(result: dict, path: pathlib.Path) -> None:
    """Plot temporary memory against inner steps, one panel per network."""
    networks = list(dict.fromkeys(row["network"] for row in result["rows"]))
    tasks = sorted({row["tasks"] for row in result["rows"]})
    fig = new_figure(COLUMN_WIDTH, 3.0)
    axes = fig.subplots(1, len(networks), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        for form, style in MEMORY_STYLES.items():
            for number, color in zip(tasks, COLORS, strict=False):
                rows = [
                    row
                    for row in result["rows"]
                    if (row["network"], row["form"], row["tasks"])
                    == (network, form, number)
                ]
                axis.plot(
                    [row["inner_steps"] for row in rows],
                    [row["temporary"] / 1e6 for row in rows],
                    style,
                    color=color,
                    ms=3,
                    lw=1.2,
                    label=f"{form}, {number} task{'s' if number > 1 else ''}",
                )
        axis.set_yscale("log")
        axis.set_title(network, fontsize=8)
        axis.set_xlabel("inner steps")
    axes[0, 0].set_ylabel("temporary memory, MB")
    save_with_legend(fig, axes[0], path, columns=3)


def scaling(result: dict, path: pathlib.Path) -> None:
    """Plot time (top) and peak memory (bottom), one column per varied quantity."""
    rows = result["rows"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    varied = list(dict.fromkeys(row["varied"] for row in rows))
    fig = new_figure(COLUMN_WIDTH, 3.8)
    axes = fig.subplots(2, len(varied), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(varied):
        for network, color in zip(networks, COLORS, strict=False):
            some = [r for r in rows if (r["network"], r["varied"]) == (network, name)]
            sizes = [row["size"] for row in some]
            times = [row["time"]["median_ms"] for row in some]
            peaks = [row["memory"]["peak"] / 1e6 for row in some]
            for axis, values in zip(axes[:, column], (times, peaks), strict=True):
                axis.plot(sizes, values, "o-", color=color, ms=3, lw=1.2, label=network)
                axis.set_xscale("log")
                axis.set_yscale("log")
                axis.set_xticks(sizes, [str(size) for size in sizes])
                axis.minorticks_off()
        axes[1, column].set_xlabel(VARIED[name])
    axes[0, 0].set_ylabel("ms per step")
    axes[1, 0].set_ylabel("peak memory, MB")
    save_with_legend(fig, axes, path, columns=2)
