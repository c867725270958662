"""All differences between a strategy and vanilla: the top of the results page.

One table of MLTI against vanilla, a row per dataset and learner, and a forest plot of
all strategies. Both have the paper's settings; runs of `variations` or with another
number of training classes are not included.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper import TABLES, Cell, Run
from experiments.paper.tables import LEARNERS, STRATEGIES
from experiments.tables.formats import Section
from experiments.tables.jobs import load_config
from experiments.tables.render import NOTATIONS, Notation
from experiments.tables.results import BySeed, Results
from experiments.tables.statistics import Difference, Summary, compare, summarize
from mlti_jax._internal.figures import COLORS, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Titles without the number of shots, which has its own place.
DATASETS = {
    "rainbow_mnist": "RainbowMNIST",
    "pose": "Pose",
    "nci": "NCI",
    "metabolism": "Metabolism",
    "mini_imagenet": "miniImagenet-S",
    "isic": "ISIC",
    "dermnet": "DermNet-S",
    "tabula_muris": "Tabula Muris",
    "tiered_imagenet": "tieredImageNet-S",
    "huffpost": "Huffpost",
}
HEADER = (
    "dataset",
    "learner",
    "vanilla",
    "MLTI",
    "difference",
    "seeds",
    "steps",
    "paper's difference",
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A strategy and vanilla on one dataset, on the same tasks and with the same seeds.

    Attributes:
      cell: the cell of a table.
      run: its run, or that of the alternative setup.
      steps: training steps of both.
      vanilla, other: means of both.
      difference: the paired difference.
      paper: the paper's difference; None without one.
    """

    cell: Cell
    run: Run
    steps: int
    vanilla: Summary
    other: Summary
    difference: Difference
    paper: float | None

    @property
    def dataset(self) -> str:
        """Dataset, shots and alternative setup, such as `NCI, 5-shot, disjoint`."""
        config = load_config(self.run)
        parts = [DATASETS[self.run.config], f"{config.task.shots}-shot"]
        if test_on := dict(self.run.arguments).get("test_on"):
            parts[0] += f" to {DATASETS[str(test_on)]}"
        variant = self.cell.column.variant
        if variant is not None and (variant.argument, variant.paper) not in (
            self.run.variant
        ):
            parts.append(variant.alternative)
        return ", ".join(parts)

    @property
    def notation(self) -> Notation:
        """Number format of the metric."""
        return NOTATIONS[self.cell.column.metric]

    @property
    def full_steps(self) -> int:
        """Training steps of the paper."""
        return int(load_config(self.run).train.steps)


def comparisons(results: Results) -> list[Comparison]:
    """Return the comparisons that have results, in the order of the paper's tables."""
    found: dict[Run, Comparison] = {}
    for table in TABLES.values():
        for cell in table.cells():
            vanilla = table.vanilla(cell)
            plain = not cell.row.overrides and not cell.column.overrides
            if vanilla is None or not plain or not cell.is_applicable:
                continue
            for run, other in (
                (cell.run, vanilla.run),
                (cell.alternative_run, vanilla.alternative_run),
            ):
                if run is not None and other is not None and run not in found:
                    comparison = _comparison(cell, vanilla, run, other, results)
                    if comparison is not None:
                        found[run] = comparison
    order = list(dict.fromkeys(each.dataset for each in found.values()))
    return sorted(
        found.values(),
        key=lambda each: (
            order.index(each.dataset),
            list(LEARNERS).index(each.run.learner),
            list(STRATEGIES).index(each.run.strategy),
        ),
    )


def _comparison(
    cell: Cell, vanilla: Cell, run: Run, vanilla_run: Run, results: Results
) -> Comparison | None:
    """Compare two runs with equally many steps; None without results of both.

    Of several numbers of steps, chooses the one with most seeds, then the largest.
    """
    ours, theirs = results.by_steps(run), results.by_steps(vanilla_run)
    seeds = {
        steps: sorted(ours[steps].keys() & theirs[steps].keys())
        for steps in ours.keys() & theirs.keys()
    }
    for steps in sorted(seeds, key=lambda s: (len(seeds[s]), s), reverse=True):
        sides: list[BySeed] = [
            {seed: side[steps][seed] for seed in seeds[steps]}
            for side in (ours, theirs)
        ]
        difference = compare(*sides)
        if not isinstance(difference, Difference):
            continue
        other, base = (summarize(side) for side in sides)
        assert isinstance(other, Summary)
        assert isinstance(base, Summary)
        paper = None
        if cell.has_number and vanilla.has_number and run == cell.run:
            paper = cell.mean - vanilla.mean
        return Comparison(cell, run, steps, base, other, difference, paper)
    return None


def summary_table(found: list[Comparison]) -> Section:
    """Return the table of MLTI against vanilla, a row per dataset and learner."""
    lines = []
    for each in found:
        if each.run.strategy != "mlti":
            continue
        number, difference = each.notation, each.difference
        steps = f"{each.steps:,}"
        if each.steps != each.full_steps:
            steps += f" of {each.full_steps:,}"
        metric = each.cell.column.metric
        unit = "" if metric == "accuracy" else f" ({metric.upper()})"
        paper = "" if each.paper is None else f"{each.paper:+.{number.decimals}f}"
        lines.append(
            (
                each.dataset + unit,
                LEARNERS[each.run.learner],
                number.interval(each.vanilla.mean, each.vanilla.ci95_with_seeds),
                number.interval(each.other.mean, each.other.ci95_with_seeds),
                number.interval(difference.mean, difference.ci95_with_seeds, sign="+"),
                str(difference.seeds),
                steps,
                paper,
            )
        )
    return Section("MLTI and vanilla", HEADER, tuple(lines))


# --------------------------------------------------------------------------- figure

LIMITS = (-14.0, 20.0)  # percentage points; a wider interval ends in an arrow
ROW = 0.135  # inches
SPACE = 2.2  # rows between panels
MARGIN = 0.75  # inches above and below all panels
STYLES = {
    "mlti": (COLORS[1], "D"),
    "intra": (COLORS[2], "s"),
    "cross": (COLORS[3], "^"),
    "metamix": (COLORS[4], "v"),
}
OTHERS = (COLORS[0], "o")  # of strategies without interpolation, and Meta-Maxup


def draw(found: list[Comparison], path: pathlib.Path) -> bool:
    """Draw all differences in accuracy; returns whether there are any.

    A row per strategy, in two columns of panels, one panel per dataset. A thick line is
    the interval over tasks, a thin one that over tasks and seeds.
    """
    panels: dict[str, list[Comparison]] = {}
    for each in found:
        if each.cell.column.metric == "accuracy":
            panels.setdefault(each.dataset, []).append(each)
    if not panels:
        return False
    columns = _in_two_columns(panels)
    rows = max(sum(_rows(panels[name]) + SPACE for name in names) for names in columns)
    rows += MARGIN / ROW
    fig = new_figure(9.0, ROW * rows)
    for place, names in enumerate(columns):
        bottom = rows - 0.3 / ROW  # below the legend
        for name in names:
            height = _rows(panels[name])
            bottom -= height + SPACE
            box = (0.125 + 0.5 * place, (bottom + 0.7) / rows, 0.295, height / rows)
            _panel(fig.add_axes(box), name, panels[name], last=name == names[-1])
    _legend(fig)
    fig.savefig(path, dpi=150)
    return True


def _rows(found: list[Comparison]) -> float:
    """Return the height of a panel in rows; half a row between learners."""
    return len(found) + 0.5 * (len({each.run.learner for each in found}) - 1) + 0.4


def _in_two_columns(panels: dict[str, list[Comparison]]) -> list[list[str]]:
    """Divide the panels into columns of similar height, datasets undivided."""
    sizes = {name: _rows(found) + SPACE for name, found in panels.items()}
    of_dataset: dict[str, list[str]] = {}
    for name, found in panels.items():
        of_dataset.setdefault(found[0].run.config, []).append(name)
    columns: list[list[str]] = [[], []]
    for names in sorted(of_dataset.values(), key=lambda ns: -sum(sizes[n] for n in ns)):
        shorter = min(columns, key=lambda column: sum(sizes[each] for each in column))
        shorter += names
    order = list(panels)
    for column in columns:
        column.sort(key=order.index)
    return sorted(columns, key=lambda column: order.index(column[0]) if column else 99)


def _panel(axis: Axes, name: str, found: list[Comparison], *, last: bool) -> None:
    """Draw the differences of a dataset."""
    place, places, learner = 0.0, [], found[0].run.learner
    for each in found:
        if each.run.learner != learner:
            place += 0.5
            axis.axhline(place - 0.75, color="0.85", lw=0.6)
            learner = each.run.learner
        _interval(axis, each, place)
        places.append(place)
        place += 1.0
    labels = [
        f"{LEARNERS[each.run.learner]}, {STRATEGIES[each.run.strategy]}"
        for each in found
    ]
    axis.axvline(0, color=COLORS[0], lw=0.8)
    axis.set_xlim(*LIMITS)
    axis.set_ylim(place - 0.3, -0.7)
    axis.set_yticks(places, labels)
    axis.set_title(_title(name, found), fontsize=8, loc="left", pad=3)
    style_axes(_as_array(axis))
    axis.tick_params(axis="y", length=0, labelsize=6.5)
    for label, each in zip(axis.get_yticklabels(), found, strict=True):
        label.set_fontweight("bold" if each.run.strategy == "mlti" else "normal")
    for each, at in zip(found, places, strict=True):
        seeds = each.difference.seeds
        axis.text(
            1.01,
            at,
            f"{100 * each.difference.mean:+.1f}  ({seeds})",
            fontsize=6.5,
            va="center",
            transform=axis.get_yaxis_transform(),
        )
    if last:
        axis.set_xlabel("accuracy minus that of vanilla, percentage points")
    else:
        axis.set_xticklabels([])


def _title(name: str, found: list[Comparison]) -> str:
    steps = {(each.steps, each.full_steps) for each in found}
    parts = [f"{one:,} of {full:,} steps" for one, full in steps if one != full]
    return ", ".join([name, *sorted(parts)])


def _interval(axis: Axes, each: Comparison, place: float) -> None:
    """Draw a mean with both intervals."""
    color, marker = STYLES.get(each.run.strategy, OTHERS)
    found, scale = each.difference, each.notation.scale
    mean = scale * found.mean
    for half, width in ((found.ci95_with_seeds, 0.8), (found.ci95, 2.2)):
        ends = (mean - scale * half, mean + scale * half)
        axis.plot(ends, (place, place), color=color, lw=width, solid_capstyle="butt")
        for end, limit, arrow in zip(ends, LIMITS, "<>", strict=True):
            if abs(end) > abs(limit):
                style = {"color": color, "ms": 3, "mew": 0, "clip_on": False}
                axis.plot(limit, place, arrow, **style)
    filled = color if found.seeds > 1 else "white"
    axis.plot(mean, place, marker, color=color, mfc=filled, ms=3.0, mew=0.8)


def _as_array(axis: Axes) -> np.ndarray:
    return np.array([axis], dtype=object)


def _legend(fig: Figure) -> None:
    """Explain markers and lines above all panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=color, marker=marker, ms=3.6, lw=0)
        for color, marker in (*STYLES.values(), OTHERS)
    ]
    labels = [*(STRATEGIES[name] for name in STYLES), "other strategies"]
    gray = "0.35"
    handles += [
        Line2D([], [], color=gray, lw=2.2),
        Line2D([], [], color=gray, lw=0.8),
        Line2D([], [], color=gray, marker="o", mfc="white", ms=3.6, lw=0),
    ]
    labels += ["95 % over tasks", "95 % over tasks and seeds", "one seed"]
    fig.legend(handles, labels, frameon=False, fontsize=7, ncols=8, loc="upper center")
