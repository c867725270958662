"""Writes the page of our results: `python -m experiments.report`.

`RESULTS.md` is made of the files in `experiments/results/` alone: the tables of the
paper that have results, each with the commands of its runs; the figures; and what
`notes.md` there says of them. Nothing is trained, and no data is needed.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys

from absl import flags

from experiments.figures import task_numbers as figure_task_numbers
from experiments.paper import Cell, Run, Table
from experiments.tables import store as results_store
from experiments.tables.formats import Section, counted, markdown_table
from experiments.tables.render import HOW, Renderer
from experiments.tables.store import PICTURES, BySeed, Results, existing_folder
from experiments.tables.variations import ALL_TABLES
from experiments.theory import remainders as theory_remainders
from experiments.theory import variance as theory_variance
from mlti_jax._internal import command_line
from mlti_jax._internal.command_line import absolute
from mlti_jax._internal.progress import say
from mlti_jax.errors import InputError
from mlti_jax.training._workdir import read_json

ROOT = pathlib.Path(__file__).parent.parent
NOTES = "notes.md"  # words on the results; the only part that is written by hand

SHARED = {"allow_override": True}
RESULTS = flags.DEFINE_string(
    "results", str(results_store.FOLDER), "Where results are kept.", **SHARED
)
OUTPUT = flags.DEFINE_string(
    "output", None, "The page to write; RESULTS.md if not given.", **SHARED
)

HEAD = """# Results

Made by `python -m experiments.report` from the files in `experiments/results/`, one a
run, each with the command that repeats it, the checksums of its data and the value of
every test task. `DATA` stands for the folder of prepared data, `DIR` for a work
directory. Test tasks are the same for all rows and seeds."""
# By how a picture's name begins: what it shows, and what makes it.
PICTURE_WORDS = {
    "task_numbers": (
        "Accuracy against the number of training tasks, with 95 % intervals "
        "(the paper's Figs. 2, 4 and 5).",
        "experiments.figures --figure=task_numbers --output=DIR",
    ),
    "tsne": (
        "Three tasks, and 300 that are interpolated between them, in a plane "
        "(the paper's Fig. 3). RUN is the work directory of the run that the picture "
        "names.",
        "experiments.figures --figure=tsne --workdir=RUN --output=DIR --data_dir=DATA",
    ),
    "sheet_metabolism": (
        "Samples of pairs of tasks, and their mixtures.",
        "experiments.figures --figure=sheets --datasets=metabolism --output=DIR "
        "--data_dir=DATA",
    ),
    "sheet_rainbow_mnist": (
        "The same for RainbowMNIST, with images that come with the install.",
        "experiments.figures --figure=sheets --datasets=rainbow_mnist --output=DIR",
    ),
    "theory": (
        "What second-order approximations of the interpolated loss leave over, with "
        "the right constants and with those that the paper prints (Lemmas 1, 2, 4).",
        "experiments.theory --output=DIR",
    ),
    "total_variance": (
        "How much of the variance of features lies between tasks (App. B.3).",
        "experiments.theory --output=DIR --data_dir=DATA",
    ),
}
THEORY = (
    "Measured by `python -m experiments.theory --output=DIR --data_dir=DATA`, and "
    "drawn below. The order of what an approximation leaves over is the slope of its "
    "logarithm, by the size of the features and by the spread of the mixtures; a "
    "second-order one must have 3 or more."
)
UNTOUCHED = "Nothing has been run for: {}; see `python -m experiments.tables --list`."


def page(folder: pathlib.Path, place: pathlib.Path = ROOT) -> str:
    """The whole page.

    Args:
      folder: of the results.
      place: where the page will lie, for its links to pictures.
    """
    results = Results(folder)
    blocks = [HEAD]
    if (folder / NOTES).exists():
        blocks.append((folder / NOTES).read_text(encoding="utf-8").strip())
    blocks += ["## Tables", HOW]
    untouched = []
    for table in ALL_TABLES.values():
        parts = table_parts(table, results)
        blocks += [f"### {table.name}", table.caption, *parts] if parts else []
        untouched += [] if parts else [table.name]
    blocks += [UNTOUCHED.format(", ".join(untouched))] if untouched else []
    blocks += theory_parts(folder) + figure_parts(folder, place)
    return "\n\n".join(blocks) + "\n"


def table_parts(table: Table, results: Results) -> list[str]:
    """The columns of a table that have results, each with the commands of these.

    What has none is named at the end. Empty if that is all.
    """
    renderer = Renderer(results, absent=lambda run: [])
    parts, absent = [], []
    for column in table.columns:
        shown = renderer.shown(table, column)
        commands = [
            _commands(_title(cell, run), shown[run])
            for cell in table.column_cells(column)
            for run in (cell.run, cell.other_run)
            if shown.get(run)
        ]
        if commands:
            section = renderer.section(table, column)
            parts += [f"**{column.title}**", markdown_table(_shown(section))]
            parts.append(_folded(f"{counted(len(commands), 'command')}", commands))
        else:
            absent.append(column.title)
    if parts and absent:
        parts.append(f"Not run: {', '.join(absent)}.")
    return parts


def _shown(section: Section) -> Section:
    """Without the columns that are empty in all lines."""
    kept = [
        place
        for place, title in enumerate(section.header)
        if place < 2 or any(line[place] for line in section.lines)
    ]

    def pick(line: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(line[place] for place in kept)

    lines = tuple(pick(line) for line in section.lines)
    return Section(section.title, pick(section.header), lines)


def _commands(title: str, by_seed: BySeed) -> str:
    """The command of a run: one for all its seeds."""
    seeds = sorted(by_seed)
    command = by_seed[seeds[0]]["command"].replace(
        f"--config.seed={seeds[0]} ", "--config.seed=SEED "
    )
    return f"{title}; seeds {', '.join(map(str, seeds))}\n\n  `{command}`"


def _title(cell: Cell, run: Run) -> str:
    variant = "".join(f", {value}" for _, value in run.variant)
    return f"{cell.row.group}, {cell.row.title}{variant}"


def _folded(title: str, lines: list[str]) -> str:
    items = "\n".join(f"- {line}" for line in lines)
    return f"<details><summary>{title}</summary>\n\n{items}\n\n</details>"


def draw_task_numbers(results: Results, folder: pathlib.Path) -> None:
    """Draws the figures of task numbers: the panels that have a line, not a point."""

    def has_line(panel: figure_task_numbers.Panel) -> bool:
        curves = figure_task_numbers.points(panel, results)
        return any(len(line) > 1 for line in curves.values())

    for figure in figure_task_numbers.FIGURES:
        panels = tuple(filter(has_line, figure.panels))
        if panels:
            (folder / PICTURES).mkdir(exist_ok=True)
            path = folder / PICTURES / f"{figure.file_stem}.png"
            drawn = dataclasses.replace(figure, panels=panels)
            figure_task_numbers.draw(drawn, results, path)


def theory_parts(folder: pathlib.Path) -> list[str]:
    """What `experiments.theory` has measured, if it has been kept."""
    path = folder / PICTURES / "theory.json"
    if not path.exists():
        return []
    numbers = read_json(path)
    tables = (
        theory_remainders.table(numbers["remainders"]),
        theory_variance.table(numbers["total_variance"]),
    )
    return ["## Theory", THEORY, *(f"```\n{table}\n```" for table in tables)]


def figure_parts(folder: pathlib.Path, place: pathlib.Path) -> list[str]:
    """The pictures of the folder, each with what it shows and its command."""
    parts = []
    for path in sorted((folder / PICTURES).glob("*.png")):
        for start, (caption, command) in PICTURE_WORDS.items():
            if path.stem.startswith(start):
                parts.append(f"{caption} `python -m {command}`")
        link = pathlib.Path(os.path.relpath(path, place)).as_posix()
        parts.append(f"![{path.stem}]({link})")
        parts += _curve_commands(path.stem, Results(folder))
    return ["## Figures", *parts] if parts else []


def _curve_commands(name: str, results: Results) -> list[str]:
    """The commands of the points of a figure of task numbers; of others, nothing."""
    commands = [
        _commands(f"{panel.label}, {strategy}, {number} {figure.unit}", found)
        for figure in figure_task_numbers.FIGURES
        if name == figure.file_stem
        for panel in figure.panels
        for (strategy, number), found in figure_task_numbers.shown(
            panel, results
        ).items()
    ]
    return [_folded(counted(len(commands), "command"), commands)] if commands else []


def main(argv: list[str]) -> None:
    """Writes the page."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}; see --help")
    folder = existing_folder(RESULTS.value)
    draw_task_numbers(Results(folder), folder)
    path = absolute(OUTPUT.value) or ROOT / "RESULTS.md"
    command_line.write_output(page(folder, path.parent), path)
    say(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
