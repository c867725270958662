"""The paper's tables beside ours, from the results that there are."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable

from experiments.paper import Cell, Column, Run, Table
from experiments.paper.tables import NOT_IN_PAPER
from experiments.tables.formats import Report, Section, counted
from experiments.tables.jobs import matches, paper_config
from experiments.tables.state import BUILTIN
from experiments.tables.statistics import Summary, paired, summarise
from experiments.tables.store import BySeed, Results

HOW = (
    "Accuracy in %; MSE for Pose. Column `ours`: mean over test tasks and seeds ± 1.96 "
    "standard errors over tasks (each task averaged over seeds); in parentheses the "
    "standard deviation of the seeds' means, if there are at least two. `vs. paper`: "
    "ours minus the paper's, with both intervals combined as for independent tasks. "
    "`vs. vanilla`: mean difference on the same tasks ± 1.96 standard errors (each "
    "task averaged over the seeds that both rows have); in parentheses the standard "
    "deviation of the seeds' differences. Differences are between runs with equally "
    "many training steps. The rows of a learner show the number of steps that most of "
    "them have."
)
NOTHING = ""
PAPER_STEPS = -1  # in place of their number, which differs between the rows of a table

Shown = dict[Run, BySeed]  # results by run and seed


@dataclasses.dataclass(frozen=True)
class Notation:
    """How the paper prints a metric.

    Attributes:
      scale: what our numbers are multiplied by.
      decimals: behind the point.
    """

    scale: int
    decimals: int

    def number(self, value: float, sign: str = "") -> str:
        """One of our numbers."""
        return f"{self.scale * value:{sign}.{self.decimals}f}"

    def interval(self, mean: float, ci95: float, sign: str = "") -> str:
        """`60.28 ± 1.00`, say; `sign="+"` for differences."""
        return f"{self.number(mean, sign)} ± {self.number(ci95)}"


NOTATIONS = {"accuracy": Notation(100, 2), "mse": Notation(1, 3)}


class Renderer:
    """Makes the text of tables.

    Args:
      results: all that there are.
      unprepared: returns the datasets of a run that are not prepared.
      steps: only results of so many training steps; None for those that the rows of a
        learner have in common.
      only: words with which a part of a run's name must begin, each of them.
    """

    def __init__(
        self,
        results: Results,
        unprepared: Callable[[Run], list[str]],
        steps: int | None = None,
        only: Iterable[str] = (),
    ):
        self._results, self._unprepared = results, unprepared
        self._steps, self._only = steps, tuple(only)

    def report(self, table: Table) -> Report | None:
        """A table, with one section for each of its columns; None if it has none."""
        sections = [
            self.section(table, column)
            for column in table.columns
            if self._cells(table, column)
        ]
        return Report(table.name, table.caption, tuple(sections)) if sections else None

    def section(self, table: Table, column: Column) -> Section:
        """One of its columns."""
        shown = self.shown(table, column)
        cells = self._cells(table, column)
        has_other = any(shown.get(cell.other_run) for cell in cells if cell.is_given)
        header = ["", "", "paper", "ours", "vs. paper", "vs. vanilla"]
        if has_other:
            other = column.variant.other
            header += [f"ours, {other}", f"vs. vanilla, {other}"]
        header.append("runs")
        lines = []
        for cell in cells:
            number = "" if cell.number == NOT_IN_PAPER else cell.number
            line = [cell.row.group, cell.row.title, number.replace("±", " ± ")]
            if cell.is_given:
                line += self._ours(table, cell, shown, has_other)
            else:
                line.append("not given in the paper")
            lines.append((*line, *[NOTHING] * (len(header) - len(line))))
        return Section(column.title, tuple(header), tuple(lines))

    def shown(self, table: Table, column: Column) -> Shown:
        """The results of a column that are shown.

        The rows of a learner can be compared if they are trained for equally long:
        those steps are shown that most of them have; of these the paper's, or the
        most. A row that has no such result is shown with what it has.
        """
        shown: Shown = {}
        groups: dict[tuple[str, bool], list[Run]] = {}
        for cell in table.column_cells(column):
            for run in (cell.run, cell.other_run):
                if run is not None and cell.is_given:
                    key = (cell.row.group, run == cell.run)
                    groups.setdefault(key, []).append(run)
        for runs in groups.values():
            found = [self._by_steps(run) for run in runs]
            counts = collections.Counter(steps for by in found for steps in by)
            order = sorted(counts, key=lambda s: (counts[s], s == PAPER_STEPS, s))
            for run, by in zip(runs, found, strict=True):
                best = max(by, key=order.index, default=None)
                shown[run] = by.get(best, {})
        return shown

    def _cells(self, table: Table, column: Column) -> list[Cell]:
        return [cell for cell in table.column_cells(column) if self._is_wanted(cell)]

    def _is_wanted(self, cell: Cell) -> bool:
        names = [run.name for run in (cell.run, cell.other_run) if run is not None]
        return any(all(matches(name, word) for word in self._only) for name in names)

    def _by_steps(self, run: Run) -> dict[int, BySeed]:
        """A run's results by steps, with `PAPER_STEPS` for its config's own."""
        by_steps = self._results.by_steps(run)
        if self._steps is not None:
            by_steps = {s: found for s, found in by_steps.items() if s == self._steps}
        own = paper_config(run).train.steps
        return {PAPER_STEPS if s == own else s: by for s, by in by_steps.items()}

    def _ours(
        self, table: Table, cell: Cell, shown: Shown, has_other: bool
    ) -> list[str]:
        """What stands beside a number of the paper."""
        vanilla = table.vanilla(cell)
        found = shown[cell.run]
        line = [
            self._mean(cell, cell.run, found),
            self._from_paper(cell, found),
            self._from_vanilla(cell, found, vanilla and vanilla.run),
        ]
        notes = self._notes(cell.run, found)
        if has_other:
            run, found = cell.other_run, shown[cell.other_run]
            line += [
                self._mean(cell, run, found),
                self._from_vanilla(cell, found, vanilla and vanilla.other_run),
            ]
            own = self._notes(run, found)
            if own and own != notes:
                notes += f"{'; ' if notes else ''}{cell.column.variant.other}: {own}"
        return [*line, notes]

    def _mean(self, cell: Cell, run: Run, found: BySeed) -> str:
        if not found:
            datasets = self._unprepared(run)
            return (
                f"dataset not prepared: {', '.join(datasets)}"
                if datasets
                else "not run"
            )
        summary = summarise(found)
        if not isinstance(summary, Summary):
            return summary
        notation = NOTATIONS[cell.column.metric]
        text = notation.interval(summary.mean, summary.ci95)
        if len(found) > 1:
            text += f" ({notation.number(summary.deviation)})"
        return text

    def _from_paper(self, cell: Cell, found: BySeed) -> str:
        summary = summarise(found) if found and cell.has_number else None
        if not isinstance(summary, Summary):
            return NOTHING
        notation = NOTATIONS[cell.column.metric]
        mean, ci95 = cell.mean / notation.scale, cell.ci95 / notation.scale
        return notation.interval(
            summary.mean - mean, math.hypot(summary.ci95, ci95), sign="+"
        )

    def _from_vanilla(self, cell: Cell, found: BySeed, vanilla: Run | None) -> str:
        if vanilla is None or not found:
            return NOTHING
        steps = next(iter(found.values()))["train_steps"]
        baseline = self._results.by_steps(vanilla).get(steps)
        if not baseline:
            return f"vanilla not run for {counted(steps, 'step')}"
        difference = paired(found, baseline)
        if isinstance(difference, str):
            return f"not paired: {difference}"
        notation = NOTATIONS[cell.column.metric]
        brackets = []
        if difference.seeds > 1:
            brackets.append(notation.number(difference.deviation))
        if difference.seeds < len(found):
            brackets.append(f"{difference.seeds} of {len(found)} seeds")
        text = notation.interval(difference.mean, difference.ci95, sign="+")
        return f"{text} ({'; '.join(brackets)})" if brackets else text

    def _notes(self, run: Run, found: BySeed) -> str:
        """How many seeds, and what is not as in the paper."""
        if not found:
            return NOTHING
        notes = [counted(len(found), "seed")]
        result = next(iter(found.values()))
        steps = paper_config(run).train.steps
        if result["train_steps"] != steps:
            notes.append(f"{result['train_steps']:,} of {steps:,} steps")
        if result["source"] == BUILTIN:
            notes.append("built-in images")
        return ", ".join(notes)
