"""Accuracy against the number of training tasks (Figs. 2, 4 and 5), with intervals.

The paper's text gives the first and the last number of classes or combinations on each
axis, and the order in which they are added; the numbers in between are ours, equally
spaced. The paper does not name the learner of Fig. 5; we use that of Fig. 2.

Intervals are over test tasks, of each task's mean over seeds. They do not include the
variation between training seeds, which makes curves of few seeds uneven.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import textwrap
from typing import TYPE_CHECKING, NamedTuple

from experiments.paper import Cell, Column, Run
from experiments.paper.tables import LEARNERS, STRATEGIES, row
from experiments.tables.jobs import load_config
from experiments.tables.render import NOTATIONS
from experiments.tables.results import BySeed, Results
from experiments.tables.statistics import Difference, Summary, compare, summarize
from experiments.tables.status import BUILTIN
from mlti_jax._internal.figures import COLORS, COLUMN_WIDTH, new_figure, style_axes
from mlti_jax._internal.progress import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VANILLA = "vanilla"
SHOWN = (VANILLA, "intra", "cross", "mlti")
MARKERS = dict(zip(SHOWN, "os^D", strict=True))
ACCURACY = NOTATIONS["accuracy"]


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel of a figure: one dataset and one learner.

    Attributes:
      title: name of the dataset.
      config: name of a file in `experiments/configs`.
      learner: the config's `learner` argument.
      numbers: of training classes or combinations; the first is the config's default.
      shots: the config's `shots` argument; None for its default.
    """

    title: str
    config: str
    learner: str
    numbers: tuple[int, ...]
    shots: int | None = None

    @property
    def label(self) -> str:
        """Title of the panel: dataset, shots and learner."""
        shots = f", {self.shots}-shot" if self.shots else ""
        return f"{self.title}{shots}, {LEARNERS[self.learner]}"

    def cell(self, strategy: str, number: int) -> Cell:
        """A point as the cell of a table, so figures and tables share their runs."""
        is_own = number == self.numbers[0]
        column = Column(
            self.title,
            self.config,
            overrides=() if is_own else (("dataset.train_classes", number),),
        )
        # The paper shows these numbers only as a plot.
        return Cell(row(self.learner, strategy, "", shots=self.shots), column, "")

    @property
    def points(self) -> list[tuple[str, int]]:
        """All `(strategy, number)`, ordered by strategy."""
        return [(strategy, number) for strategy in SHOWN for number in self.numbers]

    def run(self, strategy: str, number: int) -> Run:
        """The run that a point shows."""
        return self.cell(strategy, number).run


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels side by side.

    Attributes:
      name: part of the file name.
      number: in the paper.
      unit: what the horizontal axis counts.
      panels: from left to right.
    """

    name: str
    number: int
    unit: str
    panels: tuple[Panel, ...]

    @property
    def file_stem(self) -> str:
        """File name without the extension."""
        return f"task_numbers_{self.name}"

    def cells(self) -> list[Cell]:
        """All points, ordered by number: a position on the axis is complete early."""
        return [
            panel.cell(strategy, number)
            for panel in self.panels
            for number in panel.numbers
            for strategy in SHOWN
        ]


COMBINATIONS = (16, 24, 32, 40)
MINI_CLASSES = (12, 25, 38, 51, 64)
DERMNET_CLASSES = (30, 60, 90, 120, 150)


def _by_classes(name: str, number: int, shots: int) -> Figure:
    panels = (
        Panel("miniImagenet", "mini_imagenet", "protonet", MINI_CLASSES, shots),
        Panel("DermNet", "dermnet", "protonet", DERMNET_CLASSES, shots),
    )
    return Figure(name, number, "training classes", panels)


FIGURES = (
    _by_classes("classes_5_shot", 2, shots=5),
    Figure(
        "rainbow_mnist",
        4,
        "training combinations",
        tuple(
            Panel("RainbowMNIST", "rainbow_mnist", learner, COMBINATIONS)
            for learner in ("maml", "protonet")
        ),
    ),
    _by_classes("classes_1_shot", 5, shots=1),
)


# -------------------------------------------------------------------------- points


class Point(NamedTuple):
    """Accuracy of a strategy at one number of training tasks.

    Attributes:
      number: of classes or combinations.
      summary: mean and interval over test tasks.
      difference: paired difference from vanilla and its interval; None for vanilla
        itself, or if vanilla has no result on the same test tasks.
    """

    number: int
    summary: Summary
    difference: tuple[float, float] | None


def shown_steps(panel: Panel, results: Results, steps: int | None = None) -> int | None:
    """Select the number of training steps that all points of a panel share.

    Returns:
      `steps` if given and present; else the number with results at most points, where
      ties go to the paper's number, then to the largest. None without results.
    """
    counts = collections.Counter(
        found
        for strategy, number in panel.points
        for found in results.by_steps(panel.run(strategy, number))
    )
    if steps is not None:
        return steps if steps in counts else None
    paper = load_config(panel.run(*panel.points[0])).train.steps
    return max(counts, key=lambda s: (counts[s], s == paper, s), default=None)


def shown(
    panel: Panel, results: Results, steps: int | None = None
) -> dict[tuple[str, int], BySeed]:
    """Results of a panel by `(strategy, number)`; points without results are absent."""
    steps = shown_steps(panel, results, steps)
    found = {
        point: results.by_steps(panel.run(*point)).get(steps) for point in panel.points
    }
    return {point: by_seed for point, by_seed in found.items() if by_seed}


def points(
    panel: Panel, results: Results, steps: int | None = None
) -> dict[str, list[Point]]:
    """Points of a panel by strategy; those without results are absent."""
    all_found = shown(panel, results, steps)
    curves: dict[str, list[Point]] = {}
    for (strategy, number), found in all_found.items():
        summary = summarize(found)
        if isinstance(summary, str):
            say(f"{panel.run(strategy, number).name} is not drawn: {summary}")
            continue
        difference = None
        baseline = all_found.get((VANILLA, number))
        if strategy != VANILLA and baseline:
            compared = compare(found, baseline)
            if isinstance(compared, Difference):
                difference = (compared.mean, compared.ci95)
        point = Point(number, summary, difference)
        curves.setdefault(strategy, []).append(point)
    return curves


def notes(panel: Panel, results: Results, steps: int | None = None) -> str:
    """Describe steps, seeds and data of a panel, where they differ from the paper."""
    steps = shown_steps(panel, results, steps)
    found = shown(panel, results, steps).values()
    seeds = sorted({len(by_seed) for by_seed in found})
    paper = load_config(panel.run(*panel.points[0])).train.steps
    parts = [f"{steps:,} steps" if steps == paper else f"{steps:,} of {paper:,} steps"]
    number = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    parts.append(f"{number} seed{'' if seeds == [1] else 's'}")
    if any(r["source"] == BUILTIN for by_seed in found for r in by_seed.values()):
        parts.append("built-in images")
    return ", ".join(parts)


def table(panel: Panel, curves: dict[str, list[Point]]) -> str:
    """Format the points of a panel as a table."""
    lines = [f"{'':14}" + "".join(f"{number:>16}" for number in panel.numbers)]
    for strategy, some in curves.items():
        means = {point.number: point.summary for point in some}
        texts = [
            ACCURACY.interval(means[n].mean, means[n].ci95) if n in means else "-"
            for n in panel.numbers
        ]
        lines.append(f"{STRATEGIES[strategy]:14}" + "".join(f"{t:>16}" for t in texts))
    return "\n".join(lines)


def listing(results: Results) -> str:
    """List the figures and how many of their points have results."""
    lines = []
    for figure in FIGURES:
        cells = figure.cells()
        done = sum(bool(results.by_steps(cell.run)) for cell in cells)
        lines.append(
            f"  {figure.name:15} Fig. {figure.number}; {len(cells)} points, "
            f"{done or 'none'} with results"
        )
        for panel in figure.panels:
            numbers = ", ".join(map(str, panel.numbers))
            lines.append(f"  {'':15} {panel.label}: {numbers} {figure.unit}")
    return "\n".join(lines)


# ------------------------------------------------------------------------- drawing


def draw(
    figure: Figure, results: Results, path: pathlib.Path, steps: int | None = None
) -> list[Panel]:
    """Draw accuracy above and differences from vanilla below, one column per panel.

    Returns:
      The panels with results. Without any, no file is written.
    """
    curves = {panel: points(panel, results, steps) for panel in figure.panels}
    curves = {panel: some for panel, some in curves.items() if some}
    if not curves:
        return []
    fig = new_figure(COLUMN_WIDTH, 3.9, layout="constrained")
    axes = fig.subplots(
        2, len(curves), squeeze=False, sharex="col", height_ratios=(3, 2)
    )
    for (above, below), (panel, some) in zip(axes.T, curves.items(), strict=True):
        first, last = panel.numbers[0], panel.numbers[-1]
        step = 0.015 * (last - first)
        for place, (strategy, line) in enumerate(some.items()):
            # Shifted sideways: intervals at the same number would overlap.
            shift = (place - (len(some) - 1) / 2) * step
            means = [(p.number, p.summary.mean, p.summary.ci95) for p in line]
            _curve(above, strategy, means, shift)
            differences = [(p.number, *p.difference) for p in line if p.difference]
            _curve(below, strategy, differences, shift)
        text = notes(panel, results, steps)
        lines = textwrap.wrap(text, 36, break_on_hyphens=False)
        above.set_title("\n".join([panel.label, *lines]), fontsize=8)
        below.axhline(0, color=COLORS[0], lw=0.8)
        below.set_xticks(panel.numbers)
        below.set_xlim(first - 4 * step, last + 4 * step)
        below.set_xlabel(figure.unit)
    axes[0, 0].set_ylabel("accuracy, %")
    axes[1, 0].set_ylabel("difference from vanilla")
    style_axes(axes)
    handles = {}
    for axis in axes[0]:
        handles.update(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    fig.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=7,
        ncols=len(SHOWN),
        loc="outside lower center",
    )
    fig.savefig(path, dpi=200)
    return list(curves)


def _curve(
    axis: Axes, strategy: str, values: list[tuple[int, float, float]], shift: float
) -> None:
    """Draw a line with error bars through `(number, mean, ci95)`, in percent."""
    if not values:
        return
    numbers, means, intervals = zip(*values, strict=True)
    axis.errorbar(
        [number + shift for number in numbers],
        [ACCURACY.scale * mean for mean in means],
        [ACCURACY.scale * interval for interval in intervals],
        color=COLORS[SHOWN.index(strategy)],
        marker=MARKERS[strategy],
        ms=3.5,
        lw=1.2,
        elinewidth=0.9,
        capsize=2,
        label=STRATEGIES[strategy],
    )
