"""Times whole training steps: `python -m experiments.benchmark`.

A step draws a meta-batch from a pool on the device, interpolates it (MLTI) or not
(vanilla), runs the learner, computes the meta-gradient and updates with Adam. If
PyTorch is installed (`pip install -e '.[torch]'`), the same step in PyTorch is timed
next to it (`experiments/benchmark/torch/`): as a loop over tasks, for images also with
channels last in memory, with `torch.func.vmap` over tasks where that works, and with
`torch.compile`. The sides alternate in one process, after compilation; a ratio is that
of the medians, and `fastest` the lowest of a row. `others` is the CPU share of other
processes: above 5 % ratios are not reliable, because PyTorch's threads wait for each
other. Memory excludes the pool and the parameters: what XLA plans for, and by how much
a separate PyTorch process grows (`--memory`).

Cases are named `learner_network_strategy`, as in `maml_conv4_28_1q_mlti`; see
`experiments/benchmark/cases.py`. `--cases` takes names and patterns, such as
`'protonet_*_mlti'`. All cases and tables take an hour or more; `--quick` runs eight
cases in two minutes, without vmap and compilation. The tables are:

  learners_28, learners_bio      time and memory of each learner, relative to MAML
  strategies_28, strategies_bio  MAML with each strategy, relative to vanilla
  sampling                       drawing tasks only, from pools of two sizes
  account                        breakdown of the step time of the six slowest cases of
                                 this run, or of `--account_cases`, and the peak
                                 performance of the machine
  memory                         second-order MAML by inner steps and tasks, `remat`
  scaling                        growth of time and memory with the number of tasks,
                                 ways, shots, image size, inner steps and pool size
  evaluation                     test tasks per second, ours and PyTorch's
  own_network                    a wrapped network relative to the built-in one
  projection                     efficiency at 8, 64 and 512 devices: bytes per step and
                                 a model of the network
  startup                        seconds from the command to the first step, by part
  tpu                            training steps compiled for TPUs, on any machine, only
                                 if it is named: memory, collectives, the compiler's
                                 estimate of cycles, and what stands out. Needs
                                 `pip install -e '.[tpu_check]'`; all learners, networks
                                 and strategies take hours, `--tpu_cases` chooses some
  pools                          steps per second with samples on the device, in host
                                 memory and in files; memory of growing datasets

`--output=DIR` writes `results.json` and plots.
"""

from __future__ import annotations

import fnmatch
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
from absl import flags

from experiments import cli
from experiments.benchmark import (
    breakdown,
    evaluation,
    machine,
    memory,
    own_network,
    plots,
    pools,
    projection,
    relative,
    sampling,
    scaling,
    startup,
    steps,
    tpu,
)
from experiments.benchmark.cases import ALL_CASES, QUICK, find
from experiments.benchmark.torch.sides import SIDES as TORCH_SIDES
from mlti_jax import parallel
from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.command_line import output_folder
from mlti_jax._internal.storage import check_target, write_json
from mlti_jax.errors import InputError

CASES = flags.DEFINE_list("cases", None, "Names or patterns of cases; default: all.")
IS_QUICK = flags.DEFINE_bool("quick", False, "Eight cases in two minutes.")
ROUNDS = flags.DEFINE_integer(
    "rounds", None, "Maximum rounds per side; default: 7, with --quick 3."
)
SECONDS = flags.DEFINE_float(
    "seconds", None, "Approximate time per case; default: 20, with --quick 2."
)
SIDES = flags.DEFINE_list(
    "sides",
    None,
    f"PyTorch sides: {', '.join(TORCH_SIDES)}; default: all, with --quick the first "
    "two.",
)
MEMORY = flags.DEFINE_bool(
    "memory", None, "Measure PyTorch's memory; default: only if all cases are run."
)
ACCOUNT_CASES = flags.DEFINE_list(
    "account_cases", None, "Cases of the `account` table."
)
TOPOLOGY = flags.DEFINE_string(
    "topology", "v5e:2x2", "TPUs to compile for: v5e:2x2, v4:2x2x1, v5p:2x2x1, ..."
)
TPU_CASES = flags.DEFINE_list(
    "tpu_cases", None, "Names or patterns of cases to compile for TPUs; default: all."
)
TPU_DEVICES = flags.DEFINE_list("tpu_devices", None, "Numbers of TPUs; default: 1,4.")
TPU_ARITHMETICS = flags.DEFINE_list(
    "tpu_arithmetics",
    None,
    f"Of {', '.join(tpu.ARITHMETICS)}; default: float32,bfloat16.",
)
OUTPUT = flags.DEFINE_string("output", None, "Directory for the results.")

QUICK_SIDES = ("torch", "torch_channels_last")
TPU = "tpu"  # compiled only, if it is named
BREAKDOWN = "account"  # its name on the command line and in results.json
# Modules with `measure(rounds, seconds)` and `table(result)`.
TABLES = {
    "sampling": sampling,
    "memory": memory,
    "scaling": scaling,
    "evaluation": evaluation,
    "own_network": own_network,
    "projection": projection,
    "startup": startup,
    "pools": pools,
}
# Modules with `table(result)`, by the kind of result.
MODULES = {
    "step": steps,
    "rows": relative,
    TPU: tpu,
    BREAKDOWN: breakdown,
    **TABLES,
}


def chosen(patterns: list[str] | None, quick: bool = False) -> list[str]:
    """Names of the cases and tables to run.

    Raises:
      InputError: if a pattern matches nothing.
    """
    known = [*ALL_CASES, *relative.GROUPS, *TABLES, BREAKDOWN]
    if not patterns:
        return list(QUICK) if quick else known
    names = []
    for pattern in patterns:
        found = [TPU] if pattern == TPU else fnmatch.filter(known, pattern)
        if not found:
            raise unknown_name("case", pattern, [*known, TPU])
        names += found
    return list(dict.fromkeys(names))


class Settings(NamedTuple):
    """What the flags set, with defaults filled in."""

    rounds: int
    seconds: float
    sides: tuple[str, ...]
    memory: bool
    account_cases: tuple[str, ...]
    tpu: tpu.Request | None


def settings_from_flags(names: Sequence[str] = ()) -> Settings:
    """Read the settings from the flags.

    Args:
      names: of the chosen cases and tables.

    Raises:
      InputError: if a value is out of range, or a side or case is unknown.
    """
    quick, everything = IS_QUICK.value, not (CASES.value or IS_QUICK.value)
    rounds, seconds, sides = (3, 2.0, QUICK_SIDES) if quick else (7, 20.0, TORCH_SIDES)
    settings = Settings(
        rounds=rounds if ROUNDS.value is None else ROUNDS.value,
        seconds=seconds if SECONDS.value is None else SECONDS.value,
        sides=tuple(SIDES.value or sides),
        memory=everything if MEMORY.value is None else MEMORY.value,
        account_cases=tuple(ACCOUNT_CASES.value or ()),
        tpu=_tpu_request() if TPU in names else None,
    )
    if settings.rounds < 1 or not 0 < settings.seconds < math.inf:
        raise InputError(
            f"--rounds={settings.rounds} and --seconds={settings.seconds}; expected"
            " rounds of 1 or more and a finite number of seconds above 0"
        )
    for side in settings.sides:
        if side not in TORCH_SIDES:
            raise unknown_name("side", side, TORCH_SIDES)
    for name in settings.account_cases:
        find(name)
    return settings


def _tpu_request() -> tpu.Request:
    return tpu.request(
        TOPOLOGY.value,
        TPU_CASES.value,
        TPU_DEVICES.value,
        TPU_ARITHMETICS.value,
        IS_QUICK.value,
    )


def measure(name: str, settings: Settings, before: list[dict]) -> Iterator[dict]:
    """Measure a case or table.

    Args:
      name: of the case or table.
      settings: see `settings_from_flags`.
      before: results that this run has measured so far.

    Yields:
      One result; for `account` one per case.
    """
    rounds, seconds = settings.rounds, settings.seconds
    if name in ALL_CASES:
        yield steps.measure(name, rounds, seconds, settings.sides, settings.memory)
    elif name in relative.GROUPS:
        yield relative.measure(name, rounds, seconds)
    elif name == TPU:
        yield from tpu.measure(settings.tpu)
    elif name == BREAKDOWN:
        names = settings.account_cases or breakdown.slowest(before)
        yield from breakdown.measure(names or breakdown.SLOWEST, rounds, seconds)
    else:
        yield TABLES[name].measure(rounds, seconds)


def write(results: list[dict], folder: pathlib.Path) -> None:
    """Write all results, and plots of those that have one."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine.describe(), "results": results}
    write_json(folder / "results.json", content)
    if compared := [r for r in results if r["kind"] == "step" and r["ratio"]]:
        plots.ratios(compared, folder / "ratios.png")
    if breakdowns := [r for r in results if r["kind"] == BREAKDOWN]:
        plots.breakdown(breakdowns, folder / "account.png")
    draw: dict[str, Callable[[dict, pathlib.Path], None]] = {
        "memory": plots.memory,
        "scaling": plots.scaling,
        "projection": plots.projection,
    }
    for result in results:
        if result["kind"] in draw:
            draw[result["kind"]](result, folder / f"{result['kind']}.png")


def main() -> None:
    """Measure cases and tables, and print each result when it is ready."""
    parallel.use_all_cores()
    names = chosen(CASES.value, IS_QUICK.value)
    settings = settings_from_flags(names)
    if TPU in names:  # With libtpu installed, JAX would look for TPUs here.
        jax.config.update("jax_platforms", "cpu")
    folder = output_folder(OUTPUT.value) if OUTPUT.value else None
    if folder is not None:  # before what takes long
        check_target(folder / "results.json")
    here = machine.describe()
    print(f"{here['platform']}, JAX {here['jax']}; whole training steps")
    results: list[dict] = []
    last = None
    measured = (result for name in names for result in measure(name, settings, results))
    for result in measured:
        if result["kind"] in ("step", TPU) and result["kind"] != last:
            print(MODULES[result["kind"]].header())
        last = result["kind"]
        print(MODULES[last].table(result), flush=True)
        results.append(result)
        if folder is not None:
            write(results, folder)


if __name__ == "__main__":
    sys.exit(cli.run(main, __doc__))
