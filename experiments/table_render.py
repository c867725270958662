"""The paper's tables beside ours, from the results that there are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from experiments.paper import Cell, Column, Run, Table
from experiments.paper.tables import NOT_IN_PAPER
from experiments.results_store import BySeed, Results
from experiments.table_formats import Report, Section, counted
from experiments.table_jobs import paper_config
from experiments.table_state import BUILTIN
from experiments.table_statistics import Summary, paired, summarise

HOW = (
    "Accuracy in %; MSE for Pose. Ours: the mean over test tasks and seeds ± 1.96 "
    "standard errors over tasks, of each task's mean over seeds; in brackets the "
    "standard deviation of the seeds' means, where there are two or more. From the "
    "paper: ours minus the paper's, with both intervals, as of independent tasks. From "
    "vanilla: the mean difference ± 1.96 standard errors over the same tasks, each of "
    "them averaged over the seeds that both rows have."
)
NOTHING = ""


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
      absent: tells of which datasets of a run there is no data.
      steps: only results of so many training steps; None for the paper's, or the most.
    """

    def __init__(
        self,
        results: Results,
        absent: Callable[[Run], list[str]],
        steps: int | None = None,
    ):
        self._results, self._absent, self._steps = results, absent, steps

    def report(self, table: Table) -> Report:
        """A table, with one section for each of its columns."""
        sections = [self.section(table, column) for column in table.columns]
        return Report(table.name, (table.caption, HOW), tuple(sections))

    def section(self, table: Table, column: Column) -> Section:
        """One of its columns."""
        cells = [cell for cell in table.column_cells(column) if cell.is_given]
        has_other = column.variant and any(self._of(cell.other_run) for cell in cells)
        header = ["", "", "paper", "ours", "from the paper", "from vanilla"]
        if has_other:
            other = column.variant.other
            header += [f"ours, {other}", f"from vanilla, {other}"]
        header.append("runs")
        lines = []
        for cell in table.column_cells(column):
            number = "" if cell.number == NOT_IN_PAPER else cell.number
            line = [cell.row.group, cell.row.title, number.replace("±", " ± ")]
            if cell.is_given:
                line += self._ours(table, cell, has_other)
            else:
                line.append("not given in the paper")
            lines.append((*line, *[NOTHING] * (len(header) - len(line))))
        return Section(column.title, tuple(header), tuple(lines))

    def _ours(self, table: Table, cell: Cell, has_other: bool) -> list[str]:
        """What stands beside a number of the paper."""
        vanilla = table.vanilla(cell)
        line = [
            self._mean(cell, cell.run),
            self._from_paper(cell),
            self._from_vanilla(cell, cell.run, vanilla and vanilla.run),
        ]
        notes = self._notes(cell.run)
        if has_other:
            run = cell.other_run
            line += [
                self._mean(cell, run),
                self._from_vanilla(cell, run, vanilla and vanilla.other_run),
            ]
            own = self._notes(run)
            if own and own != notes:
                notes += f"{'; ' if notes else ''}{cell.column.variant.other}: {own}"
        return [*line, notes]

    def _mean(self, cell: Cell, run: Run) -> str:
        found = self._of(run)
        if not found:
            absent = self._absent(run)
            return f"no data here: {', '.join(absent)}" if absent else "not run"
        summary = summarise(found)
        if not isinstance(summary, Summary):
            return summary
        notation = NOTATIONS[cell.column.metric]
        text = notation.interval(summary.mean, summary.ci95)
        if len(found) > 1:
            text += f" ({notation.number(summary.deviation)})"
        return text

    def _from_paper(self, cell: Cell) -> str:
        found = self._of(cell.run) if cell.has_number else None
        summary = summarise(found) if found else None
        if not isinstance(summary, Summary):
            return NOTHING
        notation = NOTATIONS[cell.column.metric]
        mean, ci95 = cell.mean / notation.scale, cell.ci95 / notation.scale
        return notation.interval(
            summary.mean - mean, math.hypot(summary.ci95, ci95), sign="+"
        )

    def _from_vanilla(self, cell: Cell, run: Run, vanilla: Run | None) -> str:
        found = self._of(run)
        if vanilla is None or not found:
            return NOTHING
        baseline = self._of(vanilla)
        if not baseline:
            return "vanilla not run"
        difference = paired(found, baseline)
        if isinstance(difference, str):
            return f"not paired: {difference}"
        mean, ci95, seeds = difference
        text = NOTATIONS[cell.column.metric].interval(mean, ci95, sign="+")
        return (
            text if seeds == len(found) else f"{text} ({seeds} of {len(found)} seeds)"
        )

    def _notes(self, run: Run) -> str:
        """How many seeds, and what is not as in the paper."""
        found = self._of(run)
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

    def _of(self, run: Run) -> BySeed:
        """The results of a run that are shown, by seed."""
        by_steps = self._results.by_steps(run)
        if self._steps is not None:
            return by_steps.get(self._steps, {})
        paper = paper_config(run).train.steps
        return by_steps.get(paper) or by_steps.get(max(by_steps, default=0), {})
