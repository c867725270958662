"""Write `report.html` into the work directory of a run or a comparison."""

from __future__ import annotations

import errno
import pathlib
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from mlti_jax._internal.extras import require
from mlti_jax._internal.progress import say
from mlti_jax._internal.storage import digest
from mlti_jax.data import Splits
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.report import _charts as charts
from mlti_jax.report import _repeat as repeat
from mlti_jax.report import _sections as sections
from mlti_jax.report._page import Page, Part, Section, Table, write_page
from mlti_jax.report._tasks import task_parts
from mlti_jax.strategies import Strategy
from mlti_jax.training import Episode, Experiment, paired_difference
from mlti_jax.training._experiment import TEST
from mlti_jax.training._workdir import tested_variables

REPORT = "report.html"
_MAX_TASKS = 200  # test tasks whose outputs are shown
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


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


class Temperature(Protocol):
    """What a report shows of a `Calibration`."""

    @property
    def temperature(self) -> float:
        """The number that divides logits."""


def write_run(
    experiment: Experiment,
    result: Mapping[str, Any],
    workdir: str | pathlib.Path | None,
    *,
    variables: Variables | None = None,
    calibration: Temperature | None = None,
) -> None:
    """Write `report.html` of a finished run into its work directory.

    Shows the data, the settings, learning curves, the distribution of the metric over
    test tasks, calibration, predictions on at most 200 of the fixed test tasks, and
    some training tasks. A report of the same result is not written again.

    The result is safe before this is called, so what goes wrong here does not raise:
    a missing package or a read-only disk is printed, a fault of the report is a
    `RuntimeWarning`.

    Args:
      experiment: what was run.
      result: the content of `results.json`.
      workdir: the work directory; nothing is written if None.
      variables: the variables that were tested; None to restore them from `workdir`.
      calibration: temperature scaling; None if the run has none.

    Raises:
      OSError: if the disk is full or fails.
    """
    if workdir is None:
        return
    folder = pathlib.Path(workdir)
    temperature = None if calibration is None else calibration.temperature
    fingerprint = digest({"result": dict(result), "temperature": temperature})

    def page() -> Page:
        found = variables
        if found is None:
            found, _ = tested_variables(experiment, folder)
        return _run_page(experiment, result, folder, found, temperature, fingerprint)

    _write(folder, fingerprint, page)


def write_comparison(
    methods: Mapping[str, Method],
    results: Mapping[str, Mapping[str, Any]],
    workdir: str | pathlib.Path | None,
    *,
    verdicts: Mapping[str, str] | None = None,
) -> None:
    """Write `report.html` of a comparison into the directory above its runs.

    Shows the paired difference of each method from the first, over all test tasks and
    by task of origin, learning curves, and links to the reports of the runs, which are
    in `workdir / name`. Errors are handled as in `write_run`.

    Args:
      methods: what was run, by name.
      results: the content of `results.json`, by the same names.
      workdir: the directory; nothing is written if None.
      verdicts: a word on each difference, by name, such as `helps`.
    """
    if workdir is None:
        return
    folder = pathlib.Path(workdir)
    fingerprint = digest({name: dict(result) for name, result in results.items()})

    def page() -> Page:
        return _comparison_page(methods, results, folder, verdicts or {}, fingerprint)

    _write(folder, fingerprint, page)


def _write(folder: pathlib.Path, fingerprint: str, page: Callable[[], Page]) -> None:
    path = folder / REPORT
    if _is_current(path, fingerprint):
        return
    try:
        for package in ("jinja2", "matplotlib"):
            require(package, "plot")
    except InputError as error:
        say(f"{path} was not written: {error}")
        return
    try:
        write_page(page(), path)
    except OSError as error:
        # The run wrote its result here, so only an earlier run can be read-only.
        if error.errno not in _READ_ONLY:
            raise
        say(f"{path} was not written: {error.strerror}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        warnings.warn(
            f"{path} was not written, but the results are complete: "
            f"{type(error).__name__}: {error} "
            f"({pathlib.Path(place.filename).name}, line {place.lineno})",
            RuntimeWarning,
            stacklevel=3,
        )
    else:
        say(f"report: {path}")


def _is_current(path: pathlib.Path, fingerprint: str) -> bool:
    """Whether a report exists that shows the same result."""
    if not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return f'content="{fingerprint}"' in file.read(4096)


# ------------------------------------------------------------------------ one run


def _run_page(
    experiment: Experiment,
    result: Mapping[str, Any],
    folder: pathlib.Path,
    variables: Variables,
    temperature: float | None,
    fingerprint: str,
) -> Page:
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
    last = "the last, since there are no validation tasks"
    facts = [
        (f"test {metric}", _interval(result)),
        ("test tasks", f"{result['num_tasks']:,}, {_size(result, splits)}"),
        ("learner and strategy", f"{result['learner']}, {result['strategy']}"),
        ("tested step", f"{result['step']:,} of {result['train_steps']:,}"),
    ]
    if metric == "accuracy":
        facts.insert(1, ("chance", f"{100 / result['ways']:.1f} %"))
    about = [
        f"The learner {result['learner']} on the network {result['backbone']} "
        f"({parameters:,} parameters), trained with the strategy "
        f"{result['strategy']} and seed {result['seed']}; the checkpoint of step "
        f"{result['step']:,} was tested ({selected if splits.validation else last}).",
        *experiment.notes[1:],
    ]
    parts = [
        sections.result_section(config, pool, result, tasks),
        sections.curves_section({result["strategy"]: folder}, metric),
        sections.predictions_section(tasks, pool),
    ]
    if splits.setting != "regression":
        why_not = _why_not_calibrated(splits)
        parts.append(sections.calibration_section(tasks, temperature, why_not))
    parts += [
        _tasks_section(splits, experiment.strategy, experiment.episode),
        sections.data_section(splits),
        sections.settings_section(config, about),
        sections.repeat_section(repeat.command() or repeat.call(config)),
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
        "Probabilities are as the learner gives them. `fit` and `experiments.predict` "
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


def _comparison_page(
    methods: Mapping[str, Method],
    results: Mapping[str, Mapping[str, Any]],
    folder: pathlib.Path,
    verdicts: Mapping[str, str],
    fingerprint: str,
) -> Page:
    first, *others = results
    metric, method = results[first]["metric"], methods[first]
    splits, config = method.splits, method.config
    assert splits is not None
    parts = [
        _differences_section(config, splits, results, verdicts),
        sections.curves_section({name: folder / name for name in results}, metric),
    ]
    mixing = [name for name in others if methods[name].strategy.transform is not None]
    if mixing:
        task = methods[mixing[0]].config.task
        episode = Episode(task.ways, task.shots, task.queries)
        strategy = methods[mixing[0]].strategy
        parts.append(_tasks_section(splits, strategy, episode))
    names = ", ".join(results)
    about = f"The settings of {first}; {names} differ in nothing but the strategy."
    parts += [
        sections.data_section(splits),
        sections.settings_section(config, [about]),
        sections.repeat_section(
            repeat.command() or repeat.call(config, "compare", f", {tuple(results)!r}")
        ),
    ]
    return Page(
        title=f"{results[first]['dataset']}: {_listed(results)} compared",
        sections=tuple(parts),
        subtitle=f"{results[first]['learner']}, " + _subtitle(results[first], splits),
        facts=tuple((name, _interval(result)) for name, result in results.items()),
        links=tuple((f"report of {name}", f"{name}/{REPORT}") for name in results),
        fingerprint=fingerprint,
    )


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _differences_section(
    config: Any,
    splits: Splits,
    results: Mapping[str, Mapping[str, Any]],
    verdicts: Mapping[str, str],
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
        intervals[name] = (scale * mean, scale * ci95)
        text = sections.interval_text(metric, mean, ci95, "+")
        rows.append((name, _interval(results[name]), text, verdicts.get(name, "")))
    header = ["method", metric, f"difference from {first}"]
    if verdicts:
        header.append("verdict")
    table = Table(tuple(header), tuple(row[: len(header)] for row in rows))
    label = f"difference in {unit}"
    parts: list[Part] = [
        f"All methods are tested on the same {number} tasks, so differences are "
        "taken task by task. The intervals cover the choice of test tasks, not the "
        "randomness of training, with one run per method.",
        table,
        charts.interval_plot(
            intervals, label, f"Mean difference from {first}, with 95 % intervals.", 0.0
        ),
    ]
    pool = splits.test
    assert pool is not None
    for name, gap in gaps.items():
        caption = f"{name} minus {first}, over {number} test tasks."
        parts.append(charts.histogram(gap, metric, caption, label))
        groups = sections.by_domain(gap, config, pool, results[first])
        if groups:
            caption = (
                f"{name} minus {first} by task of origin: a dot per test task, the "
                "mean and its 95 % interval."
            )
            parts.append(charts.groups_plot(groups, metric, caption, label))
    return Section("Paired differences", tuple(parts))
