"""The paper's tables next to our results: `python -m experiments.tables --table=NAME`.

Examples, from the root of the project:

  List the tables, and how many of their cells have results:
    python -m experiments.tables --list

  Print the runs of a table, their status and the time they will take:
    python -m experiments.tables --table=overall_ls --dry_run --workdir=DIR

  Run what is missing, with three seeds, two runs at a time. The same command resumes
  interrupted runs and skips finished ones:
    python -m experiments.tables --table=overall_ls --run --seeds=3 --jobs=2 \\
      --workdir=DIR --data_dir=DATA

  Run a part of a table: only runs whose names match these words, with fewer steps, and
  without test molecules in the training sets:
    ... --only=metabolism,protonet --steps=5000 --split=disjoint

  Print the paper's numbers, ours and the differences:
    python -m experiments.tables --table=overall_ls,ablation_ls [--only=nci]
    python -m experiments.tables --all --format=latex --output=tables.tex

  The same in SLURM, without a limit on the number of parallel runs:
    ... --executor=slurm --partition=gpu --gpus=1 --time=12h

  Run again what the code no longer computes, besides what is missing:
    ... --run --stale

Each run is a process `python -m experiments.run` with its own work directory in
`--workdir`; its output goes to `logs/` there. A failed run does not stop the others.
`docs/clusters.md` explains runs in SLURM.
Results are stored as small JSON files in `--results`, from which the tables are
rendered. If the number of steps is not the paper's, it is part of the result's name and
shown in the tables. Huffpost uses the light encoder `word_mean`, or the paper's encoder
if `--albert` is the folder of a checkpoint. The tables `variations_...` are our own:
each row changes one setting.
"""

from __future__ import annotations

import functools
import pathlib
import sys

from absl import flags, logging

from experiments.paper import Table
from experiments.tables import launch
from experiments.tables.formats import FORMATS, pluralize
from experiments.tables.jobs import Job, make_jobs, no_match
from experiments.tables.launch import ONLY, SEEDS, STEPS
from experiments.tables.render import LEGEND, Renderer
from experiments.tables.results import Results
from experiments.tables.status import unprepared_datasets
from experiments.tables.variations import ALL_TABLES
from mlti_jax._internal import command_line
from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.progress import say
from mlti_jax.errors import InputError

flags.declare_key_flag("data_dir")
flags.adopt_module_key_flags(launch)
# `allow_override`: other tools define flags with these names too.
LIST = flags.DEFINE_bool(
    "list", False, "List the tables, and exit.", allow_override=True
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder for the work directories of all runs.", allow_override=True
)
OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "File to write; default: print the tables.",
    allow_override=True,
)
TABLE = flags.DEFINE_list("table", None, "Names of tables, or all.")
ALL = flags.DEFINE_bool("all", False, "All tables.")
SPLIT = flags.DEFINE_enum(
    "split", "paper", ["paper", "disjoint"], "Split of NCI and Metabolism."
)
ALBERT = flags.DEFINE_string(
    "albert", None, "Folder of an ALBERT checkpoint, for Huffpost."
)
FORMAT = flags.DEFINE_enum("format", "markdown", list(FORMATS), "Output format.")


def chosen_tables() -> list[Table]:
    """Return the tables given with `--table` or `--all`."""
    names = ["all"] if ALL.value else TABLE.value
    if not names:
        raise InputError("--table is missing; --list shows the tables, --all takes all")
    if "all" in names:
        return list(ALL_TABLES.values())
    for name in names:
        if name not in ALL_TABLES:
            raise unknown_name("table", name, [*ALL_TABLES, "all"])
    return [ALL_TABLES[name] for name in names]


def chosen_jobs(tables: list[Table], albert: pathlib.Path | None) -> list[Job]:
    """Return the jobs of the tables that the flags select."""
    return make_jobs(
        [cell for table in tables for cell in table.cells()],
        seeds=SEEDS.value,
        steps=STEPS.value,
        disjoint=SPLIT.value == "disjoint",
        albert=albert is not None,
        only=ONLY.value,
    )


def albert_folder() -> pathlib.Path | None:
    """Return the folder given with `--albert`."""
    folder = absolute(ALBERT.value)
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"--albert={folder} is not a folder; expected that of a checkpoint"
        )
    return folder


def listing(results: Results) -> str:
    """Return the tables with their captions, number of cells, and of results."""
    width = max(map(len, ALL_TABLES)) + 2
    lines = []
    for table in ALL_TABLES.values():
        applicable = [cell for cell in table.cells() if cell.is_applicable]
        others = len(table.cells()) - len(applicable)
        lines.append(
            f"{table.name:{width}}{len(applicable)} cells"
            f"{f' and {others} n/a' if others else ''}; {_count(table, results)}"
        )
        lines.append(f"{'':{width}}{table.caption}")
    return "\n".join(lines)


def _count(table: Table, results: Results) -> str:
    """Count the cells with results, also for the alternative setups."""
    counts: dict[str, int] = {}
    files = 0
    for cell in table.cells():
        variant = cell.column.variant
        runs = {"": cell.run}
        if variant is not None and cell.alternative_run is not None:
            runs[f" with {variant.alternative}"] = cell.alternative_run
        for setup, run in runs.items() if cell.is_applicable else ():
            found = sum(map(len, results.by_steps(run).values()))
            if found:
                counts[setup] = counts.get(setup, 0) + 1
                files += found
    if not files:
        return "no results"
    text = ", ".join(f"{count}{setup}" for setup, count in sorted(counts.items()))
    return f"results for {text} ({pluralize(files, 'run')})"


def render(tables: list[Table], results: Results) -> None:
    """Print the tables, or write them to `--output`."""
    unprepared = functools.partial(
        unprepared_datasets, data_dir=absolute(DATA_DIR.value)
    )
    renderer = Renderer(results, unprepared, STEPS.value, ONLY.value)
    reports = [report for table in tables if (report := renderer.report(table))]
    if not reports:
        raise no_match(ONLY.value, tables[0].cells()[0].run.name)
    text = FORMATS[FORMAT.value](reports, LEGEND)
    path = absolute(OUTPUT.value)
    if path is None:
        print(text, end="")
    else:
        command_line.write_output(text, path)
        say(f"wrote {path}")


def main() -> None:
    """List, plan, run or render tables."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns about unprepared datasets.
    if LIST.value:
        print(listing(Results(launch.results_folder())))
        return
    tables = chosen_tables()
    if launch.is_requested("seeds", "split", "albert"):
        albert = albert_folder()
        launch.launch(chosen_jobs(tables, albert), WORKDIR.value, albert)
    else:
        render(tables, Results(launch.results_folder()))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
