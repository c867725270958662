"""The pages of a run and of a comparison, from their results."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from mlti_jax.data import Splits
from mlti_jax.learners import Learner, Variables
from mlti_jax.report import _charts as charts
from mlti_jax.report import _repeat as repeat
from mlti_jax.report import _sections as sections
from mlti_jax.report._page import Page, Part, Section, Table
from mlti_jax.report._tasks import task_parts
from mlti_jax.strategies import Strategy
from mlti_jax.training import Episode, Experiment, paired_difference
from mlti_jax.training._experiment import TEST

REPORT = "report.html"
_MAX_TASKS = 200  # test tasks whose outputs are shown


class Method(Protocol):
    """What a comparison shows of a method: an `Experiment` or a `FittedLearner`."""

    @property
    def config(self) -> Any:
        """The config."""

    @property
    def splits(self) -> Splits | None:
        """The data."""

    @property
    def learner(self) -> Learner:
        """The learner."""

    @property
    def strategy(self) -> Strategy:
        """The strategy."""


# ------------------------------------------------------------------------ one run


def run_page(
    experiment: Experiment,
    result: Mapping[str, Any],
    folder: pathlib.Path,
    variables: Variables,
    temperature: float | None,
    fingerprint: str,
) -> Page:
    """Return the page of a finished run; arguments as in `write_run`."""
    config, splits, metric = experiment.config, experiment.splits, result["metric"]
    pool = splits.test
    assert pool is not None  # see `build`
    tasks = list(
        experiment.evaluator.outputs_by_task(
            variables,
            pool,
            experiment.eval_key(TEST),
            min(_MAX_TASKS, result["num_tasks"]),
        )
    )
    parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(variables.params))
    selected = "chosen on validation tasks"
    last = "the last, since the data has no validation tasks"
    facts = [
        (f"test {charts.name_of(metric)}", _interval(result)),
        ("test tasks", f"{result['num_tasks']:,}"),
        ("size of a task", _size(result, splits)),
        ("method", f"{result['learner']}, {result['strategy']}"),
        ("tested step", f"{result['step']:,} of {result['train_steps']:,}"),
    ]
    if metric == "accuracy":
        facts.insert(1, ("chance", f"{100 / result['ways']:.1f} %"))
    about = [
        f"The learner {result['learner']} on the network {result['backbone']} "
        f"({parameters:,} parameters), trained with the strategy "
        f"{result['strategy']} and seed {result['seed']}; the checkpoint of step "
        f"{result['step']:,} was tested ({selected if splits.validation else last}).",
        *(f"{note[:1].upper()}{note[1:]}." for note in experiment.notes[1:]),
    ]
    parts = [
        sections.result_section(config, pool, result, tasks),
        sections.curves_section({result["strategy"]: folder}, metric),
        sections.predictions_section(tasks, splits),
    ]
    if splits.setting != "regression":
        why_not = _why_not_calibrated(splits)
        parts.append(sections.calibration_section(tasks, temperature, why_not))
    parts += [
        _tasks_section(splits, experiment.strategy, experiment.episode),
        *sections.background_sections(
            splits, config, about, repeat.call(config, adapted=experiment.adapted)
        ),
    ]
    return Page(
        title=f"{result['dataset']}: {result['learner']} with {result['strategy']}",
        sections=tuple(parts),
        subtitle=_subtitle(result, splits),
        facts=tuple(facts),
        fingerprint=fingerprint,
    )


def _tasks_section(splits: Splits, strategy: Strategy, episode: Episode) -> Section:
    return Section("Training tasks", task_parts(splits.train, strategy, episode))


def _why_not_calibrated(splits: Splits) -> str:
    if splits.validation is None:
        return (
            "Probabilities are as the learner gives them: without validation tasks, "
            "no temperature can be fitted."
        )
    return (
        "Probabilities are as the learner gives them. fit and experiments.predict "
        "divide the logits by a temperature that they fit on the validation tasks, "
        "unless none is optimal."
    )


def _interval(result: Mapping[str, Any]) -> str:
    return sections.interval_text(result["metric"], result["mean"], result["ci95"])


def _size(result: Mapping[str, Any], splits: Splits) -> str:
    if splits.setting == "regression":
        return f"{result['shots']} support samples"
    return f"{result['ways']}-way {result['shots']}-shot"


def _subtitle(result: Mapping[str, Any], splits: Splits) -> str:
    setting = splits.setting.replace("_", "-")
    source = f" ({result['source']})" if result["source"] else ""
    return (
        f"{result['dataset']}{source}, {setting}, {_size(result, splits)}, seed "
        f"{result['seed']}, {result['train_steps']:,} training steps"
    )


# --------------------------------------------------------------------- comparison


# Mean and half-width of the 95 % interval of a difference, and a word on it.
Verdict = tuple[float, float, str]


def comparison_page(
    methods: Mapping[str, Method],
    results: Mapping[str, Mapping[str, Any]],
    folder: pathlib.Path,
    verdicts: Mapping[str, Verdict],
    runs: int,
    fingerprint: str,
) -> Page:
    """Return the page of a comparison; arguments as in `write_comparison`."""
    first, *others = results
    metric, method = results[first]["metric"], methods[first]
    splits, config = method.splits, method.config
    assert splits is not None
    parts = [
        _differences_section(config, splits, results, verdicts, runs),
        sections.curves_section({name: folder / name for name in results}, metric),
    ]
    mixing = [name for name in others if methods[name].strategy.changes_inputs]
    if mixing:
        task = methods[mixing[0]].config.task
        episode = Episode(task.ways, task.shots, task.queries)
        strategy = methods[mixing[0]].strategy
        parts.append(_tasks_section(splits, strategy, episode))
    names = ", ".join(results)
    about = f"The settings of {first}; {names} differ in nothing but the strategy."
    code = repeat.call(
        config,
        "compare",
        f", {tuple(results)!r}, seed={config.seed}, seeds={runs}",
        getattr(method.learner, "adapted", None),
    )
    parts += sections.background_sections(splits, config, [about], code)
    return Page(
        title=f"{results[first]['dataset']}: {_listed(results)} compared",
        sections=tuple(parts),
        subtitle=f"{results[first]['learner']}, " + _subtitle(results[first], splits),
        facts=tuple((name, _interval(result)) for name, result in results.items()),
        links=tuple((f"report of {name}", f"{name}/{REPORT}") for name in results),
        fingerprint=fingerprint,
    )


def _covered(runs: int) -> str:
    """Describe what the intervals of differences cover."""
    if runs == 1:
        return (
            "The intervals cover the choice of test tasks, not the randomness of "
            "training, with one run per method."
        )
    return (
        f"Each method was trained {runs} times; values are means over these runs. The "
        "intervals in the table and the first plot cover the choice of test tasks and "
        "the randomness of training, the other intervals only the former."
    )


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _differences_section(
    config: Any,
    splits: Splits,
    results: Mapping[str, Mapping[str, Any]],
    verdicts: Mapping[str, Verdict],
    runs: int,
) -> Section:
    """Show the paired differences from the first method."""
    first, *others = results
    metric, number = results[first]["metric"], results[first]["num_tasks"]
    scale, unit = charts.scale_of(metric), charts.label_of(metric)
    base = np.array(results[first]["per_task"])
    gaps = {name: np.array(results[name]["per_task"]) - base for name in others}
    rows = [(first, _interval(results[first]), "", "")]
    intervals = {}
    for name in others:
        mean, ci95 = paired_difference(results[name]["per_task"], base)
        word = ""
        if name in verdicts:
            mean, ci95, word = verdicts[name]
        intervals[name] = (scale * mean, scale * ci95)
        text = sections.interval_text(metric, mean, ci95, "+")
        rows.append((name, _interval(results[name]), text, word))
    header = ["method", metric, f"difference from {first}"]
    if verdicts:
        header.append("verdict")
    table = Table(tuple(header), tuple(row[: len(header)] for row in rows))
    label = f"difference in {unit}"
    parts: list[Part] = [
        f"All methods are tested on the same {number} tasks, so differences are "
        f"taken task by task. {_covered(runs)}",
        table,
        charts.interval_plot(
            intervals, label, f"Mean difference from {first}, with 95 % intervals.", 0.0
        ),
    ]
    pool = splits.test
    assert pool is not None
    for name, gap in gaps.items():
        parts.append(f"{name} minus {first}:")
        caption = f"Distribution over {number} test tasks, with the mean."
        parts.append(charts.histogram(gap, metric, caption, label))
        groups = sections.by_domain(gap, config, pool, results[first])
        if groups:
            caption = (
                "By task of origin: a dot per task, the mean and its 95 % interval."
            )
            parts.append(charts.groups_plot(groups, metric, caption, label))
    return Section("Paired differences", tuple(parts))
