"""Compare the paper's tables with our results."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from experiments.paper import Cell, Column, Run, Table
from experiments.paper.tables import NOT_IN_PAPER
from experiments.tables.formats import Report, Section, pluralize
from experiments.tables.jobs import load_config, matches
from experiments.tables.results import BySeed, Results
from experiments.tables.statistics import Summary, compare, summarize
from experiments.tables.status import BUILTIN

LEGEND = (
    "Accuracy in %; MSE for Pose. Ours: mean over test tasks and seeds ± 1.96 "
    "standard errors over tasks (each task averaged over seeds); in parentheses the "
    "standard deviation of the seeds' means, for two or more seeds. Vs. paper: ours "
    "minus the paper's, with both intervals combined as for independent tasks. Vs. "
    "vanilla: mean difference on the same tasks and seeds, with its 95 % interval "
    "over tasks and seeds, as in `mlti_jax.compare`: wide for two seeds, which say "
    "little about others. For a single seed the interval is over tasks only, so it is "
    "too small. In parentheses the standard deviation of the seeds' differences. "
    "Differences are between runs with equally many training steps. "
    '"Part of the release": the dataset was prepared from some of its classes or '
    "images. The rows of a learner show the number of steps that most of them have."
)
DEFAULT_STEPS = -1  # key for the steps of the config, which differ between rows

Shown = dict[Run, BySeed]  # results by run and seed


@dataclasses.dataclass(frozen=True)
class Notation:
    """Number format of a metric, as in the paper.

    Attributes:
      scale: factor applied to our values.
      decimals: number of decimals.
    """

    scale: int
    decimals: int

    def number(self, value: float, sign: str = "") -> str:
        """Format one of our values."""
        return f"{self.scale * value:{sign}.{self.decimals}f}"

    def interval(self, mean: float, ci95: float, sign: str = "") -> str:
        """Format a mean with its interval, as `60.28 ± 1.00`."""
        return f"{self.number(mean, sign)} ± {self.number(ci95)}"


def part_note(part: dict[str, Any]) -> str:
    """Describe the part of the release that a result is from: its field `part`."""
    left_out = [f"{len(names)} {split}" for split, names in part["left_out"].items()]
    without = f", without {' and '.join(left_out)} classes" if left_out else ""
    return f"part of the release ({part['prepared']}){without}"


NOTATIONS = {"accuracy": Notation(100, 2), "mse": Notation(1, 3)}


class Renderer:
    """Renders the paper's tables with our results.

    Args:
      results: our results.
      unprepared: returns the datasets of a run that are not prepared.
      steps: show only results with this number of training steps; None for the number
        that most rows of a learner have.
      only: words; each must be the beginning of a part of a run's name.
      mark: returns a mark for the results of a run, which is appended to their number
        of seeds.
    """

    def __init__(
        self,
        results: Results,
        unprepared: Callable[[Run], list[str]],
        steps: int | None = None,
        only: Iterable[str] = (),
        mark: Callable[[BySeed], str] = lambda found: "",
    ) -> None:
        self._mark = mark
        self._results, self._unprepared = results, unprepared
        self._steps, self._only = steps, tuple(only)

    def report(self, table: Table) -> Report | None:
        """Render a table as one section per column; None if no cell matches `only`."""
        sections = [
            self.section(table, column)
            for column in table.columns
            if self._cells(table, column)
        ]
        return Report(table.name, table.caption, tuple(sections)) if sections else None

    def section(self, table: Table, column: Column) -> Section:
        """Render one column of a table."""
        shown = self.shown(table, column)
        cells = self._cells(table, column)
        alternative = None
        if column.variant is not None and any(
            cell.alternative_run and shown.get(cell.alternative_run) for cell in cells
        ):
            alternative = column.variant.alternative
        header = ["", "", "paper", "ours", "vs. paper", "vs. vanilla"]
        if alternative:
            header += [f"ours, {alternative}", f"vs. vanilla, {alternative}"]
        header.append("runs")
        lines = []
        for cell in cells:
            number = "" if cell.number == NOT_IN_PAPER else cell.number
            line = [cell.row.group, cell.row.title, number.replace("±", " ± ")]
            if cell.is_applicable:
                line += self._ours(table, cell, shown, alternative)
            else:
                line.append("not given in the paper")
            lines.append((*line, *[""] * (len(header) - len(line))))
        return Section(column.title, tuple(header), tuple(lines))

    def shown(self, table: Table, column: Column) -> Shown:
        """Select the results of a column that are shown.

        Rows of a learner are comparable if they have equally many training steps. Shows
        the number of steps that most rows have; among ties that of the config, else the
        largest. A row without such a result shows the next best.
        """
        shown: Shown = {}
        groups: dict[tuple[str, bool], list[Run]] = {}
        for cell in table.column_cells(column):
            for run in (cell.run, cell.alternative_run):
                if run is not None and cell.is_applicable:
                    key = (cell.row.group, run == cell.run)
                    groups.setdefault(key, []).append(run)
        for runs in groups.values():
            found = [self._by_steps(run) for run in runs]
            counts = collections.Counter(steps for by in found for steps in by)
            order = sorted(counts, key=lambda s: (counts[s], s == DEFAULT_STEPS, s))
            for run, by in zip(runs, found, strict=True):
                shown[run] = by[max(by, key=order.index)] if by else {}
        return shown

    def _cells(self, table: Table, column: Column) -> list[Cell]:
        return [cell for cell in table.column_cells(column) if self._is_selected(cell)]

    def _is_selected(self, cell: Cell) -> bool:
        runs = (cell.run, cell.alternative_run)
        names = [run.name for run in runs if run is not None]
        return any(all(matches(name, word) for word in self._only) for name in names)

    def _by_steps(self, run: Run) -> dict[int, BySeed]:
        """Results of a run by steps, with `DEFAULT_STEPS` for those of its config."""
        by_steps = self._results.by_steps(run)
        if self._steps is not None:
            by_steps = {s: found for s, found in by_steps.items() if s == self._steps}
        default = load_config(run).train.steps
        return {DEFAULT_STEPS if s == default else s: by for s, by in by_steps.items()}

    def _ours(
        self, table: Table, cell: Cell, shown: Shown, alternative: str | None
    ) -> list[str]:
        """Render our columns of one row."""
        vanilla = table.vanilla(cell)
        found = shown[cell.run]
        line = [
            self._mean(cell, cell.run, found),
            self._minus_paper(cell, found),
            self._minus_vanilla(cell, found, vanilla.run if vanilla else None),
        ]
        notes = self._notes(cell.run, found)
        run = cell.alternative_run
        if alternative and run is not None:
            found = shown[run]
            baseline = vanilla.alternative_run if vanilla else None
            line += [
                self._mean(cell, run, found),
                self._minus_vanilla(cell, found, baseline),
            ]
            own = self._notes(run, found)
            if own and own != notes:
                notes += f"{'; ' if notes else ''}{alternative}: {own}"
        return [*line, notes]

    def _mean(self, cell: Cell, run: Run, found: BySeed) -> str:
        if not found:
            datasets = self._unprepared(run)
            return (
                f"dataset not prepared: {', '.join(datasets)}"
                if datasets
                else "not run"
            )
        summary = summarize(found)
        if not isinstance(summary, Summary):
            return summary
        notation = NOTATIONS[cell.column.metric]
        text = notation.interval(summary.mean, summary.ci95)
        if len(found) > 1:
            text += f" ({notation.number(summary.deviation)})"
        return text

    def _minus_paper(self, cell: Cell, found: BySeed) -> str:
        summary = summarize(found) if found and cell.has_number else None
        if not isinstance(summary, Summary):
            return ""
        notation = NOTATIONS[cell.column.metric]
        mean, ci95 = cell.mean / notation.scale, cell.ci95 / notation.scale
        return notation.interval(
            summary.mean - mean, math.hypot(summary.ci95, ci95), sign="+"
        )

    def _minus_vanilla(self, cell: Cell, found: BySeed, vanilla: Run | None) -> str:
        if vanilla is None or not found:
            return ""
        steps = next(iter(found.values()))["train_steps"]
        baseline = self._results.by_steps(vanilla).get(steps)
        if not baseline:
            return f"vanilla not run for {pluralize(steps, 'step')}"
        difference = compare(found, baseline)
        if isinstance(difference, str):
            return f"not paired: {difference}"
        notation = NOTATIONS[cell.column.metric]
        in_parentheses = []
        if difference.seeds > 1:
            in_parentheses.append(notation.number(difference.deviation))
        if difference.seeds < len(found):
            in_parentheses.append(f"{difference.seeds} of {len(found)} seeds")
        text = notation.interval(difference.mean, difference.ci95_with_seeds, sign="+")
        return f"{text} ({'; '.join(in_parentheses)})" if in_parentheses else text

    def _notes(self, run: Run, found: BySeed) -> str:
        """Number of seeds, and deviations from the paper's setup."""
        if not found:
            return ""
        notes = [f"{pluralize(len(found), 'seed')} {self._mark(found)}".rstrip()]
        result = next(iter(found.values()))
        steps = load_config(run).train.steps
        if result["train_steps"] != steps:
            notes.append(f"{result['train_steps']:,} of {steps:,} steps")
        if result["source"] == BUILTIN:
            notes.append("built-in images")
        if part := result.get("part"):
            notes.append(part_note(part))
        return ", ".join(notes)
