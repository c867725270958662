"""Pictures of the benchmark's results, legible at the width of a column."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.benchmark.account import DISPATCH, PARTS
from mlti_jax.plotting import COLOURS, finish, plt

WIDTH = 5.2
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
    """PyTorch's time of a step divided by ours: a panel for vanilla, one for MLTI."""
    parts = [(*result["case"].rpartition("_")[::2], result) for result in results]
    steps = list(dict.fromkeys(step for step, _, _ in parts))
    strategies = sorted({strategy for _, strategy, _ in parts}, reverse=True)
    sides = [side for side in SIDES if any(side in r["ratio"] for r in results)]
    inches = 0.8 + len(steps) * (0.1 + 0.1 * len(sides))
    shape = {"figsize": (WIDTH, inches), "sharex": True, "sharey": True}
    fig, axes = plt.subplots(1, len(strategies), squeeze=False, **shape)
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
    fig.supxlabel("PyTorch's time of a step / ours (right: ours is faster)", fontsize=8)
    finish(fig, axes, path, columns=2)


def _ratio_bars(axis, places, values, height: float, side: str) -> None:
    """Bars from 1, where both are equally fast, with their values."""
    colour = COLOURS[list(SIDES).index(side)]
    widths = np.array(values) - 1
    axis.barh(places, widths, height, left=1, color=colour, label=SIDES[side])
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


def account(accounts: list[dict], path: pathlib.Path) -> None:
    """The share of each part in the time of a step, one bar a case."""
    names = [each["case"] for each in accounts]
    fig, axis = plt.subplots(figsize=(WIDTH, 1.2 + 0.32 * len(names)))
    left = np.zeros(len(names))
    shades = plt.get_cmap("viridis")(np.linspace(0.1, 0.95, len(PARTS)))
    for colour, (part, label) in zip(shades, PARTS.items(), strict=True):
        width = np.array([_share(each, part) for each in accounts])
        axis.barh(range(len(names)), width, 0.7, left, color=colour, label=label)
        left += width
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("share of a step, %")
    finish(fig, axis, path, columns=2)


def _share(account: dict, part: str) -> float:
    """In per cent; a part that noise made negative is not drawn."""
    parts = {name: max(ms, 0.0) for name, ms in account["parts"].items()}
    parts.pop(DISPATCH)
    return 100 * parts[part] / sum(parts.values())


def memory(result: dict, path: pathlib.Path) -> None:
    """Temporaries against inner steps: a panel for each network."""
    networks = list(dict.fromkeys(row["network"] for row in result["rows"]))
    tasks = sorted({row["tasks"] for row in result["rows"]})
    fig, axes = plt.subplots(1, len(networks), figsize=(WIDTH, 3.0), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        for form, style in MEMORY_STYLES.items():
            for number, colour in zip(tasks, COLOURS, strict=False):
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
                    color=colour,
                    ms=3,
                    lw=1.2,
                    label=f"{form}, {number} task{'s' if number > 1 else ''}",
                )
        axis.set_yscale("log")
        axis.set_title(network, fontsize=8)
        axis.set_xlabel("inner steps")
    axes[0, 0].set_ylabel("temporary memory, MB")
    finish(fig, axes[0], path, columns=3)


def scaling(result: dict, path: pathlib.Path) -> None:
    """Time above, peak memory below; a column for each thing that is varied."""
    rows = result["rows"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    varied = list(dict.fromkeys(row["varied"] for row in rows))
    fig, axes = plt.subplots(
        2, len(varied), figsize=(WIDTH, 3.8), sharex="col", sharey="row", squeeze=False
    )
    for column, name in enumerate(varied):
        for network, colour in zip(networks, COLOURS, strict=False):
            some = [r for r in rows if (r["network"], r["varied"]) == (network, name)]
            sizes = [row["size"] for row in some]
            times = [row["time"]["median_ms"] for row in some]
            peaks = [row["memory"]["peak"] / 1e6 for row in some]
            for axis, values in zip(axes[:, column], (times, peaks), strict=True):
                axis.plot(
                    sizes, values, "o-", color=colour, ms=3, lw=1.2, label=network
                )
                axis.set_xscale("log")
                axis.set_yscale("log")
                axis.set_xticks(sizes, [str(size) for size in sizes])
                axis.minorticks_off()
        axes[1, column].set_xlabel(VARIED[name])
    axes[0, 0].set_ylabel("ms a step")
    axes[1, 0].set_ylabel("peak memory, MB")
    finish(fig, axes, path, columns=2)
