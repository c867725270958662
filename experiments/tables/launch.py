"""Flags and actions of the tools that run many jobs: `--run` and `--dry_run`.

Shared by `experiments.tables` and `experiments.figures`.
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable

from absl import flags

from experiments.sweeps import executors
from experiments.sweeps.executors import JOBS, check_flags, make_executor
from experiments.tables import numerics
from experiments.tables.formats import pluralize
from experiments.tables.jobs import Job, Paths
from experiments.tables.results import FOLDER, Result, Results, existing_folder
from experiments.tables.runner import Runner
from experiments.tables.status import (
    DONE,
    NO_DATA,
    format_left,
    job_status,
    seconds_left,
)
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.progress import format_seconds
from mlti_jax.errors import InputError

RESULTS = flags.DEFINE_string(
    "results",
    str(FOLDER),
    "Folder of the results.",
    allow_override=True,  # `experiments.report` defines it too.
)
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print what would be run, and exit.")
RUN = flags.DEFINE_bool("run", False, "Run what is missing.")
SEEDS = flags.DEFINE_integer(
    "seeds", 1, "Number of seeds, from 0.", lower_bound=1, upper_bound=1000
)
STEPS = flags.DEFINE_integer(
    "steps", None, "Training steps; default: those of the paper.", lower_bound=1
)
STALE = flags.DEFINE_bool(
    "stale", False, "Also run what has a result that the code no longer computes."
)
ONLY = flags.DEFINE_list("only", [], "Beginnings of parts of a run's name.")
flags.adopt_module_key_flags(executors)


def results_folder() -> pathlib.Path:
    """Return the folder given with `--results`. It must exist, except for `--run`."""
    if RUN.value or DRY_RUN.value:
        return absolute(RESULTS.value)
    return existing_folder(RESULTS.value)


def is_requested(*run_only_flags: str) -> bool:
    """Whether `--run` or `--dry_run` is given.

    Args:
      *run_only_flags: names of flags that are invalid without either.

    Raises:
      InputError: if both are given, or a run-only flag without either.
    """
    if RUN.value and DRY_RUN.value:
        raise InputError("--run and --dry_run exclude each other; choose one")
    if RUN.value or DRY_RUN.value:
        check_flags()
        return True
    for name in (*run_only_flags, "stale", "jobs", "executor", *executors.SLURM_ONLY):
        if flags.FLAGS[name].present:
            raise InputError(f"--{name} requires --run or --dry_run")
    return False


def launch(
    jobs: list[Job], workdir: str | None, albert: pathlib.Path | None = None
) -> None:
    """Run the jobs that have no result (`--run`), or print them (`--dry_run`)."""
    paths = Paths(absolute(workdir or None), absolute(DATA_DIR.value), albert)
    folder = results_folder()
    numerics.use_cpu()
    if DRY_RUN.value:
        print(dry_run(jobs, Results(folder), paths, JOBS.value or 1, _is_stale))
    elif paths.workdir is None:
        raise InputError("--run needs --workdir=DIR, the folder for work directories")
    elif paths.workdir.exists() and not paths.workdir.is_dir():
        raise InputError(f"--workdir={paths.workdir} is a file, not a directory")
    else:
        Runner(
            jobs, paths, folder, make_executor(paths.workdir), is_stale=_is_stale
        ).run()


def _is_stale(result: Result) -> bool:
    return STALE.value and numerics.state(result) == numerics.State.STALE


def dry_run(
    jobs: list[Job],
    results: Results,
    paths: Paths,
    at_once: int,
    is_stale: Callable[[Result], bool] = lambda result: False,
) -> str:
    """Return a line per job: config, overrides, seed, steps, status, time left."""
    lines: list[str] = []
    left: list[float | None] = []
    counts: collections.Counter[str] = collections.Counter()
    for job in jobs:
        status = job_status(job, results, paths, is_stale)
        counts[status.kind] += 1
        parts = [
            f"{job.run.config}.py:{job.run.argument}",
            *(f"{field}={value}" for field, value in job.run.overrides),
            f"seed {job.seed}",
            f"{job.steps:,} steps",
            str(status),
        ]
        if status.kind != DONE:
            seconds = seconds_left(job, status.step, results)
            if status.kind != NO_DATA:
                left.append(seconds)
            parts.append("unknown time" if seconds is None else format_seconds(seconds))
        lines.append("  ".join(parts))
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    runs = pluralize(len(jobs), "run")
    lines.append(f"{runs}: {summary}; {format_left(left, at_once)} left")
    return "\n".join(lines)
