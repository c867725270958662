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
    python -m experiments.tables --table=overall_ls,ablation_ls [--only=nci]
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

from experiments.paper import Table
from experiments.tables import flags as run_flags
from experiments.tables.flags import ONLY, SEEDS, STEPS
from experiments.tables.formats import FORMATS
from experiments.tables.jobs import Job, nothing_named, planned
from experiments.tables.listing import listing
from experiments.tables.render import HOW, Renderer
from experiments.tables.state import unprepared
from experiments.tables.store import Results
from experiments.tables.variations import ALL_TABLES
from mlti_jax._internal import command_line
from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.progress import say
from mlti_jax.errors import InputError

flags.declare_key_flag("data_dir")
flags.adopt_module_key_flags(run_flags)
# Other tools have flags of these names too, for the same things.
SHARED = {"allow_override": True}
LIST = flags.DEFINE_bool("list", False, "List the tables, and exit.", **SHARED)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where runs leave all they make.", **SHARED
)
OUTPUT = flags.DEFINE_string("output", None, "A file to write the tables to.", **SHARED)
TABLE = flags.DEFINE_list("table", None, "Names of tables, or all.")
ALL = flags.DEFINE_bool("all", False, "All tables.")
SPLIT = flags.DEFINE_enum(
    "split", "paper", ["paper", "disjoint"], "Which molecules NCI and Metabolism use."
)
ALBERT = flags.DEFINE_string(
    "albert", None, "The folder of a checkpoint of ALBERT, for Huffpost."
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


def chosen_jobs(tables: list[Table], albert: pathlib.Path | None) -> list[Job]:
    """The jobs that the flags ask for."""
    return planned(
        [cell for table in tables for cell in table.cells()],
        seeds=SEEDS.value,
        steps=STEPS.value,
        disjoint=SPLIT.value == "disjoint",
        albert=albert is not None,
        only=ONLY.value,
    )


def albert_folder() -> pathlib.Path | None:
    """Of the checkpoint, if there is one."""
    folder = absolute(ALBERT.value)
    if folder is not None and not folder.is_dir():
        raise InputError(f"--albert={folder} is no folder; it holds a checkpoint")
    return folder


def render(tables: list[Table], results: Results) -> None:
    """Prints the tables, or writes them."""
    missing = functools.partial(unprepared, data_dir=absolute(DATA_DIR.value))
    renderer = Renderer(results, missing, STEPS.value, ONLY.value)
    reports = [report for table in tables if (report := renderer.report(table))]
    if not reports:
        raise nothing_named(ONLY.value, tables[0].cells()[0].run.name)
    text = FORMATS[FORMAT.value](reports, HOW)
    if OUTPUT.value is None:
        print(text, end="")
    else:
        path = absolute(OUTPUT.value)
        command_line.write_output(text, path)
        say(f"wrote {path}")


def main() -> None:
    """Lists, plans, runs or renders."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    if LIST.value:
        print(listing(Results(run_flags.results_folder())))
        return
    tables = chosen_tables()
    if run_flags.is_to_run("seeds", "jobs", "split", "albert"):
        albert = albert_folder()
        run_flags.run_or_tell(chosen_jobs(tables, albert), WORKDIR.value, albert)
    else:
        render(tables, Results(run_flags.results_folder()))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
