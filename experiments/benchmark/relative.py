"""Step time and memory of learners relative to MAML, and of strategies to vanilla.

The sides of a group are timed in turn in one process. A row has a side's time, its
ratio to the time of the first side, and the same for the peak memory that XLA plans
for (see `program.memory_of`). It includes the pool, which all sides of a group share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from experiments.benchmark import timing
from experiments.benchmark.cases import BIO, RAINBOW, Case
from experiments.benchmark.program import compile_case
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies._registry import STRATEGIES

Sides = dict[str, Case]  # the others are compared with the first


def learner_sides(case: Case) -> Sides:
    """A case with each episodic learner, MAML first."""
    names = [*FAMILIES["gradient"], *FAMILIES["metric"]]
    names.sort(key=lambda name: name != "maml")
    return {name: replace(case, learner=name) for name in names}


def strategy_sides(case: Case) -> Sides:
    """A case with each strategy, vanilla first."""
    names = sorted(STRATEGIES, key=lambda name: name != "vanilla")
    return {name: replace(case, strategy=name) for name in names}


# Called on use: the sides follow the registered learners and strategies.
GROUPS: dict[str, Callable[[], Sides]] = {
    "learners_28": lambda: learner_sides(RAINBOW),
    "learners_bio": lambda: learner_sides(BIO),
    "strategies_28": lambda: strategy_sides(RAINBOW),
    "strategies_bio": lambda: strategy_sides(BIO),
}


def measure(name: str, rounds: int, seconds: float) -> dict:
    """Measure a group by its name; see `measure_sides`."""
    return measure_sides(name, GROUPS[name](), rounds, seconds)


def measure_sides(name: str, sides: Sides, rounds: int, seconds: float) -> dict:
    """Compile all sides, then times them in turn.

    Args:
      name: of the group.
      sides: the cases by name; the others are compared with the first.
      rounds: see `timing.time_sides`.
      seconds: see `timing.time_sides`.

    Returns:
      A result with one row per side in `rows`. A side that cannot be built, such as a
      strategy that does not apply to the learner, has the reason under `refused`.

    Raises:
      InputError: if the first side cannot be built.
    """
    programs, rows = {}, {}
    for side, case in sides.items():
        rows[side] = {"setting": asdict(case)}
        try:
            programs[side] = compile_case(case)
        except InputError as error:
            rows[side]["refused"] = str(error)
    first = next(iter(sides))
    if first not in programs:
        raise InputError(
            f"cannot measure {name}: its reference {first!r} cannot be built,"
            f" {rows[first]['refused']}"
        )
    share = timing.CpuShare()
    steps = {side: program.steps for side, program in programs.items()}
    times = timing.time_sides(steps, rounds, seconds)
    for side, program in programs.items():
        rows[side]["time"] = timing.spread(times[side])
        rows[side]["memory"] = program.memory
        rows[side]["compile_s"] = program.compile_s
        rows[side]["ratio"] = {
            "time": rows[side]["time"]["median_ms"] / rows[first]["time"]["median_ms"],
            "memory": program.memory["peak"] / programs[first].memory["peak"],
        }
    return {
        "case": name,
        "kind": "rows",
        "relative_to": first,
        "rows": rows,
        "others": share.of_others(),
    }


def table(result: dict) -> str:
    """Format a result, one line per side."""
    lines = [
        f"{result['case']}: relative to {result['relative_to']}; others "
        f"{timing.format_share(result['others'])}",
        f"{'ms':>47}{'ratio':>7}{'peak, MB':>12}{'ratio':>7}{'compile, s':>12}",
    ]
    for side, row in result["rows"].items():
        if "refused" in row:
            lines.append(f"  {side:20} skipped: {row['refused']}")
            continue
        lines.append(
            f"  {side:20}{timing.format_spread(row['time']):>25}"
            f"{row['ratio']['time']:>7.2f}{row['memory']['peak'] / 1e6:>12.1f}"
            f"{row['ratio']['memory']:>7.2f}{row['compile_s']:>12.1f}"
        )
    return "\n".join(lines)
