"""The paper's tables beside ours: `python -m experiments.tables --table=NAME`.

Examples, from the root of the project:

  All tables, and how many of their cells have results:
    python -m experiments.tables --list

  What would be run for a table, how far that is, and how long it will take:
    python -m experiments.tables --table=overall_ls --dry_run --workdir=DIR

  Run what is missing, three seeds each, two runs at a time; the same command goes on
  where it was interrupted, and leaves alone what is done:
    python -m experiments.tables --table=overall_ls --run --seeds=3 --jobs=2 \\
      --workdir=DIR --data_dir=DATA

  Only some of it: runs whose names have these words, for fewer steps; molecules without
  those of the test sets in training:
    ... --only=metabolism,protonet --steps=5000 --split=disjoint

  Paper, ours and differences, from the results that there are:
    python -m experiments.tables --table=overall_ls,ablation_ls
    python -m experiments.tables --all --format=latex --output=tables.tex

A run is `python -m experiments.run` in a process and work directory of its own below
`--workdir`; its output goes to `logs/` there. One that fails does not stop the others.
Its result goes as a small JSON file into `--results`, from which tables are made; other
steps than the paper's stand in its name, and in the tables. Huffpost is run with the
light encoder `word_mean`, with the paper's if `--albert` names a checkpoint. Tables
named `variations_...` are ours: one thing is changed at a time.
"""

from __future__ import annotations

import functools
import pathlib
import sys

from absl import flags, logging

from experiments import results_store
from experiments.paper import Table
from experiments.results_store import Results
from experiments.table_formats import FORMATS
from experiments.table_jobs import Job, Place, planned
from experiments.table_listing import dry_run, listing
from experiments.table_render import Renderer
from experiments.table_runs import Runner
from experiments.table_state import unprepared
from experiments.variations import ALL_TABLES
from mlti_jax import command_line
from mlti_jax.command_line import DATA_DIR
from mlti_jax.errors import InputError, unknown_name
from mlti_jax.progress import say

flags.declare_key_flag("data_dir")
# Other tools have flags of these names too, for the same things.
SHARED = {"allow_override": True}
LIST = flags.DEFINE_bool("list", False, "List the tables, and exit.", **SHARED)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where runs leave all they make.", **SHARED
)
OUTPUT = flags.DEFINE_string("output", None, "A file to write the tables to.", **SHARED)
TABLE = flags.DEFINE_list("table", None, "Names of tables, or all.")
ALL = flags.DEFINE_bool("all", False, "All tables.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Say what would be run, and exit.")
RUN = flags.DEFINE_bool("run", False, "Run what is missing.")
SEEDS = flags.DEFINE_integer("seeds", 1, "Seeds of each run, from 0.", lower_bound=1)
STEPS = flags.DEFINE_integer(
    "steps", None, "Training steps; the paper's if not given.", lower_bound=1
)
ONLY = flags.DEFINE_list("only", [], "Words that parts of a run's name begin with.")
JOBS = flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
SPLIT = flags.DEFINE_enum(
    "split", "paper", ["paper", "disjoint"], "Which molecules NCI and Metabolism use."
)
ALBERT = flags.DEFINE_string(
    "albert", None, "The folder of a checkpoint of ALBERT, for Huffpost."
)
RESULTS = flags.DEFINE_string(
    "results", str(results_store.FOLDER), "Where results are kept."
)
FORMAT = flags.DEFINE_enum("format", "markdown", list(FORMATS), "Of the tables.")


def chosen_tables() -> list[Table]:
    """The tables that the flags name."""
    names = ["all"] if ALL.value else TABLE.value
    if not names:
        raise InputError("--table is missing; --list names the tables, --all takes all")
    if "all" in names:
        return list(ALL_TABLES.values())
    for name in names:
        if name not in ALL_TABLES:
            raise unknown_name("table", name, [*ALL_TABLES, "all"])
    return [ALL_TABLES[name] for name in names]


def chosen_jobs(tables: list[Table]) -> list[Job]:
    """The jobs that the flags ask for."""
    return planned(
        [cell for table in tables for cell in table.cells()],
        seeds=SEEDS.value,
        steps=STEPS.value,
        disjoint=SPLIT.value == "disjoint",
        albert=ALBERT.value is not None,
        only=ONLY.value,
    )


def render(tables: list[Table], folder: pathlib.Path, place: Place) -> None:
    """Prints the tables, or writes them."""
    absent = functools.partial(unprepared, data_dir=place.data_dir)
    renderer = Renderer(Results(folder), absent, STEPS.value)
    text = FORMATS[FORMAT.value]([renderer.report(table) for table in tables])
    if OUTPUT.value is None:
        print(text, end="")
    else:
        pathlib.Path(OUTPUT.value).write_text(text, encoding="utf-8")
        say(f"wrote {OUTPUT.value}")


def main(argv: list[str]) -> None:
    """Lists, plans, runs or renders."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}; see --help")
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    folder = _path(RESULTS.value)
    place = Place(*map(_path, (WORKDIR.value, DATA_DIR.value, ALBERT.value)))
    if LIST.value:
        print(listing(Results(folder)))
        return
    tables = chosen_tables()
    if DRY_RUN.value and RUN.value:
        raise InputError("--run and --dry_run exclude each other; choose one")
    if DRY_RUN.value:
        print(dry_run(chosen_jobs(tables), Results(folder), place, JOBS.value))
    elif RUN.value:
        if place.workdir is None:
            raise InputError(
                "--run needs --workdir=DIR, where runs leave all they make"
            )
        Runner(chosen_jobs(tables), place, folder, JOBS.value).run()
    else:
        render(tables, folder, place)


def _path(text: str | None) -> pathlib.Path | None:
    """Absolute, since runs start in the root of the project."""
    return None if text is None else pathlib.Path(text).expanduser().absolute()


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
