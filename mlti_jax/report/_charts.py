"""The figures of a report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlti_jax.report._page import Picture
from mlti_jax.report._statistics import BINS, Reliability
from mlti_jax.report._svg import COLORS, INK
from mlti_jax.training._evaluation import mean_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.2  # inches: legible on a phone, room for two on a larger screen
MAX_GROUPS = 24  # rows of one chart
MAX_MATRIX = 30  # classes of a confusion matrix
_MAX_NUMBERS = 12  # classes of a confusion matrix with numbers in it
_MAX_DOTS = 60  # tasks per row
_MAX_POINTS = 800  # of a scatter plot
_GUIDE: dict[str, Any] = {"color": INK, "lw": 0.7, "alpha": 0.55}


def scale_of(metric: str) -> float:
    """Return what a metric is multiplied with for display: accuracy is in percent."""
    return 100.0 if metric == "accuracy" else 1.0


def name_of(metric: str) -> str:
    """Return the name of a metric in text."""
    return metric if metric == "accuracy" else metric.upper()


def label_of(metric: str) -> str:
    """Return the label of an axis."""
    return "accuracy, %" if metric == "accuracy" else name_of(metric)


def short(name: str, length: int = 24) -> str:
    """Cut a name that is too long for a figure."""
    name = " ".join(str(name).split())
    return name if len(name) <= length else f"{name[: length - 1]}…"


def learning_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str
) -> list[Picture]:
    """Draw the metric and the training loss of runs against steps.

    Args:
      runs: lines of `metrics.jsonl` by the name of the run.
      metric: name of the metric.

    Returns:
      Two figures; none if no run has logged anything.
    """
    if not any(runs.values()):
        return []
    scale = scale_of(metric)

    def points(run: str, split: str, name: str) -> tuple[np.ndarray, ...]:
        lines = [line for line in runs[run] if line["split"] == split and name in line]
        return tuple(
            np.array([line.get(key, np.nan) for line in lines], float)
            for key in ("step", name, "ci95")
        )

    def curve(axis: Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
        marker = "o" if len(x) <= 20 else None
        axis.plot(x, y, marker=marker, markersize=3, **style)

    def draw_metric(fig: Figure) -> None:
        axis = fig.subplots()
        for run, color in zip(runs, itertools.cycle(COLORS), strict=False):
            before = f"{run}, " if len(runs) > 1 else ""
            steps, values, _ = points(run, "train", metric)
            if len(steps):
                label = f"{before}training tasks"
                style = {"color": color, "ls": ":", "lw": 1.3, "label": label}
                curve(axis, steps, scale * values, **style)
            steps, values, ci95 = points(run, "validation", metric)
            if len(steps):
                label = f"{before}validation tasks"
                curve(axis, steps, scale * values, color=color, label=label)
                low, high = scale * (values - ci95), scale * (values + ci95)
                axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
        axis.set(xlabel="training steps", ylabel=label_of(metric))
        fig.legend(loc="outside upper center", ncols=2)

    def draw_loss(fig: Figure) -> None:
        axis = fig.subplots()
        for run, color in zip(runs, itertools.cycle(COLORS), strict=False):
            steps, values, _ = points(run, "train", "loss")
            curve(axis, steps, values, color=color, label=run)
        axis.set(xlabel="training steps", ylabel="training loss")
        if len(runs) > 1:
            fig.legend(loc="outside upper center", ncols=2)

    names = " and ".join(runs)
    validated = any(
        line["split"] == "validation" for run in runs.values() for line in run
    )
    band = " Bands are 95 % intervals over validation tasks." if validated else ""
    return [
        Picture(
            draw_metric,
            f"Learning curves of {names}: {metric} on training and validation tasks.",
            f"{name_of(metric)[:1].upper()}{name_of(metric)[1:]} against training "
            "steps. Training values are means since the previous point, on tasks as "
            f"the strategy changes them.{band}",
        ),
        Picture(
            draw_loss,
            f"Training loss of {names} against steps.",
            "Loss on training tasks, as the strategy changes them.",
        ),
    ]


def histogram(
    values: np.ndarray, metric: str, caption: str, label: str = ""
) -> Picture:
    """Draw the distribution of a metric, or of its differences, over tasks."""
    shown = scale_of(metric) * np.asarray(values, float)
    mean, ci95 = mean_and_interval(shown)

    def draw(fig: Figure) -> None:
        axis = fig.subplots()
        axis.hist(shown, bin_edges(shown).tolist(), color=COLORS[0], alpha=0.75)
        axis.axvline(mean, color=COLORS[1], lw=1.5)
        axis.axvspan(mean - ci95, mean + ci95, color=COLORS[1], alpha=0.25, lw=0)
        axis.set(xlabel=label or label_of(metric), ylabel="test tasks")

    alt = (
        f"Histogram over {len(shown)} test tasks: mean {mean:.4g}, from "
        f"{shown.min():.4g} to {shown.max():.4g}."
    )
    return Picture(draw, alt, caption)


def bin_edges(values: np.ndarray, most: int = 24) -> np.ndarray:
    """Return edges of at most `most` bins of a histogram, of equal width.

    The accuracies of tasks are multiples of one fraction. Each bin covers equally many
    of them, or bins would be empty in between.
    """
    low, high = float(values.min()), float(values.max())
    # Rounding makes equal what is equal up to the precision of the values.
    decimals = 4 - math.floor(math.log10(high - low)) if high > low else 0
    steps = np.diff(np.unique(values.round(decimals)))
    if not len(steps):
        return np.array([low - 0.5, low + 0.5])
    step = float(steps.min())
    number = round((high - low) / step) + 1
    step *= -(-number // most)
    bins = -(-(high - low + float(steps.min())) // step)
    return low - steps.min() / 2 + step * np.arange(bins + 1)


def groups_plot(
    groups: Mapping[str, np.ndarray], metric: str, caption: str, label: str = ""
) -> Picture:
    """Draw one row per group: a dot per task, the mean and its interval.

    Args:
      groups: values by name, none empty; ordered by mean, and cut in the middle if
        there are more than `MAX_GROUPS`.
      metric: name of the metric.
      caption: of the figure.
      label: of the axis; None for that of the metric.
    """
    scale = scale_of(metric)
    ordered = sorted(groups.items(), key=lambda item: float(item[1].mean()))
    left_out = len(ordered) - MAX_GROUPS
    if left_out > 0:
        half = MAX_GROUPS // 2
        ordered = ordered[:half] + ordered[-half:]
        caption += f" {left_out} groups in between are left out."

    def draw(fig: Figure) -> None:
        axis = fig.subplots()
        rng = np.random.default_rng(0)
        for row, (_, values) in enumerate(ordered):
            values = scale * values
            dots = values[:_MAX_DOTS]
            y = row + rng.uniform(-0.22, 0.22, len(dots))
            axis.plot(dots, y, "o", ms=2.2, mew=0, alpha=0.4, color=COLORS[0])
            _interval(axis, row, *mean_and_interval(values), COLORS[1])
        axis.set_yticks(range(len(ordered)), [short(name) for name, _ in ordered])
        axis.tick_params(axis="y", length=0)
        axis.set(xlabel=label or label_of(metric), ylim=(-0.6, len(ordered) - 0.4))

    means = ", ".join(f"{name} {scale * values.mean():.4g}" for name, values in ordered)
    size = (WIDTH, 0.75 + 0.23 * max(3, len(ordered)))
    return Picture(draw, f"Mean by group: {means}.", caption, size)


def interval_plot(
    intervals: Mapping[str, tuple[float, float]],
    label: str,
    caption: str = "",
    reference: float | None = None,
) -> Picture:
    """Draw a mean with its 95 % interval per row.

    Args:
      intervals: mean and half-width of the interval by name.
      label: label of the axis.
      caption: of the figure.
      reference: where to draw a vertical line, such as 0 for differences.

    Examples:
      >>> picture = interval_plot({"mlti": (1.5, 0.5)}, "difference", reference=0.0)
      >>> picture.alt
      'difference: mlti 1.5 ± 0.5.'
    """
    names = list(intervals)

    def draw(fig: Figure) -> None:
        axis = fig.subplots()
        if reference is not None:
            axis.axvline(reference, **_GUIDE, ls="--")
        for row, name in enumerate(names):
            _interval(axis, row, *intervals[name], COLORS[row % len(COLORS)])
        axis.set_yticks(range(len(names)), [short(name) for name in names])
        axis.tick_params(axis="y", length=0)
        axis.set(xlabel=label, ylim=(len(names) - 0.4, -0.6))

    values = ", ".join(f"{n} {m:.4g} ± {h:.3g}" for n, (m, h) in intervals.items())
    size = (WIDTH, 0.8 + 0.28 * max(2, len(names)))
    return Picture(draw, f"{label}: {values}.", caption, size)


def _interval(axis: Axes, row: int, mean: float, half: float, color: str) -> None:
    if np.isfinite(half):
        axis.plot([mean - half, mean + half], [row, row], color=color, lw=2)
    axis.plot([mean], [row], "o", ms=5, color=color)


def calibration_plot(diagrams: Mapping[str, Reliability], caption: str) -> Picture:
    """Draw accuracy against confidence by bin; the area of a dot is its queries."""

    def draw(fig: Figure) -> None:
        axis = fig.subplots()
        axis.plot([0, 100], [0, 100], **_GUIDE, ls="--")
        for (name, found), color in zip(diagrams.items(), COLORS, strict=False):
            filled = found.queries > 0
            x, y = 100 * found.confidence[filled], 100 * found.accuracy[filled]
            area = 8 + 150 * found.queries[filled] / found.queries.sum()
            label = f"{name}: error {100 * found.error:.1f} %"
            axis.plot(x, y, color=color, lw=1.1, label=label)
            axis.scatter(x, y, area, color=color, alpha=0.8, lw=0)
        axis.set(xlabel="confidence, %", ylabel="accuracy, %")
        axis.set(xlim=(0, 103), ylim=(-3, 103))
        fig.legend(loc="outside upper center", ncols=2)

    errors = ", ".join(f"{n} {100 * d.error:.1f} %" for n, d in diagrams.items())
    alt = f"Accuracy against confidence in {BINS} bins. Calibration error: {errors}."
    return Picture(draw, alt, caption, (WIDTH, 3.3))


def confusion_plot(counts: np.ndarray, names: Sequence[str], caption: str) -> Picture:
    """Draw counts by true and predicted class `[C, C]`, as percentages of rows."""
    with np.errstate(invalid="ignore"):
        share = np.nan_to_num(counts / counts.sum(axis=1, keepdims=True))
    number = len(names)

    def draw(fig: Figure) -> None:
        axis = fig.subplots()
        red, green, blue = (int(COLORS[0][i : i + 2], 16) for i in (1, 3, 5))
        cells = np.empty((number, number, 4), np.uint8)
        cells[..., :3] = red, green, blue
        cells[..., 3] = np.round(255 * share)
        axis.imshow(cells)
        fontsize = 8 if number <= 8 else 6.5
        if number <= _MAX_NUMBERS:
            for row, column in np.argwhere(counts > 0):
                text = f"{100 * share[row, column]:.0f}"
                axis.text(
                    column, row, text, ha="center", va="center", fontsize=fontsize
                )
        labels = [short(name, 14) for name in names]
        rotation = 90 if number * max(map(len, labels)) > 40 else 0
        axis.set_xticks(range(number), labels, rotation=rotation)
        axis.set_yticks(range(number), labels)
        axis.tick_params(length=0, labelsize=fontsize)
        axis.set(xlabel="predicted class", ylabel="true class")
        for edge in np.arange(number + 1) - 0.5:
            axis.axhline(edge, color=INK, lw=0.4, alpha=0.25)
            axis.axvline(edge, color=INK, lw=0.4, alpha=0.25)
        axis.spines[:].set_visible(False)

    right = np.trace(counts) / counts.sum()
    alt = f"Confusion matrix of {number} classes; {100 * right:.1f} % are correct."
    return Picture(draw, alt, caption, (WIDTH, 3.2 if number <= 3 else 4.2))


def predictions_plot(true: np.ndarray, predicted: np.ndarray, name: str) -> Picture:
    """Draw predicted against true values `[M]`."""
    chosen = np.linspace(0, len(true) - 1, min(len(true), _MAX_POINTS)).astype(int)

    def draw(fig: Figure) -> None:
        axis = fig.subplots()
        ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
        axis.plot(ends, ends, **_GUIDE, ls="--")
        axis.plot(true[chosen], predicted[chosen], "o", ms=2.5, mew=0, alpha=0.5)
        axis.set(xlabel=f"true {name}", ylabel=f"predicted {name}")

    spread = true.std() * predicted.std()
    relation = np.corrcoef(true, predicted)[0, 1] if spread > 0 else np.nan
    said = f" Correlation {relation:.2f}." if np.isfinite(relation) else ""
    alt = f"Predicted against true {name} of {len(true):,} queries.{said}"
    caption = (
        f"{len(chosen):,} of {len(true):,} queries; on the line, a prediction is "
        f"exact.{said}"
    )
    return Picture(draw, alt, caption, (WIDTH, 3.4))
