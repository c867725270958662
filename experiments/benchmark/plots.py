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
    "torch": "plain",
    "torch_channels_last": "channels last",
    "torch_vmap": "vmap over tasks",
    "torch_compile": "torch.compile",
}
MEMORY_STYLES = {"plain": "o-", "remat": "s--", "passes": "^:"}
LINE_STYLES = ("o-", "s-", "^-", "D-")
COST_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
MEMORY_TICKS = (1, 10, 100, 1000, 10_000)
VARIED = {
    "tasks": "tasks, all at once",
    "tasks, passes": "tasks, 4 at a time",
    "ways": "ways",
    "shots": "shots",
    "image side": "side of images",
    "inner_steps": "inner steps",
    "pool": "times the samples",
    "classes": "classes in the pool",
}


def ratios(results: list[dict], path: pathlib.Path) -> None:
    """Plot PyTorch's step time divided by ours, one panel per strategy.

    Bars are the fastest PyTorch side, circles the plain one.
    """
    parts = [(*result["case"].rpartition("_")[::2], result) for result in results]
    steps = list(dict.fromkeys(step for step, _, _ in parts))
    strategies = sorted({strategy for _, strategy, _ in parts}, reverse=True)
    fig = new_figure(COLUMN_WIDTH, 0.8 + 0.16 * len(steps))
    axes = fig.subplots(1, len(strategies), squeeze=False, sharex=True, sharey=True)
    for axis, strategy in zip(axes[0], strategies, strict=True):
        own = {step: r for step, other, r in parts if other == strategy}
        for side, label in SIDES.items():
            bars = {
                row: own[step]["ratio"][side]
                for row, step in enumerate(steps)
                if step in own and own[step]["fastest"] == side
            }
            _ratio_bars(axis, bars, side, f"fastest: {label}")
        plain = {
            row: own[step]["ratio"]["torch"]
            for row, step in enumerate(steps)
            if step in own and "torch" in own[step]["ratio"]
        }
        axis.plot(
            list(plain.values()),
            list(plain),
            "o",
            ms=3,
            mfc="white",
            mec="black",
            mew=0.7,
            label="plain PyTorch",
        )
        axis.axvline(1, color="black", lw=0.8)
        axis.set_title(strategy, fontsize=8)
    everything = [1.0]
    for result in results:
        ratio = result["ratio"]
        everything += [ratio[result["fastest"]], ratio.get("torch", 1.0)]
    low, high = min(everything) / 1.7, max(everything) * 1.5
    ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
    axis.set(xscale="log", xlim=(low, high), ylim=(len(steps) - 0.5, -0.5))
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axes[0, 0].set_yticks(range(len(steps)), steps)
    fig.supxlabel("step time of PyTorch / ours (above 1: ours is faster)", fontsize=8)
    save_with_legend(fig, axes, path, columns=2)


def _ratio_bars(axis: Axes, values: dict[int, float], side: str, label: str) -> None:
    """Draw bars by row that start at 1 (equally fast), labeled with their values."""
    color = COLORS[list(SIDES).index(side)]
    widths = [value - 1 for value in values.values()]
    axis.barh(list(values), widths, 0.7, left=1, color=color, label=label)
    for place, value in values.items():
        axis.annotate(
            f"{value:.2g}" if value < 10 else f"{value:.0f}",
            (1, place),
            xytext=(-2 if value >= 1 else 2, 0),
            textcoords="offset points",
            ha="right" if value >= 1 else "left",
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
    """Plot the growth of time and the peak memory, one column per varied quantity.

    Time is per unit of work, relative to the smallest size (see `scaling`): a step
    whose time is proportional to its work follows the dashed line.
    """
    rows = result["rows"]
    programs = list(dict.fromkeys((row["learner"], row["network"]) for row in rows))
    varied = list(dict.fromkeys(row["varied"] for row in rows))
    columns = min(4, len(varied))
    bands = -(-len(varied) // columns)
    fig = new_figure(COLUMN_WIDTH, 3.3 * bands)
    axes = fig.subplots(2 * bands, columns, squeeze=False)
    for number, name in enumerate(varied):
        band, column = divmod(number, columns)
        pair = axes[2 * band : 2 * band + 2, column]
        sizes = sorted({row["size"] for row in rows if row["varied"] == name})
        for program, color, style in zip(programs, COLORS, LINE_STYLES, strict=False):
            some = [
                row
                for row in rows
                if (row["learner"], row["network"], row["varied"]) == (*program, name)
            ]
            own = [row["size"] for row in some]
            label = " ".join(program)
            options = {"color": color, "ms": 3, "lw": 1.2, "label": label}
            pair[0].plot(own, [row["per_unit"] for row in some], style, **options)
            peaks = [row["memory"]["peak"] / 1e6 for row in some]
            pair[1].plot(own, peaks, style, **options)
        pair[0].axhline(1, color="black", lw=0.8, ls="--", label="linear growth")
        for axis in pair:
            axis.set(xscale="log", yscale="log")
            axis.set_xticks(sizes, [_thousands(size) for size in sizes])
            axis.minorticks_off()
        pair[0].tick_params(labelbottom=False)
        pair[1].set_xlabel(VARIED[name])
    for band in range(bands):
        _same_limits(axes[2 * band], COST_TICKS, (0.5, 2))
        _same_limits(axes[2 * band + 1], MEMORY_TICKS)
        axes[2 * band, 0].set_ylabel("time per unit")
        axes[2 * band + 1, 0].set_ylabel("peak memory, MB")
    unused = bands * columns - len(varied)
    for axis in axes[-2:, columns - unused :].flat:
        axis.set_visible(False)
    save_with_legend(fig, axes, path, columns=3)


def projection(result: dict, path: pathlib.Path) -> None:
    """Plot the projected efficiency against the number of devices, by network."""
    rows = result["rows"]
    speeds = list(rows[0]["efficiency"])
    networks = list(rows[0]["efficiency"][speeds[0]])
    fig = new_figure(COLUMN_WIDTH, 1.2 + 2.0 * len(speeds))
    axes = fig.subplots(len(speeds), len(networks), sharex=True, sharey=True)
    for line, speed in zip(np.atleast_2d(axes), speeds, strict=True):
        for axis, network in zip(line, networks, strict=True):
            for row, color, style in zip(rows, COLORS, LINE_STYLES, strict=False):
                values = row["efficiency"][speed][network]
                axis.plot(
                    [int(devices) for devices in values],
                    [100 * value for value in values.values()],
                    style,
                    color=color,
                    ms=3,
                    lw=1.2,
                    label=row["case"],
                )
            axis.set(xscale="log", ylim=(0, 103))
            axis.set_xticks(*2 * [[int(devices) for devices in values]])
            axis.minorticks_off()
        line[0].set_ylabel(f"efficiency, %\n{speed} x the speed of this machine")
    for axis, network in zip(np.atleast_2d(axes)[0], networks, strict=True):
        axis.set_title(network, fontsize=8)
    for axis in np.atleast_2d(axes)[-1]:
        axis.set_xlabel("devices")
    save_with_legend(fig, axes, path, columns=2)


def _thousands(size: int) -> str:
    return f"{size}" if size < 1000 else f"{size / 1000:g}k"


def _same_limits(
    axes: Sequence[Axes], ticks: Sequence[float], shown: Sequence[float] = ()
) -> None:
    """Give the axes of a row the same y limits, and labels only to the first.

    Values of `shown` are within the limits, so that noise does not fill an axis.
    """
    drawn = [axis for axis in axes if axis.lines]
    limits = [axis.get_ylim() for axis in drawn] + [(value, value) for value in shown]
    low, high = min(a for a, _ in limits), max(b for _, b in limits)
    inside = [tick for tick in ticks if low <= tick <= high]
    for axis in drawn:
        axis.set_ylim(low, high)
        axis.set_yticks(inside, [f"{tick:g}" for tick in inside])
        axis.tick_params(labelleft=axis is drawn[0])
        axis.minorticks_off()
