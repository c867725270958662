"""Time of whole training steps, ours and PyTorch's, one row per case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from experiments.benchmark import timing
from experiments.benchmark.cases import Case, find
from experiments.benchmark.program import compile_case
from experiments.benchmark.torch import sides as torch_sides

COLUMNS = (
    ("case", 31), ("ours, ms", 22), ("PyTorch, ms", 24), ("ratio", 7),
    ("ch. last, ms", 13), ("ratio", 7), ("vmap, ms", 10), ("ratio", 7),
    ("compile, s", 11), ("ours, MB", 10), ("PyTorch, MB", 12), ("others", 8),
)  # fmt: skip


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
            side: torch_sides.resident_growth(name, side) for side in result["ratio"]
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
      the reason for each side that is not implemented under `refused`, and XLA's
      analysis of `memory` and `cost`.
    """
    ours = compile_case(case)
    theirs, refused = torch_sides.make_sides(case, sides)
    share = timing.CpuShare()
    times = timing.time_sides({"jax": ours.steps, **theirs}, rounds, seconds)
    spreads = {side: timing.spread(values) for side, values in times.items()}
    median = spreads["jax"]["median_ms"]
    return {
        "case": name,
        "kind": "step",
        "setting": asdict(case),
        "compile_s": ours.compile_s,
        "memory": ours.memory,
        "cost": ours.cost,
        "time": spreads,
        "ratio": {side: spreads[side]["median_ms"] / median for side in theirs},
        "refused": refused,
        "others": share.of_others(),
    }


def header() -> str:
    """Names of the columns; memory excludes the pool and the parameters."""
    return _line(tuple(name for name, _ in COLUMNS))


def table(result: dict) -> str:
    """Format a result as a line: median (fastest-slowest round), and ratios."""
    time, ratios = result["time"], result["ratio"]

    def spread(side: str) -> str:
        return timing.format_spread(time[side]) if side in time else "-"

    def median(side: str) -> str:
        return timing.format_ms(time[side]["median_ms"]) if side in time else "-"

    def ratio(side: str) -> str:
        return f"{ratios[side]:.2f}" if side in ratios else "-"

    resident = result.get("resident", {}).get("torch")
    cells = (
        result["case"],
        spread("jax"),
        spread("torch"),
        ratio("torch"),
        median("torch_channels_last"),
        ratio("torch_channels_last"),
        median("torch_vmap"),
        ratio("torch_vmap"),
        f"{result['compile_s']:.1f}",
        f"{result['memory']['temporary'] / 1e6:.1f}",
        "-" if resident is None else f"{resident / 1e6:.1f}",
        timing.format_share(result["others"]),
    )
    notes = [f"  no {side}: {reason}" for side, reason in result["refused"].items()]
    return "\n".join([_line(cells), *notes])


def _line(cells: tuple[str, ...]) -> str:
    widths = [width for _, width in COLUMNS]
    first = f"{cells[0]:{widths[0]}}"
    return first + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True)
    )
