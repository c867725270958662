"""Times whole training steps: `python -m experiments.benchmark`.

A step draws a meta-batch of four tasks from a pool on the device, interpolates it
(MLTI), runs the learner, takes the meta-gradient and updates by Adam. Where PyTorch is
installed (`pip install -e '.[torch]'`), the same step written plainly in PyTorch
(`experiments/torch_steps.py`) is timed beside it, for images also with PyTorch's
channels-last memory layout, which is faster on CPU but which few use. The sides
alternate in one process, and a ratio is that of the medians. `others` is the share of
the machine that other processes took meanwhile: above 5 % a ratio means little, since
PyTorch's threads wait for each other. `--output=FILE` also writes JSON.

Other names of `--cases` stand for a table each. `learners_28` and `learners_bio`
compare the time and memory of each learner with MAML's, `strategies_28` and
`strategies_bio` those of MAML with each strategy with vanilla MAML's, `resnet12_28` and
`pose` those of larger networks with Conv4's (`pose` compiles for minutes and is run
only if named). The case `sampling` draws tasks alone, from pools of two sizes.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable
from dataclasses import asdict

import jax
from absl import flags

from experiments import benchmark_rows, benchmark_sampling, command_line, timing
from experiments.benchmark_cases import (
    ALL_CASES,
    Case,
    compile_case,
    make_learner,
    make_pool,
)
from mlti_jax.errors import InputError, unknown_name

__all__ = ["ALL_CASES", "Case", "make_learner", "make_pool", "measure", "table_row"]

CASES = flags.DEFINE_list("cases", None, "Names of the cases; all but pose if none.")
ROUNDS = flags.DEFINE_integer("rounds", 7, "How often each side is timed.")
SECONDS = flags.DEFINE_float("seconds", 1.0, "How long a side is timed in a round.")
OUTPUT = flags.DEFINE_string("output", None, "A JSON file for the results.")
SAMPLING = "sampling"  # the drawing of tasks alone


def torch_steps(case: Case) -> dict[str, Callable[[int], None]]:
    """PyTorch's sides; none where it is not installed."""
    try:
        from experiments import torch_steps
    except ImportError:
        return {}

    def side(channels_last: bool) -> Callable[[int], None]:
        step = torch_steps.make_step(
            case, *make_pool(case), channels_last=channels_last
        )

        def steps(count: int) -> None:
            for _ in range(count):
                step()

        return steps

    sides = {"torch": side(channels_last=False)}
    if case.backbone == "conv4":
        sides["torch_channels_last"] = side(channels_last=True)
    return sides


def measure(name: str, rounds: int, seconds: float) -> dict:
    """Times one case; compilation apart."""
    case = ALL_CASES[name]
    ours = compile_case(case)
    result = {
        "case": name,
        "setting": asdict(case),
        "compile_s": ours.compile_s,
        "memory": ours.memory,
        "ratio": {},
    }
    share = timing.CpuShare()
    sides = {"jax": ours.steps, **torch_steps(case)}
    for side, times in timing.time_sides(sides, rounds, seconds).items():
        result[side] = timing.spread(times)
        if side != "jax":
            median = result[side]["median_ms"]
            result["ratio"][side] = median / result["jax"]["median_ms"]
    result["others"] = share.of_others()
    return result


COLUMNS = (
    ("case", 17), ("ours, ms", 25), ("PyTorch, ms", 25), ("ratio", 7),
    ("channels last, ms", 25), ("ratio", 7), ("compile, s", 12), ("others", 8),
)  # fmt: skip


def table_row(result: dict) -> str:
    """A result as a line: median (fastest - slowest round) of each side, and ratio."""

    def milliseconds(side: str) -> str:
        return timing.format_spread(result[side]) if side in result else "-"

    def ratio(side: str) -> str:
        return f"{result['ratio'][side]:.2f}" if side in result["ratio"] else "-"

    cells = (
        result["case"],
        milliseconds("jax"),
        milliseconds("torch"),
        ratio("torch"),
        milliseconds("torch_channels_last"),
        ratio("torch_channels_last"),
        f"{result['compile_s']:.1f}",
        timing.format_share(result["others"]),
    )
    return _line(cells)


def _line(cells: tuple[str, ...]) -> str:
    widths = [width for _, width in COLUMNS]
    first = f"{cells[0]:{widths[0]}}"
    return first + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True)
    )


def chosen(names: list[str] | None) -> list[str]:
    """The names of the cases to run; `InputError` for one that there is not."""
    groups = benchmark_rows.GROUPS
    if not names:
        by_default = [name for name, group in groups.items() if group.by_default]
        return [*ALL_CASES, *by_default, SAMPLING]
    known = [*ALL_CASES, *groups, SAMPLING]
    for name in names:
        if name not in known:
            raise unknown_name("case", name, known)
    return names


def main(argv: list[str]) -> None:
    """Measures the cases and prints the tables, row by row."""
    if len(argv) > 1 or ROUNDS.value < 1:
        raise InputError("give --rounds of 1 or more, and no other arguments")
    names = chosen(CASES.value)
    print(f"{jax.devices()[0].platform}, JAX {jax.__version__}; whole training steps")
    results = []
    headed = False
    for name in names:
        if name in ALL_CASES and not headed:
            print(_line(tuple(name for name, _ in COLUMNS)))
        headed = name in ALL_CASES
        if name == SAMPLING:
            result = benchmark_sampling.measure(ROUNDS.value, SECONDS.value)
            row = benchmark_sampling.table(result)
        elif name in benchmark_rows.GROUPS:
            result = benchmark_rows.measure(name, ROUNDS.value, SECONDS.value)
            row = benchmark_rows.table(result)
        else:
            result = measure(name, ROUNDS.value, SECONDS.value)
            row = table_row(result)
        results.append(result)
        print(row, flush=True)
    if OUTPUT.value:
        text = json.dumps(results, indent=2)
        pathlib.Path(OUTPUT.value).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
