"""Times whole training steps: `python -m experiments.benchmark`.

A step draws a meta-batch from a pool on the device, interpolates it (MLTI) or not
(vanilla), runs the learner, takes the meta-gradient and updates by Adam. Where PyTorch
is installed (`pip install -e '.[torch]'`), the same step in PyTorch is timed beside it:
written plainly (`experiments/torch_steps.py`), for images also with channels last in
memory, and with `torch.func.vmap` over the tasks where that works. The sides alternate
in one process, and a ratio is that of the medians. `others` is the share of the machine
that other processes took meanwhile: above 5 % a ratio means little, since PyTorch's
threads wait for each other. Memory is that beyond pool and parameters: what XLA plans
for, and by how much a PyTorch process of its own grows (`--memory`).

Cases are named `learner_network_strategy`, as in `maml_conv4_28_1q_mlti`, see
`experiments/benchmark_cases.py`; `--cases` takes names and patterns, such as
`'protonet_*_mlti'`. All of them, and all of the following, take an hour or more;
`--quick` runs eight cases in two minutes, without vmap. Other names stand for a table
each:

  learners_28, learners_bio      each learner's time and memory, relative to MAML's
  strategies_28, strategies_bio  MAML with each strategy, relative to vanilla
  sampling                       tasks drawn alone, from pools of two sizes
  account                        where the time of the six slowest cases of this run
                                 goes, or of `--account_cases`, and the machine's limit
  memory                         of second-order MAML by inner steps and tasks, `remat`
  scaling                        time and memory by tasks, inner steps and pool

`--output=DIR` writes `results.json` and pictures.
"""

from __future__ import annotations

import fnmatch
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from absl import flags

from experiments import cli as command_line
from experiments.benchmark import account as benchmark_account
from experiments.benchmark import machine as benchmark_machine
from experiments.benchmark import memory as benchmark_memory
from experiments.benchmark import plots as benchmark_pictures
from experiments.benchmark import rows as benchmark_rows
from experiments.benchmark import sampling as benchmark_sampling
from experiments.benchmark import scaling as benchmark_scaling
from experiments.benchmark import steps as benchmark_steps
from experiments.benchmark import torch_sides as benchmark_torch
from experiments.benchmark.cases import ALL_CASES, QUICK, find
from mlti_jax import parallel
from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.training._workdir import write_json

CASES = flags.DEFINE_list("cases", None, "Names or patterns of cases; all if none.")
IS_QUICK = flags.DEFINE_bool("quick", False, "Eight cases in two minutes.")
ROUNDS = flags.DEFINE_integer(
    "rounds", None, "How often each side is timed, at most; 7, with --quick 3."
)
SECONDS = flags.DEFINE_float(
    "seconds", None, "About how long a case is timed; 20, with --quick 2."
)
SIDES = flags.DEFINE_list(
    "sides",
    None,
    "Which sides of PyTorch: torch, torch_channels_last, torch_vmap; all, with --quick "
    "the first two.",
)
MEMORY = flags.DEFINE_bool(
    "memory", None, "Whether PyTorch's memory is measured; only if all cases are run."
)
ACCOUNT_CASES = flags.DEFINE_list(
    "account_cases", None, "Of which cases `account` tells where the time goes."
)
OUTPUT = flags.DEFINE_string("output", None, "A folder for the results.")

QUICK_SIDES = ("torch", "torch_channels_last")
ACCOUNT = "account"
# Each is a module with `measure(rounds, seconds)` and `table(result)`.
TABLES = {
    "sampling": benchmark_sampling,
    "memory": benchmark_memory,
    "scaling": benchmark_scaling,
}
MODULES = {
    "step": benchmark_steps,
    "rows": benchmark_rows,
    ACCOUNT: benchmark_account,
    **TABLES,
}


def chosen(patterns: list[str] | None, quick: bool = False) -> list[str]:
    """The names of what is to be run; `InputError` for one that there is not."""
    known = [*ALL_CASES, *benchmark_rows.GROUPS, *TABLES, ACCOUNT]
    if not patterns:
        return list(QUICK) if quick else known
    names = []
    for pattern in patterns:
        found = fnmatch.filter(known, pattern)
        if not found:
            raise unknown_name("case", pattern, known)
        names += found
    return list(dict.fromkeys(names))


class Settings(NamedTuple):
    """How things are measured; the flags say the same."""

    rounds: int
    seconds: float
    sides: tuple[str, ...] = benchmark_torch.SIDES
    memory: bool = False
    account_cases: tuple[str, ...] = ()


def settings_from_flags() -> Settings:
    """What the flags say, with defaults; `InputError` for what can't be."""
    quick, everything = IS_QUICK.value, not (CASES.value or IS_QUICK.value)
    rounds, seconds, sides = (3, 2.0, QUICK_SIDES) if quick else (7, 20.0, None)
    settings = Settings(
        rounds if ROUNDS.value is None else ROUNDS.value,
        seconds if SECONDS.value is None else SECONDS.value,
        tuple(SIDES.value or sides or benchmark_torch.SIDES),
        everything if MEMORY.value is None else MEMORY.value,
        tuple(ACCOUNT_CASES.value or ()),
    )
    if settings.rounds < 1 or not settings.seconds > 0:
        raise InputError(
            f"give --rounds of 1 or more and --seconds above 0, not {settings.rounds} "
            f"and {settings.seconds}"
        )
    for side in settings.sides:
        if side not in benchmark_torch.SIDES:
            raise unknown_name("side", side, benchmark_torch.SIDES)
    for name in settings.account_cases:
        find(name)
    return settings


def measure(name: str, settings: Settings, before: list[dict]) -> Iterator[dict]:
    """Measures a case or table; `before` is what was measured in this run.

    Yields:
      One result; for `account` one for each of its cases.
    """
    rounds, seconds, *of_steps, accounts = settings
    if name in ALL_CASES:
        yield benchmark_steps.measure(name, rounds, seconds, *of_steps)
    elif name in benchmark_rows.GROUPS:
        yield benchmark_rows.measure(name, rounds, seconds)
    elif name == ACCOUNT:
        accounts = accounts or benchmark_account.slowest(before)
        yield from benchmark_account.measure(
            accounts or benchmark_account.SLOWEST, rounds, seconds
        )
    else:
        yield TABLES[name].measure(rounds, seconds)


def write(results: list[dict], folder: pathlib.Path) -> None:
    """Writes all results and draws what can be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = benchmark_machine.describe()
    write_json(folder / "results.json", {"machine": machine, "results": results})
    compared = [r for r in results if r["kind"] == "step" and r["ratio"]]
    if compared:
        benchmark_pictures.ratios(compared, folder / "ratios.png")
    if accounts := [r for r in results if r["kind"] == ACCOUNT]:
        benchmark_pictures.account(accounts, folder / "account.png")
    draw: dict[str, Callable[[dict, pathlib.Path], None]] = {
        "memory": benchmark_pictures.memory,
        "scaling": benchmark_pictures.scaling,
    }
    for result in results:
        if result["kind"] in draw:
            draw[result["kind"]](result, folder / f"{result['kind']}.png")


def main(argv: list[str]) -> None:
    """Measures the cases and prints the tables, row by row."""
    if len(argv) > 1:
        raise InputError(f"give flags alone; {' '.join(argv[1:])!r} is none")
    parallel.use_all_cores()
    settings = settings_from_flags()
    names = chosen(CASES.value, IS_QUICK.value)
    machine = benchmark_machine.describe()
    print(f"{machine['platform']}, JAX {machine['jax']}; whole training steps")
    results, last = [], None
    measured = (result for name in names for result in measure(name, settings, results))
    for result in measured:
        if result["kind"] == "step" != last:
            print(benchmark_steps.header())
        last = result["kind"]
        print(MODULES[last].table(result), flush=True)
        results.append(result)
        if OUTPUT.value:
            write(results, pathlib.Path(OUTPUT.value))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
