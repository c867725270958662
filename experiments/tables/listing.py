"""What tables there are, and what would be run for them."""

from __future__ import annotations

from experiments.paper import Table
from experiments.tables.formats import counted
from experiments.tables.jobs import Job, Place
from experiments.tables.state import DONE, NO_DATA, format_left, seconds_left, state_of
from experiments.tables.store import Results
from experiments.tables.variations import ALL_TABLES
from mlti_jax._internal.progress import format_seconds


def listing(results: Results) -> str:
    """The tables with their captions, cells, and how many of these have results."""
    width = max(map(len, ALL_TABLES)) + 2
    lines = []
    for table in ALL_TABLES.values():
        given = [cell for cell in table.cells() if cell.is_given]
        absent = len(table.cells()) - len(given)
        lines.append(
            f"{table.name:{width}}{len(given)} cells"
            f"{f' and {absent} n/a' if absent else ''}; {_with_results(table, results)}"
        )
        lines.append(f"{'':{width}}{table.caption}")
    return "\n".join(lines)


def _with_results(table: Table, results: Results) -> str:
    """How many cells have results, and how many in the other way of their column."""
    counts: dict[str, int] = {}
    files = 0
    for cell in table.cells():
        for run in filter(None, (cell.run, cell.other_run)) if cell.is_given else ():
            found = sum(map(len, results.by_steps(run).values()))
            if found:
                way = "" if run == cell.run else f" with {cell.column.variant.other}"
                counts[way] = counts.get(way, 0) + 1
                files += found
    if not files:
        return "no results"
    text = ", ".join(f"{count}{way}" for way, count in sorted(counts.items()))
    return f"results of {text} ({counted(files, 'run')})"


def dry_run(jobs: list[Job], results: Results, place: Place, at_once: int) -> str:
    """One line a job: config, fields, seed, steps, how far it is, and its time."""
    lines, left, counts = [], [], {}
    for job in jobs:
        state = state_of(job, results, place)
        counts[state.kind] = counts.get(state.kind, 0) + 1
        parts = [
            f"{job.run.config}.py:{job.run.argument}",
            *(f"{field}={value}" for field, value in job.run.overrides),
            f"seed {job.seed}",
            f"{job.steps:,} steps",
            str(state),
        ]
        if state.kind != DONE:
            seconds = seconds_left(job, state.step, results)
            if state.kind != NO_DATA:
                left.append(seconds)
            parts.append("unknown time" if seconds is None else format_seconds(seconds))
        lines.append("  ".join(parts))
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    runs = counted(len(jobs), "run")
    lines.append(f"{runs}: {summary}; {format_left(left, at_once)} left")
    return "\n".join(lines)
