"""Efficiency of many devices, projected from measurements: table `projection`.

Measured here: the time of a step on one device of this machine, and the bytes that a
step exchanges, from the collectives of the program that XLA compiles for two devices.
Modelled: the time of the exchange in a stated network, as a ring all-reduce

  T = 2 (n - 1) / n * bytes / bandwidth + 2 (n - 1) * latency

between n devices of one link each. Every device keeps its number of tasks (weak
scaling), nothing overlaps, and all devices are equally fast:

  efficiency = compute / (compute + T)

`speed` is an assumption too: how many times faster than a device of this machine a
device computes. The faster it is, the more the exchange counts.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

import jax

from experiments.benchmark import timing
from experiments.benchmark.cases import NETWORKS, Case
from experiments.benchmark.program import RUNS_ONCE, compile_case, make_parts
from mlti_jax.parallel import Plan
from mlti_jax.training import make_run_steps
from mlti_jax.training._memory import tree_bytes


class Network(NamedTuple):
    """A network between devices.

    Attributes:
      bandwidth: bytes per second and direction of a device's link.
      latency: seconds from one device to the next.
    """

    bandwidth: float
    latency: float


NETWORK_KINDS = {
    "10 Gbit Ethernet": Network(1.25e9, 30e-6),
    "100 Gbit InfiniBand": Network(12.5e9, 3e-6),
    "45 GB/s chip links": Network(45e9, 1e-6),
}
DEVICES = (8, 64, 512)
SPEEDS = (1, 100)
TASKS = 4  # per device
CASES = {
    "maml_conv4_28": dataclasses.replace(NETWORKS["conv4_28_1q"], tasks=TASKS),
    "protonet_conv4_28": dataclasses.replace(
        NETWORKS["conv4_28_1q"], learner="protonet", tasks=TASKS
    ),
    "maml_bio": dataclasses.replace(NETWORKS["bio"], layers=(0,), tasks=TASKS),
    "protonet_bio": dataclasses.replace(
        NETWORKS["bio"], learner="protonet", layers=(0,), tasks=TASKS
    ),
}
_ITEM_BYTES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4}
_ITEM_BYTES |= {"bf16": 2, "f16": 2, "s8": 1, "u8": 1, "pred": 1}
_COLLECTIVE = re.compile(
    r"= (?P<shape>.+?) (?P<kind>all-reduce|all-gather|all-to-all|reduce-scatter|"
    r"collective-permute)(?:-start)?\("
)


def collective_bytes(text: str) -> dict[str, int]:
    """Return the bytes of the results of all collectives in XLA's text, by kind.

    Examples:
      >>> collective_bytes("  %a = (f32[2,3]{1,0}, f32[]) all-reduce(%b, %c), x={}")
      {'all-reduce': 28}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        if (match := _COLLECTIVE.search(line)) is None:
            continue
        size = 0
        for kind, shape in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", match["shape"]):
            lengths = [int(length) for length in shape.split(",") if length]
            size += _ITEM_BYTES[kind] * math.prod(lengths)
        found[match["kind"]] = found.get(match["kind"], 0) + size
    return found


def exchange_seconds(size: int, devices: int, network: Network) -> float:
    """Return the time of a ring all-reduce of some bytes."""
    hops = devices - 1
    return 2 * hops * (size / devices / network.bandwidth + network.latency)


def efficiency(compute: float, size: int, devices: int, network: Network) -> float:
    """Return the share of a step's time in which devices compute.

    Args:
      compute: seconds of a step without the exchange.
      size: bytes that are summed per step.
      devices: number of devices.
      network: the network between them.
    """
    return compute / (compute + exchange_seconds(size, devices, network))


def exchanged(case: Case) -> dict[str, int]:
    """Return the bytes of a step's collectives, compiled for two devices.

    Each device gets half of the tasks of the case.
    """
    learner, strategy, optimizer, episode, state, pool = make_parts(case)
    plan = Plan(tuple(jax.local_devices()[:2]), tasks_per_pass=1)
    run = make_run_steps(learner, strategy, optimizer, episode, case.tasks, plan)
    arguments = plan.replicate((state, pool, jax.random.key(1)))
    compiled = run.lower(*arguments, 0).compile(RUNS_ONCE)
    return collective_bytes(compiled.as_text())


def measure(rounds: int, seconds: float) -> dict:
    """Measure all cases, and project them.

    Returns:
      A result with `rows` of `case`, `time` of a step of `TASKS` tasks on one device,
      `parameters` and `exchanged` in bytes, and `efficiency` by speed, network and
      number of devices.
    """
    share = timing.CpuShare()
    rows = []
    for name, case in CASES.items():
        program = compile_case(case, Plan(tuple(jax.local_devices()[:1]), 1))
        times = timing.time_sides({"step": program.steps}, rounds, seconds)
        median = timing.spread(times["step"])
        rows.append(
            {
                "case": name,
                "time": median,
                "parameters": tree_bytes(make_parts(case).state.variables.params),
                "exchanged": exchanged(case),
            }
        )
    rows = [{**row, "efficiency": project(row)} for row in rows]
    return {
        "case": "projection",
        "kind": "projection",
        "rows": rows,
        "others": share.of_others(),
    }


def project(row: dict) -> dict[str, dict[str, dict[str, float]]]:
    """Return efficiencies by speed, network and number of devices."""
    size = sum(row["exchanged"].values())
    compute = row["time"]["median_ms"] / 1e3
    return {
        str(speed): {
            name: {
                str(devices): efficiency(compute / speed, size, devices, network)
                for devices in DEVICES
            }
            for name, network in NETWORK_KINDS.items()
        }
        for speed in SPEEDS
    }


def table(result: dict) -> str:
    """Format a result: what was measured, then what follows from the model."""
    lines = [
        f"projection, {TASKS} tasks per device, MLTI at the input; others "
        f"{timing.format_share(result['others'])}",
        f"  measured: {'case':20}{'ms per step':>26}{'parameters':>14}  exchanged per "
        "step, bytes",
    ]
    for row in result["rows"]:
        parts = [f"{kind} {size:,}" for kind, size in row["exchanged"].items()]
        lines.append(
            f"  {'':10}{row['case']:20}{timing.format_spread(row['time']):>26}"
            f"{row['parameters']:>14,}  {', '.join(parts)}"
        )
    heads = "".join(f"{devices:>8}" for devices in DEVICES)
    lines.append(f"  modelled: {'case':20}{'speed':>6}  {'network':20}{heads} devices")
    for row in result["rows"]:
        for speed, networks in row["efficiency"].items():
            for name, values in networks.items():
                cells = "".join(f"{100 * value:>6.1f} %" for value in values.values())
                lines.append(f"  {'':10}{row['case']:20}{speed:>6}  {name:20}{cells}")
    return "\n".join(lines)
