"""How far jobs are, whether their data is there, and how long they will take."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import statistics

from experiments.paper import Run
from experiments.tables.formats import counted
from experiments.tables.jobs import Job, Place, paper_config
from experiments.tables.store import Results
from mlti_jax._internal.progress import format_seconds
from mlti_jax.data._registry import dataset_builder
from mlti_jax.training import _metrics as metrics

DONE, INTERRUPTED, MISSING, NO_DATA = "done", "interrupted", "missing", "no data"
BUILTIN = "builtin"  # where a result's data is from
# Strategies that take about as long as each other.
FAMILIES = {
    "metaaug": "vanilla",
    "intra": "mlti",
    "cross": "mlti",
    "metamix": "mlti",
}


@dataclasses.dataclass(frozen=True)
class State:
    """How far a job is.

    Attributes:
      kind: one of the words above.
      step: done already.
      absent: datasets that there is no data of.
      is_builtin: whether its result is of images that come with the install.
    """

    kind: str
    step: int = 0
    absent: tuple[str, ...] = ()
    is_builtin: bool = False

    def __str__(self) -> str:
        if self.kind == INTERRUPTED:
            return f"{self.kind} at step {self.step:,}"
        if self.is_builtin:
            return f"{self.kind} on built-in images"
        return f"{self.kind}: {', '.join(self.absent)}" if self.absent else self.kind


def unprepared(run: Run, data_dir: pathlib.Path | None) -> list[str]:
    """The datasets of a run that are not prepared.

    One that has a `source` falls back on what comes with the install.
    """
    section = paper_config(run).dataset
    if "source" in section:
        return []
    names = [section.name, section.get("test_on")]
    return [name for name in names if name and not _is_prepared(name, data_dir)]


@functools.cache
def _is_prepared(name: str, data_dir: pathlib.Path | None) -> bool:
    return dataset_builder(name, data_dir).is_prepared()


def state_of(job: Job, results: Results, place: Place) -> State:
    """How far a job is, by its result, its work directory and its data."""
    if result := results.of(job):
        return State(DONE, job.steps, is_builtin=result["source"] == BUILTIN)
    if absent := unprepared(job.run, place.data_dir):
        return State(NO_DATA, absent=tuple(absent))
    if place.workdir and (place.of(job) / "config.json").exists():
        return State(INTERRUPTED, saved_step(place.of(job)))
    return State(MISSING)


def saved_step(workdir: pathlib.Path) -> int:
    """The step of the last checkpoint; 0 if there is none."""
    names = [path.name for path in (workdir / "checkpoints" / "last").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def logged(workdir: pathlib.Path) -> tuple[int, float | None]:
    """The step that a run has last told of, and its steps a second if it has."""
    path = workdir / "metrics.jsonl"
    lines = metrics.read(path) if path.exists() else []
    lines = [line for line in lines if line["split"] == "train"]
    return (lines[-1]["step"], lines[-1]["steps_per_second"]) if lines else (0, None)


def seconds_left(
    job: Job, step: int, results: Results, rate: float | None = None
) -> float | None:
    """How long training goes on from a step; None if that is not known.

    Args:
      job: what is trained.
      step: done already.
      results: of other runs, to see how fast like ones were.
      rate: its own steps a second, if known.
    """
    rate = rate or steps_per_second(job.run, results)
    return None if rate is None else (job.steps - step) / rate


def steps_per_second(run: Run, results: Results) -> float | None:
    """How fast like runs were.

    Like are those of the same learner and family of strategies, better with as many
    shots; else any with the same config and network. None if there is none.
    """
    config = paper_config(run)
    family = FAMILIES.get(run.strategy, run.strategy)
    any_of_config = [
        result
        for result in results.all
        if result["config"] == run.config
        and result["backbone"] == config.backbone.name
        and "steps_per_second" in result
    ]
    like = [
        result
        for result in any_of_config
        if result["learner"] == run.learner
        and FAMILIES.get(result["strategy"], result["strategy"]) == family
    ]
    alike = [result for result in like if result["shots"] == config.task.shots]
    for chosen in (alike, like, any_of_config):
        if chosen:
            return statistics.median(result["steps_per_second"] for result in chosen)
    return None


def format_left(seconds: list[float | None], at_once: int = 1) -> str:
    """The time that jobs take together, where it is known."""
    known = [each for each in seconds if each is not None]
    unknown = len(seconds) - len(known)
    text = f"about {format_seconds(sum(known) / at_once)}" if known else ""
    if unknown:
        text += f"{' and ' if text else ''}{counted(unknown, 'run')} of unknown time"
    return text or "nothing"
