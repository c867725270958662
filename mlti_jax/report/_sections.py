"""The sections of a report, from a run and its result."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mlti_jax.data import ClassPool, RegressionPool, Splits
from mlti_jax.data._pools import Pool
from mlti_jax.data._splits import pool_lines
from mlti_jax.report import _charts as charts
from mlti_jax.report import _repeat as repeat
from mlti_jax.report import _statistics as statistics
from mlti_jax.report._page import Folded, Listing, Part, Section, Table
from mlti_jax.training import Episode
from mlti_jax.training import _metrics as metrics
from mlti_jax.training._evaluation import (
    TaskOutputs,
    mean_and_interval,
    task_sources,
)
from mlti_jax.training._experiment import TEST

_MAX_TARGETS = 4  # figures of predicted against true values
_MAX_CONFUSIONS = 8  # rows of the table


def interval_text(metric: str, mean: float, ci95: float, sign: str = "") -> str:
    """Return a mean with its interval; accuracy in percent."""
    return metrics.format_interval(metric, mean, ci95, sign).replace("+-", "±")


def data_section(splits: Splits) -> Section:
    """Describe what data was found."""
    counts = Folded("All counts", (Listing("\n".join(pool_lines(splits))),))
    return Section("Data", (Listing(splits.summary), counts))


def settings_section(config: Any, text: Sequence[str]) -> Section:
    """Describe the method and list the settings that differ from their defaults."""
    used, unused = repeat.settings(config)
    header = ("setting", "value", "default")
    parts: list[Part] = [
        *text,
        Table(header, tuple(used), "Settings that differ from their defaults."),
    ]
    if unused:
        caption = "Options of methods that this run does not use."
        table = Table(header, tuple(unused), caption)
        parts.append(Folded(f"{len(unused)} more without effect", (table,)))
    return Section("Method and settings", tuple(parts))


def curves_section(runs: Mapping[str, pathlib.Path], metric: str) -> Section:
    """Draw learning curves from the metrics in work directories, by name."""
    lines = {
        name: metrics.read(file) if file.is_file() else []
        for name, folder in runs.items()
        for file in (folder / "metrics.jsonl",)
    }
    pictures = charts.learning_curves(lines, metric)
    parts: list[Part] = [*pictures]
    splits = {line["split"] for run in lines.values() for line in run}
    if not pictures:
        parts.append("No metrics were logged.")
    elif "validation" not in splits:
        parts.append(
            "The data has no validation tasks, so the last step was tested: no "
            "checkpoint is selected."
        )
    return Section("Learning curves", tuple(parts))


def _sources(config: Any, pool: Pool, result: Mapping[str, Any]) -> np.ndarray:
    """Return the domain of each test task of a result."""
    key = jax.random.fold_in(jax.random.key(config.eval.seed), TEST)
    episode = Episode(result["ways"], result["shots"], result["queries"])
    return task_sources(pool, key, episode, result["num_tasks"])


def by_domain(
    values: np.ndarray, config: Any, pool: Pool, result: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Split values per test task by domain; empty if tasks have no domain."""
    if isinstance(pool, ClassPool):
        return {}
    sources = _sources(config, pool, result)
    groups = statistics.by_source(values, sources, len(pool.domains))
    return {
        name: group
        for name, group in zip(_unique(pool.domains), groups, strict=True)
        if len(group)
    }


def result_section(
    config: Any, pool: Pool, result: Mapping[str, Any], tasks: Sequence[TaskOutputs]
) -> Section:
    """Show the distribution of the metric over test tasks, and by origin."""
    metric, values = result["metric"], np.array(result["per_task"])
    number = len(values)
    parts: list[Part] = [
        charts.histogram(
            values,
            metric,
            f"Distribution over {number} test tasks; the line is the mean, the band "
            "its 95 % interval.",
        )
    ]
    if isinstance(pool, ClassPool):
        recall = statistics.recall_by_class(tasks, pool)
        named = zip(_unique(pool.classes), recall, strict=True)
        groups = {name: group for name, group in named if len(group)}
        kind, what = "class", "recall of each class in the tasks that have it"
    else:
        groups = by_domain(values, config, pool, result)
        kind, what = "task of origin", f"{charts.name_of(metric)} by task of origin"
    caption = (
        f"{what[:1].upper()}{what[1:]}: a dot per task, the mean and its 95 % interval."
    )
    label = "recall, %" if kind == "class" else ""
    parts += [
        charts.groups_plot(groups, metric, caption, label),
        Folded(f"By {kind}", (group_table(groups, metric, kind),)),
    ]
    return Section("Test tasks", tuple(parts))


def group_table(groups: Mapping[str, np.ndarray], metric: str, kind: str) -> Table:
    """List the mean of each group with its interval, the smallest mean first."""
    scale = charts.scale_of(metric)
    rows = []
    for name, values in sorted(groups.items(), key=lambda item: item[1].mean()):
        mean, ci95 = mean_and_interval(scale * values)
        half = f"{ci95:.4g}" if np.isfinite(ci95) else ""
        rows.append((name, str(len(values)), f"{mean:.4g}", half))
    return Table((kind, "tasks", "mean", "± 95 %"), tuple(rows))


def calibration_section(
    tasks: Sequence[TaskOutputs], temperature: float | None, why_not: str
) -> Section:
    """Show how far probabilities can be trusted, before and after scaling."""
    logits = np.concatenate([task.outputs for task in tasks])
    labels = np.concatenate([task.labels for task in tasks]).argmax(axis=1)
    found = {"as trained": statistics.reliability(logits, labels)}
    text = why_not
    if temperature is not None:
        found["calibrated"] = statistics.reliability(logits, labels, temperature)
        text = (
            f"Dividing the logits by the temperature {temperature:.3g}, which was "
            "fitted on validation tasks, changes the expected calibration error on "
            f"{len(tasks)} test tasks from {100 * found['as trained'].error:.1f} to "
            f"{100 * found['calibrated'].error:.1f} %."
        )
    caption = (
        "Share of correct predictions against their mean probability, in "
        f"{statistics.BINS} bins of equal width; on the dashed line, both are equal. "
        "Larger dots are bins with more queries."
    )
    tables = tuple(
        Table(
            ("probability", "queries", "confidence, %", "accuracy, %"),
            tuple(_bin_rows(diagram)),
            f"Probabilities {name}.",
        )
        for name, diagram in found.items()
    )
    parts = (text, charts.calibration_plot(found, caption), Folded("Bins", tables))
    return Section("Calibration", parts)


def _bin_rows(diagram: statistics.Reliability) -> list[tuple[str, ...]]:
    edges = 100 * np.arange(statistics.BINS + 1) / statistics.BINS
    return [
        (
            f"{edges[i]:.0f} to {edges[i + 1]:.0f} %",
            f"{diagram.queries[i]:,}",
            f"{100 * diagram.confidence[i]:.1f}",
            f"{100 * diagram.accuracy[i]:.1f}",
        )
        for i in np.flatnonzero(diagram.queries)
    ]


def predictions_section(tasks: Sequence[TaskOutputs], splits: Splits) -> Section:
    """Show which classes are confused, or predicted against true values."""
    pool = splits.test
    assert pool is not None
    if isinstance(pool, RegressionPool):
        true = np.concatenate([task.labels for task in tasks])
        predicted = np.concatenate([task.outputs for task in tasks])
        if splits.inputs is not None:  # in the user's units
            true, predicted = map(splits.inputs.targets.restore, (true, predicted))
        number = true.shape[1]
        pictures = [
            charts.predictions_plot(
                true[:, i],
                predicted[:, i],
                "value" if number == 1 else f"value {i + 1}",
            )
            for i in range(min(number, _MAX_TARGETS))
        ]
        text = f"The queries of {len(tasks)} test tasks."
        if number > _MAX_TARGETS:
            text += f" The first {_MAX_TARGETS} of {number} targets are shown."
        return Section("Predictions", (text, *pictures))
    counts = statistics.confusion(tasks, pool)
    parts: list[Part] = [
        f"The queries of {len(tasks)} test tasks, {counts.sum():,} in all."
    ]
    if isinstance(pool, ClassPool):
        parts[0] = f"{parts[0]} A class can be confused only with those of its task."
    if len(counts) <= charts.MAX_MATRIX:
        caption = "Percentages of the queries of each true class."
        parts.append(charts.confusion_plot(counts, pool.classes, caption))
    if len(counts) > 2 and (rows := _confusions(counts, pool.classes)):
        header = ("true class", "predicted class", "queries", "% of the true class")
        parts.append(Table(header, rows, "Most frequent confusions."))
    return Section("Predictions", tuple(parts))


def _confusions(
    counts: np.ndarray, names: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    wrong = counts * (1 - np.eye(len(counts), dtype=int))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_CONFUSIONS]
    rows = []
    for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if number := wrong[true, predicted]:
            share = 100 * number / counts[true].sum()
            rows.append((names[true], names[predicted], f"{number:,}", f"{share:.1f}"))
    return tuple(rows)


def repeat_section(code: str) -> Section:
    """Show the command, and the versions that were used."""
    rows = tuple(repeat.versions().items())
    return Section(
        "Repeat this run",
        (Listing(code), Table(("software", "version"), rows)),
    )


def background_sections(
    splits: Splits, config: Any, about: Sequence[str], code: str
) -> tuple[Section, ...]:
    """Return the sections that end every page: data, settings, how to repeat it.

    Args:
      splits: the data.
      config: the settings.
      about: sentences on the method.
      code: code that repeats the run, unless it was started with a command.
    """
    return (
        data_section(splits),
        settings_section(config, about),
        repeat_section(repeat.command() or code),
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Return names that can be keys: equal ones are numbered."""
    seen: dict[str, int] = {}
    unique = []
    for name in map(str, names):
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique
