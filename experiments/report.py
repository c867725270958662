"""Writes the page of our results: `python -m experiments.report`.

`RESULTS.md` is made of the files in `experiments/results/` alone: the tables of the
paper that have results, each with the commands of its runs; the figures; and what
`notes.md` there says of them. Nothing is trained, and no data is needed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys

from absl import flags

from experiments import figure_task_numbers, results_store
from experiments.paper import Cell, Run, Table
from experiments.results_store import Results
from experiments.table_formats import Section, counted, markdown_table
from experiments.table_render import HOW, Renderer
from experiments.variations import ALL_TABLES
from mlti_jax import command_line
from mlti_jax.errors import InputError
from mlti_jax.progress import say

ROOT = pathlib.Path(__file__).parent.parent
NOTES = "notes.md"  # words on the results; the only part that is written by hand
PICTURES = "pictures"

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
        "(the paper's Fig. 3).",
        "experiments.figures --figure=tsne --workdir=RUN --output=DIR",
    ),
    "sheet": (
        "Samples of pairs of tasks, and their mixtures.",
        "experiments.figures --figure=sheets --output=DIR --data_dir=DATA",
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
UNTOUCHED = "Nothing has been run for: {}; see `python -m experiments.tables --list`."


def page(folder: pathlib.Path) -> str:
    """The whole page.

    Args:
      folder: of the results.
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
    blocks += figure_parts(folder)
    return "\n\n".join(blocks) + "\n"


def table_parts(table: Table, results: Results) -> list[str]:
    """The columns of a table that have results, each with its commands."""
    renderer = Renderer(results, absent=lambda run: [])
    parts = []
    for column in table.columns:
        cells = [cell for cell in table.column_cells(column) if cell.is_given]
        commands = [line for cell in cells for line in _commands(cell, results)]
        if commands:
            section = renderer.section(table, column)
            parts += [f"**{column.title}**", markdown_table(_shown(section))]
            parts.append(_folded(f"{counted(len(commands), 'command')}", commands))
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


def _commands(cell: Cell, results: Results) -> list[str]:
    """The commands of a cell's runs: one for all seeds of as many steps."""
    lines = []
    for run in filter(None, (cell.run, cell.other_run)):
        for by_seed in results.by_steps(run).values():
            seeds = sorted(by_seed)
            command = by_seed[seeds[0]]["command"].replace(
                f"--config.seed={seeds[0]} ", "--config.seed=SEED "
            )
            which = ", ".join(map(str, seeds))
            lines.append(f"{_title(cell, run)}; seeds {which}\n\n  `{command}`")
    return lines


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
            path = folder / PICTURES / f"task_numbers_{figure.name}.png"
            drawn = dataclasses.replace(figure, panels=panels)
            figure_task_numbers.draw(drawn, results, path)


def figure_parts(folder: pathlib.Path) -> list[str]:
    """The pictures of the folder, each with what it shows and its command."""
    parts = []
    for path in sorted((folder / PICTURES).glob("*.png")):
        for start, (caption, command) in PICTURE_WORDS.items():
            if path.stem.startswith(start):
                parts.append(f"{caption} `python -m {command}`")
        parts.append(f"![{path.stem}]({_link(path)})")
    return ["## Figures", *parts] if parts else []


def _link(path: pathlib.Path) -> str:
    path = path.absolute()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def folder_of(text: str) -> pathlib.Path:
    """The folder of results; `InputError` if there is none."""
    folder = pathlib.Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise InputError(f"--results={folder} is no folder of results")
    return folder


def main(argv: list[str]) -> None:
    """Writes the page."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}; see --help")
    folder = folder_of(RESULTS.value)
    draw_task_numbers(Results(folder), folder)
    path = pathlib.Path(OUTPUT.value or ROOT / "RESULTS.md").expanduser()
    path.write_text(page(folder), encoding="utf-8")
    say(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
