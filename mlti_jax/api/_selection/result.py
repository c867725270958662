"""The result of `select`: numbers, table and figure."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mlti_jax._internal.figures import COLUMN_WIDTH, new_figure, style_axes
from mlti_jax.api._model import FittedLearner
from mlti_jax.api._selection.bootstrap import (
    BETTER,
    Comparison,
    Estimate,
    compare_with,
    estimate,
    paired,
    unit_means,
)
from mlti_jax.api._selection.halving import Search, Searcher
from mlti_jax.report import Page, Picture, Section, Table
from mlti_jax.report._sections import background_sections
from mlti_jax.report._svg import COLORS
from mlti_jax.training._metrics import format_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CandidateResult(NamedTuple):
    """Cross-validated scores of a candidate.

    Attributes:
      name: its name.
      steps: training steps of the fits that the numbers are from; fewer than those of
        the others if it was stopped early.
      score: mean over folds, with its own 95 % interval.
      comparison: the paired difference from the reference after as many steps, with an
        interval that holds for all candidates together; None for the reference.
      fold_means: mean score on each fold.
    """

    name: str
    steps: int
    score: Estimate
    comparison: Comparison | None
    fold_means: tuple[float, ...]


class NestedEstimate(NamedTuple):
    """The performance to expect on new tasks, from nested cross-validation.

    For each outer fold, the choice is made without its tasks and tested on them.

    Attributes:
      score: mean over the outer folds.
      gain: paired difference of the chosen candidates from the reference.
      chosen: name of the candidate that was chosen without each fold.
    """

    score: Estimate
    gain: Estimate
    chosen: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The result of `select`.

    Attributes:
      winner: name of the candidate with the best mean.
      reference: name of the candidate that the others are compared with.
      metric: what was measured.
      candidates: results by name, in the order given.
      estimate: performance of the winner on new tasks; None without nesting.
      learner: the winner, trained on all tasks.
      folds: names of the tasks of each fold.
      steps: training steps of the winner.
      fits: number of training runs.
    """

    winner: str
    reference: str
    metric: str
    candidates: dict[str, CandidateResult]
    estimate: NestedEstimate | None
    learner: FittedLearner
    folds: tuple[tuple[str, ...], ...]
    steps: int
    fits: int

    @property
    def clearly_better(self) -> tuple[str, ...]:
        """Names of the candidates that are clearly better than the reference."""
        return tuple(
            name
            for name, result in self.candidates.items()
            if result.comparison is not None
            and result.steps == self.steps
            and result.comparison.verdict == BETTER
        )

    @property
    def conclusion(self) -> str:
        """Sentences on what the numbers show."""
        better = self.clearly_better
        if better:
            text = f"Clearly better than {self.reference}: {', '.join(better)}."
        else:
            text = f"No candidate is clearly better than {self.reference}."
        if self.winner in better:
            text += f" Best: {self.winner}."
        elif self.winner == self.reference:
            text += " It also has the best mean."
        else:
            text += f" {self.winner} has the best mean, which may be chance."
        if self.estimate is None:
            return (
                f"{text} The winner's mean is optimistic, since it was chosen for it; "
                "nested=True estimates its performance on new tasks."
            )
        counts = collections.Counter(self.estimate.chosen).most_common()
        chosen = ", ".join(f"{name} {number}x" for name, number in counts)
        return (
            f"{text}\nOn new tasks, expect {self.metric} "
            f"{self._format(self.estimate.score)} from this choice, "
            f"{self._format(self.estimate.gain, sign='+')} against {self.reference} "
            f"(nested cross-validation; chosen without each fold: {chosen})."
        )

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        table = "\n".join(
            "  ".join(
                f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        )
        return f"{table}\n{self.conclusion}"

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, with a header."""
        rows: list[tuple[str, ...]] = [
            ("candidate", self.metric, f"against {self.reference}", "")
        ]
        for name, result in self.candidates.items():
            difference, verdict = "", "reference"
            if result.comparison is not None:
                difference = self._format(result.comparison.difference, sign="+")
                verdict = result.comparison.verdict
            if result.steps < self.steps:
                verdict = f"stopped after {result.steps} of {self.steps} steps"
            marker = "* " if name == self.winner else "  "
            rows.append(
                (f"{marker}{name}", self._format(result.score), difference, verdict)
            )
        return rows

    def __repr__(self) -> str:
        return (
            f"Selection(winner={self.winner!r}, reference={self.reference!r}, "
            f"{len(self.candidates)} candidates, {len(self.folds)} folds)"
        )

    def _format(self, value: Estimate, sign: str = "") -> str:
        return format_interval(self.metric, value.mean, value.half_width, sign)

    def _format_mean(self, mean: float) -> str:
        return f"{100 * mean:.1f} %" if self.metric == "accuracy" else f"{mean:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain values, as in `selection.json`."""
        candidates = {}
        for name, result in self.candidates.items():
            comparison = result.comparison
            candidates[name] = {
                "steps": result.steps,
                "score": result.score._asdict(),
                "difference": comparison and comparison.difference._asdict(),
                "verdict": comparison and comparison.verdict,
                "fold_means": list(result.fold_means),
            }
        estimate = self.estimate
        return {
            "winner": self.winner,
            "reference": self.reference,
            "metric": self.metric,
            "clearly_better": list(self.clearly_better),
            "conclusion": self.conclusion,
            "candidates": candidates,
            "estimate": estimate
            and {
                "score": estimate.score._asdict(),
                "gain": estimate.gain._asdict(),
                "chosen": list(estimate.chosen),
            },
            "folds": [list(names) for names in self.folds],
            "steps": self.steps,
            "fits": self.fits,
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the differences from the reference with their intervals.

        One row per candidate, the winner in color; an open circle is a candidate that
        was stopped early.

        Args:
          path: the file to write, such as `selection.png`.
        """
        fig = new_figure(COLUMN_WIDTH, self._height)
        self._draw(fig)
        fig.tight_layout()
        fig.savefig(pathlib.Path(path), dpi=150)

    @property
    def _height(self) -> float:
        lines = sum(1 + name.count(", ") for name in self.candidates)
        return 0.9 + 0.15 * (len(self.candidates) + lines)

    def _draw(self, fig: Figure) -> None:
        scale, unit = (100, " (points)") if self.metric == "accuracy" else (1, "")
        axes = fig.subplots(squeeze=False)
        axis = axes[0, 0]
        axis.axvline(0, color="#888888", linewidth=0.8, zorder=0)
        labels = []
        for row, result in enumerate(self.candidates.values()):
            color = COLORS[1] if result.name == self.winner else COLORS[0]
            mean = half = 0.0
            if result.comparison is not None:
                mean, _, half = result.comparison.difference
            finished = result.steps == self.steps
            axis.errorbar(
                scale * mean,
                row,
                xerr=scale * half if half else None,
                fmt="o" if result.name != self.reference else "D",
                markersize=5,
                color=color,
                markerfacecolor=color if finished else "none",
                linewidth=1.2,
                capsize=2,
            )
            score = self._format_mean(result.score.mean).removesuffix(" %")
            after = "" if finished else f" after {result.steps} steps"
            name = result.name.replace(", ", ",\n")
            labels.append(f"{name}  {score}{after}")
        axis.set_yticks(range(len(labels)), labels)
        axis.invert_yaxis()
        axis.margins(y=0.15)
        better = "" if self.metric == "accuracy" else ", lower is better"
        axis.set_xlabel(f"{self.metric} against {self.reference}{unit}{better}")
        style_axes(axes)

    def page(self) -> Page:
        """Return the page of `report.html`: table, figure, folds, data, settings."""
        rows = tuple(
            tuple(_in_print(cell.strip()) for cell in row) for row in self._rows()
        )
        scores = tuple(
            (name, *(self._format_mean(mean) for mean in result.fold_means))
            for name, result in self.candidates.items()
        )
        names = tuple(", ".join(fold) for fold in self.folds)
        facts = [("chosen", self.winner), ("reference", self.reference)]
        if self.estimate is not None:
            facts.append(
                (
                    f"{self.metric} on new tasks",
                    _in_print(self._format(self.estimate.score)),
                )
            )
        assert self.learner.splits is not None  # not loaded
        names_given = ", ".join(map(repr, self.candidates))
        background = background_sections(
            self.learner.splits,
            self.learner.config,
            [f"The settings of {self.winner}, trained on all tasks."],
            "# tasks: the data, as described above\n"
            f"# candidates: {names_given}\n"
            f"mlti_jax.select(tasks, candidates, budget={self.steps}, workdir=...)",
        )
        return Page(
            "Selection by cross-validation",
            (
                Section(
                    "Candidates",
                    (
                        *map(_in_print, self.conclusion.splitlines()),
                        Table(rows[0], rows[1:]),
                        Picture(
                            self._draw,
                            f"differences from {self.reference}",
                            "Paired differences with intervals that hold together at "
                            "95 %; an open circle was stopped early.",
                            (COLUMN_WIDTH, self._height),
                        ),
                    ),
                ),
                Section(
                    "Folds",
                    (
                        Table(
                            ("candidate", *names),
                            scores,
                            f"Mean {self.metric} on each held-out fold.",
                        ),
                    ),
                ),
                *background,
            ),
            subtitle=f"{len(self.folds)} folds, {self.steps} steps, {self.fits} fits",
            facts=tuple(facts),
        )


def _in_print(text: str) -> str:
    return text.replace("+-", "±")


def candidate_results(
    searcher: Searcher, search: Search, names: Sequence[str]
) -> dict[str, CandidateResult]:
    """Compare each candidate with the reference, at the last rung that it reached.

    All candidates count as compared, so stopping some early costs no confidence.
    """
    results = {}
    for number, name in enumerate(names):
        rung = search.choice.reached[number] - 1
        scores = searcher.scores(number, rung)
        comparison = None
        if number != searcher.reference:
            comparison = compare_with(
                searcher.scores(searcher.reference, rung),
                {name: scores},
                comparisons=len(names) - 1,
                higher_is_better=searcher.higher_is_better,
            )[name]
        results[name] = CandidateResult(
            name,
            searcher.rungs[rung].steps,
            estimate(scores),
            comparison,
            tuple(unit_means(scores).tolist()),
        )
    return results


def nested_estimate(
    searcher: Searcher, search: Search, names: Sequence[str]
) -> NestedEstimate | None:
    """Test the choice of each outer fold on that fold; None without nesting."""
    if not search.outer:
        return None
    steps = searcher.rungs[-1].steps
    chosen = [
        searcher.fold_scores(choice.winner, fold, steps)
        for fold, choice in enumerate(search.outer)
    ]
    reference = searcher.scores(searcher.reference, len(searcher.rungs) - 1)
    return NestedEstimate(
        estimate(chosen),
        estimate(paired(chosen, reference)),
        tuple(names[choice.winner] for choice in search.outer),
    )
