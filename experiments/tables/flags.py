"""What the tools that run and show many runs share: flags, and planning or running."""

from __future__ import annotations

import pathlib

from absl import flags

from experiments.tables import store as results_store
from experiments.tables.jobs import Job, Place
from experiments.tables.listing import dry_run
from experiments.tables.runs import Runner
from experiments.tables.store import Results
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax.errors import InputError

RESULTS = flags.DEFINE_string(
    "results",
    str(results_store.FOLDER),
    "Where results are kept.",
    allow_override=True,  # The page of results has this one too.
)
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Say what would be run, and exit.")
RUN = flags.DEFINE_bool("run", False, "Run what is missing.")
SEEDS = flags.DEFINE_integer("seeds", 1, "Seeds of each run, from 0.", lower_bound=1)
STEPS = flags.DEFINE_integer(
    "steps", None, "Training steps; the paper's if not given.", lower_bound=1
)
ONLY = flags.DEFINE_list("only", [], "Words that parts of a run's name begin with.")
JOBS = flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)


def results_folder() -> pathlib.Path:
    """Where results are kept; it must be there unless it is to be filled."""
    if RUN.value or DRY_RUN.value:
        return absolute(RESULTS.value)
    return results_store.existing_folder(RESULTS.value)


def is_to_run(*for_runs_only: str) -> bool:
    """Whether runs are asked for, or what they would be.

    Args:
      *for_runs_only: names of flags that are refused if neither is.
    """
    if RUN.value and DRY_RUN.value:
        raise InputError("--run and --dry_run exclude each other; choose one")
    if RUN.value or DRY_RUN.value:
        return True
    for name in for_runs_only:
        if flags.FLAGS[name].present:
            raise InputError(
                f"--{name} says what is run; it goes with --run or --dry_run"
            )
    return False


def run_or_tell(
    jobs: list[Job], workdir: str | None, albert: pathlib.Path | None = None
) -> None:
    """Runs what is missing of the jobs, or says what that would be."""
    place = Place(absolute(workdir), absolute(DATA_DIR.value), albert)
    folder = results_folder()
    if DRY_RUN.value:
        print(dry_run(jobs, Results(folder), place, JOBS.value))
    elif place.workdir is None:
        raise InputError("--run needs --workdir=DIR, where runs leave all they make")
    elif place.workdir.exists() and not place.workdir.is_dir():
        raise InputError(f"--workdir={place.workdir} is a file, not a directory")
    else:
        Runner(jobs, place, folder, JOBS.value).run()
