"""Time of whole training steps, ours and PyTorch's, one row per case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from experiments.benchmark import timing
from experiments.benchmark.cases import Case, find
from experiments.benchmark.program import compile_case
from experiments.benchmark.torch import sides as torch_sides

COLUMNS = (
    ("case", 31), ("ours, ms", 22), ("PyTorch, ms", 22), ("ratio", 7),
    ("ch. last", 10), ("vmap", 6), ("compiled", 10), ("fastest", 17),
    ("compile, s", 12), ("ours, MB", 10), ("PyTorch, MB", 13), ("others", 8),
)  # fmt: skip
# As in the names of the columns.
SHORT = {
    "torch": "plain",
    "torch_channels_last": "ch. last",
    "torch_vmap": "vmap",
    "torch_compile": "compiled",
}


def measure(
    name: str,
    rounds: int,
    seconds: float,
    sides: Sequence[str] = torch_sides.SIDES,
    memory: bool = False,
) -> dict:
    """Measure one case by its name; see `measure_case`.

    With `memory`, the result also has the bytes that each PyTorch side takes, under
    `resident`.
    """
    result = measure_case(name, find(name), rounds, seconds, sides)
    if memory:
        result["resident"] = {
            side: torch_sides.resident_growth(name, side)
            for side in torch_sides.WITH_MEMORY
            if side in result["ratio"]
        }
    return result


def measure_case(
    name: str,
    case: Case,
    rounds: int,
    seconds: float,
    sides: Sequence[str] = torch_sides.SIDES,
) -> dict:
    """Time our side and PyTorch's in turn, without compilation.

    Args:
      name: of the case.
      case: the step.
      rounds: see `timing.time_sides`.
      seconds: see `timing.time_sides`.
      sides: the PyTorch sides to time.

    Returns:
      A result with the `time` of each side, the `ratio` of each PyTorch side to ours,
      the `fastest` PyTorch side, the reason for each side that is not implemented under
      `refused`, and XLA's analysis of `memory` and `cost`.
    """
    ours = compile_case(case)
    theirs, refused = torch_sides.make_sides(case, sides)
    share = timing.CpuShare()
    times = timing.time_sides({"jax": ours.steps, **theirs}, rounds, seconds)
    spreads = {side: timing.spread(values) for side, values in times.items()}
    ratios = timing.ratios(spreads)
    return {
        "case": name,
        "kind": "step",
        "setting": asdict(case),
        "compile_s": ours.compile_s,
        "memory": ours.memory,
        "cost": ours.cost,
        "time": spreads,
        "ratio": ratios,
        "fastest": min(ratios, key=ratios.get, default=None),
        "refused": refused,
        "others": share.of_others(),
    }


def header() -> str:
    """Names of the columns.

    `ratio` and the next three columns are times of PyTorch divided by ours; `fastest`
    repeats the lowest of them. Memory excludes the pool and the parameters.
    """
    return _line(tuple(name for name, _ in COLUMNS))


def table(result: dict) -> str:
    """Format a result as a line: median (fastest-slowest round), and ratios."""
    time, ratios = result["time"], result["ratio"]

    def spread(side: str) -> str:
        return timing.format_spread(time[side]) if side in time else "-"

    def ratio(side: str) -> str:
        return f"{ratios[side]:.2f}" if side in ratios else "-"

    resident = result.get("resident", {}).get("torch")
    cells = (
        result["case"],
        spread("jax"),
        spread("torch"),
        *(ratio(side) for side in SHORT),
        format_fastest(result, SHORT),
        f"{result['compile_s']:.1f}",
        f"{result['memory']['temporary'] / 1e6:.1f}",
        "-" if resident is None else f"{resident / 1e6:.1f}",
        timing.format_share(result["others"]),
    )
    notes = [f"  no {side}: {reason}" for side, reason in result["refused"].items()]
    return "\n".join([_line(cells), *notes])


def format_fastest(row: dict, names: dict[str, str]) -> str:
    """Format the lowest ratio of a row with the name of its side, or "-"."""
    side = row["fastest"]
    return "-" if side is None else f"{names[side]} {row['ratio'][side]:.2f}"


def _line(cells: tuple[str, ...]) -> str:
    widths = [width for _, width in COLUMNS]
    first = f"{cells[0]:{widths[0]}}"
    return first + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True)
    )
