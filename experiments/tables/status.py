"""Status of jobs: how far they are, whether their data is prepared, time remaining."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable

from experiments.paper import Run
from experiments.tables.formats import pluralize
from experiments.tables.jobs import Job, Paths, load_config
from experiments.tables.numerics import REVISION
from experiments.tables.results import Result, Results
from mlti_jax._internal.progress import format_seconds
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._registry import dataset_builder
from mlti_jax.training import _metrics as metrics
from mlti_jax.training._workdir import read_result

DONE, INTERRUPTED, MISSING, NO_DATA = "done", "interrupted", "missing", "no data"
STALE = "stale"
BUILTIN = "builtin"  # a result's `source`: images that come with the installation
# Strategies with similar training speed.
SIMILAR_SPEED = {
    "metaaug": "vanilla",
    "intra": "mlti",
    "cross": "mlti",
    "metamix": "mlti",
}


@dataclasses.dataclass(frozen=True)
class Status:
    """Status of a job.

    Attributes:
      kind: `DONE`, `STALE`, `INTERRUPTED`, `MISSING` or `NO_DATA`.
      step: completed training steps.
      unprepared: its datasets that are not prepared.
      is_builtin: whether its result is from images that come with the installation.
    """

    kind: str
    step: int = 0
    unprepared: tuple[str, ...] = ()
    is_builtin: bool = False

    def __str__(self) -> str:
        if self.kind == INTERRUPTED:
            return f"{self.kind} at step {self.step:,}"
        if self.is_builtin:
            return f"{self.kind} on built-in images"
        if self.unprepared:
            return f"{self.kind}: {', '.join(self.unprepared)}"
        return self.kind


def job_status(
    job: Job,
    results: Results,
    paths: Paths,
    is_stale: Callable[[Result], bool] = lambda result: False,
) -> Status:
    """Return the status of a job, from its result, work directory and data.

    Args:
      job: the job.
      results: all results.
      paths: folders of work directories and data.
      is_stale: whether a result is to be replaced.
    """
    result = results.get(job)
    if result is not None and not is_stale(result):
        return Status(DONE, job.steps, is_builtin=result["source"] == BUILTIN)
    if datasets := unprepared_datasets(job.run, paths.data_dir):
        return Status(NO_DATA, unprepared=tuple(datasets))
    if result is not None and (paths.workdir is None or is_of(result, paths.work(job))):
        return Status(STALE)
    if paths.workdir and (paths.work(job) / "config.json").exists():
        return Status(INTERRUPTED, saved_step(paths.work(job)))
    return Status(MISSING)


def is_of(result: Result, workdir: pathlib.Path) -> bool:
    """Whether a result is of the run in a work directory, or that has no run."""
    if not (workdir / "config.json").exists():
        return True
    if not (workdir / "results.json").exists():
        return False
    found = read_result(workdir)
    return all(found.get(name) == result.get(name) for name in (REVISION, "mean"))


def unprepared_datasets(run: Run, data_dir: pathlib.Path | None) -> list[str]:
    """Return the datasets of a run that are not prepared.

    A dataset with a `source` falls back to the one that comes with the installation. A
    dataset that was prepared from a part of its release may lack training classes of
    the run.
    """
    section = load_config(run).dataset
    if "source" in section:
        return []
    names = [section.name, section.get("test_on")]
    unprepared = [name for name in names if name and not _is_prepared(name, data_dir)]
    number = section.get("train_classes")
    if (
        section.get("missing_classes") == prepared.REFUSE
        and section.name not in unprepared
        and not _has_train_classes(section.name, data_dir, number)
    ):
        unprepared.insert(0, f"{section.name} with {number} training classes")
    return unprepared


@functools.cache
def _is_prepared(name: str, data_dir: pathlib.Path | None) -> bool:
    return dataset_builder(name, data_dir).is_prepared()


@functools.cache
def _has_train_classes(name: str, data_dir: pathlib.Path | None, number: int) -> bool:
    return prepared.has_train_classes(dataset_builder(name, data_dir), number)


def saved_step(workdir: pathlib.Path) -> int:
    """Return the step of the last checkpoint; 0 without one."""
    names = [path.name for path in (workdir / "checkpoints" / "last").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def logged_progress(workdir: pathlib.Path) -> tuple[int, float | None]:
    """Return the last logged step and steps per second; `(0, None)` without a log."""
    path = workdir / "metrics.jsonl"
    lines = metrics.read(path) if path.exists() else []
    lines = [line for line in lines if line["split"] == "train"]
    return (lines[-1]["step"], lines[-1]["steps_per_second"]) if lines else (0, None)


def seconds_left(
    job: Job, step: int, results: Results, rate: float | None = None
) -> float | None:
    """Estimate the remaining training time of a job; None if unknown.

    Args:
      job: the job.
      step: completed training steps.
      results: results of other runs, to look up the speed of similar ones.
      rate: its own steps per second, if known.
    """
    rate = rate or steps_per_second(job.run, results)
    return None if rate is None else (job.steps - step) / rate


def steps_per_second(run: Run, results: Results) -> float | None:
    """Return the median speed of similar runs; None without any.

    Prefers runs with the same config, backbone, learner, similar strategy and shots;
    then any shots; then any learner and strategy.
    """
    config = load_config(run)
    strategy = SIMILAR_SPEED.get(run.strategy, run.strategy)
    same_backbone = [
        result
        for result in results.all
        if result["config"] == run.config
        and result["backbone"] == config.backbone.name
        and "steps_per_second" in result
    ]
    same_method = [
        result
        for result in same_backbone
        if result["learner"] == run.learner
        and SIMILAR_SPEED.get(result["strategy"], result["strategy"]) == strategy
    ]
    same_shots = [r for r in same_method if r["shots"] == config.task.shots]
    for chosen in (same_shots, same_method, same_backbone):
        if chosen:
            return statistics.median(result["steps_per_second"] for result in chosen)
    return None


def format_left(seconds: list[float | None], at_once: int = 1) -> str:
    """Format the total remaining time of jobs, of which `at_once` run in parallel."""
    known = [each for each in seconds if each is not None]
    unknown = len(seconds) - len(known)
    text = f"about {format_seconds(sum(known) / at_once)}" if known else ""
    if unknown:
        text += f"{' and ' if text else ''}{pluralize(unknown, 'run')} of unknown time"
    return text or "nothing"
