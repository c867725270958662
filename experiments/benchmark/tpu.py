"""Training steps compiled for TPUs on a machine without one.

The TPU compiler is a part of the package libtpu (`pip install -e '.[tpu_check]'`), and
needs no TPU if it is given the description of one. Each case is compiled in a process
of its own, because libtpu reads its settings from the environment when JAX starts, and
because it ends the process if it fails.

Nothing is run. A row has what the compiler reports: memory, collectives and its own
estimate of cycles. A *roofline* is a bound of the time of a step: all operations
at the peak rate of matrix products, or all bytes at the bandwidth of the memory,
whichever takes longer.
"""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from experiments.benchmark.cases import (
    ALBERT,
    BIO,
    NETWORKS,
    POSE,
    RAINBOW,
    TEXT,
    Case,
    vanilla,
)
from experiments.benchmark.hlo import Summary, summarize
from mlti_jax._internal import extras
from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES, LEARNERS
from mlti_jax.strategies._registry import STRATEGIES, applies_to


class Chip(NamedTuple):
    """Peaks of a chip, as published by its vendor.

    Attributes:
      flops: per second, of products of bfloat16 matrices.
      bandwidth: of the memory, in bytes per second.
      memory: in bytes.
      clock: in Hz, to convert cycles: `flops` divided by the operations per cycle of
        all matrix units of 128 x 128.
    """

    flops: float
    bandwidth: float
    memory: float
    clock: float


CHIPS = {
    "v4": Chip(275e12, 1228e9, 32e9, 1.05e9),
    "v5e": Chip(197e12, 819e9, 16e9, 1.5e9),
    "v5p": Chip(459e12, 2765e9, 95e9, 1.75e9),
}
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # for arrays; the compiler is called through the topology
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
# Compute dtype of the network, and precision of products of float32 arrays.
ARITHMETICS = {
    "float32": ("float32", "default"),
    "bfloat16": ("bfloat16", "default"),
    "highest": ("float32", "highest"),
}
# Shares of the cycles above which a kind is marked.
_EXPECTED = "convolution, dot"
_LARGE_SHARE, _LARGE_INDEX_SHARE = 0.3, 0.05
_LARGE_PADDING = 4.0
_TIMEOUT_S = 1800


def all_cases() -> dict[str, Case]:
    """Every learner on every network, and every strategy with two learners on two.

    Learners are combined with `vanilla` and `mlti` as far as they apply.
    """
    networks = {
        "conv4_28_1q": RAINBOW,
        "resnet12_28_1q": NETWORKS["resnet12_28_1q"],
        "bio": BIO,
        "pose": replace(POSE, tasks=8),  # a multiple of the devices
        "word_mean": TEXT,
        "albert": ALBERT,
    }
    cases = {}
    for network, case in networks.items():
        for learner in LEARNERS:
            some = ("vanilla", "mlti")
            if network in ("conv4_28_1q", "bio") and learner in ("maml", "protonet"):
                some = tuple(STRATEGIES)
            for strategy in some:
                combined = replace(case, learner=learner, strategy=strategy)
                if applicable(combined):
                    cases[f"{learner}_{network}_{strategy}"] = (
                        vanilla(combined) if strategy == "vanilla" else combined
                    )
    return cases


def applicable(case: Case) -> bool:
    """Whether the learner of a case fits its data, and its strategy the learner."""
    family = next(name for name in FAMILIES if case.learner in FAMILIES[name])
    if case.setting == "regression" and family != "gradient":
        return False
    return family in applies_to(case.strategy)


QUICK = (
    "maml_conv4_28_1q_mlti",
    "protonet_conv4_28_1q_mlti",
    "maml_bio_mlti",
)


class Request(NamedTuple):
    """What to compile.

    Attributes:
      topology: such as `v5e:2x2`.
      cases: names of `all_cases`.
      devices: numbers of devices, each compiled.
      arithmetics: of `ARITHMETICS`, each compiled.
    """

    topology: str
    cases: tuple[str, ...]
    devices: tuple[int, ...]
    arithmetics: tuple[str, ...]


def request(
    topology: str,
    patterns: Sequence[str] | None,
    devices: Sequence[str] | None,
    arithmetics: Sequence[str] | None,
    quick: bool = False,
) -> Request:
    """Check the values of the flags and return what they ask for.

    Raises:
      InputError: if a value is unknown, or libtpu is not installed.
    """
    extras.package_file("libtpu", "libtpu.so", "tpu_check")
    chip, _, grid = topology.partition(":")
    if not chip or not all(side.isdigit() for side in grid.split("x")):
        raise InputError(
            f"--topology={topology}; expected a chip and a grid, such as v5e:2x2"
        )
    known = all_cases()
    names: list[str] = []
    for pattern in patterns or (QUICK if quick else ("*",)):
        found = fnmatch.filter(known, pattern)
        if not found:
            raise unknown_name("case for TPUs", pattern, known)
        names += found
    counts = tuple(devices or (("1",) if quick else ("1", "4")))
    if not all(count.isdigit() and int(count) > 0 for count in counts):
        raise InputError(f"--tpu_devices={','.join(counts)}; expected numbers above 0")
    kinds = tuple(arithmetics or ("float32", "bfloat16"))
    for kind in kinds:
        if kind not in ARITHMETICS:
            raise unknown_name("arithmetic", kind, ARITHMETICS)
    cases = tuple(dict.fromkeys(names))
    return Request(topology, cases, tuple(map(int, counts)), kinds)


def measure(wanted: Request) -> Iterator[dict]:
    """Compile one case after the other; yield a result for each program."""
    for case in wanted.cases:
        expected = [(n, kind) for n in wanted.devices for kind in wanted.arithmetics]
        fault = "the process ended"
        command = [sys.executable, "-m", "experiments.benchmark.tpu"]
        command.append(json.dumps(wanted._replace(cases=(case,))))
        process = subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, log = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, log = process.communicate()
            fault = f"not finished after {_TIMEOUT_S} s"
        for line in out.splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                expected.remove((result["devices"], result["arithmetic"]))
                yield result
        # libtpu ends the process where other libraries raise.
        if expected:
            last = log.strip().splitlines()[-1:] or ["nothing was printed"]
            devices, kind = expected[0]
            yield _result(
                wanted.topology, case, devices, kind, error=f"{fault}: {last[0][:300]}"
            )


def _result(
    topology: str, case: str, devices: int, arithmetic: str, **values: Any
) -> dict:
    return {
        "kind": "tpu",
        "case": case,
        "topology": topology,
        "devices": devices,
        "arithmetic": arithmetic,
        **values,
    }


# ------------------------------------------------------------------ in the new process


def compile_for(
    topology: str, case: Case, devices: int, arithmetic: str
) -> dict[str, Any]:
    """Compile a case; call it in a process with `ENVIRONMENT`.

    Returns:
      `compile_s`, `memory` as in `program.memory_of`, `cost` as in `program.cost_of`,
      the `peaks` of the chip (None if they are unknown) and the `summary` of the
      program.
    """
    from jax.experimental import topologies

    from experiments.benchmark.lowering import trace
    from experiments.benchmark.program import cost_of, memory_of
    from mlti_jax._internal.precision import matmul_precision

    described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    if devices > len(described.devices):
        raise InputError(
            f"{topology} has {len(described.devices)} devices, and {devices} are wanted"
        )
    dtype, precision = ARITHMETICS[arithmetic]
    start = time.perf_counter()
    with matmul_precision(precision):
        case = replace(case, compute_dtype=dtype)
        traced = trace(case, described.devices[:devices])
        compiled = traced.lower().compile()
    seconds = time.perf_counter() - start
    chip = CHIPS.get(topology.partition(":")[0])
    return {
        "compile_s": seconds,
        "memory": memory_of(compiled),
        "cost": cost_of(compiled),
        "peaks": chip and chip._asdict(),
        "summary": summarize(compiled.as_text())._asdict(),
    }


def _main() -> None:
    wanted = Request(*json.loads(sys.argv[1]))
    cases = all_cases()
    for name in wanted.cases:
        for devices in wanted.devices:
            for arithmetic in wanted.arithmetics:
                try:
                    values = compile_for(
                        wanted.topology, cases[name], devices, arithmetic
                    )
                except Exception as error:  # reported in the row of the case
                    values = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
                result = _result(wanted.topology, name, devices, arithmetic, **values)
                print(json.dumps(result), flush=True)


# --------------------------------------------------------------------------- the table


def roofline(result: dict) -> tuple[float, str]:
    """Return the shortest possible time of a step in seconds, and what bounds it."""
    peaks, cost = result["peaks"], result["cost"]
    times = {
        "products": cost["flops"] / peaks["flops"],
        "memory": cost["bytes"] / peaks["bandwidth"],
    }
    bound = max(times, key=lambda name: times[name])
    return times[bound], bound


def marks(result: dict) -> list[str]:
    """Describe what stands out in a program."""
    summary = Summary(**result["summary"])
    found = []
    peaks, peak = result["peaks"], result["memory"]["peak"]
    if peaks and peak > peaks["memory"]:
        found.append(f"does not fit into memory: {peak / 1e9:.1f} GB")
    for kind, cycles in summary.cycles.items():
        share = cycles / summary.total
        index = kind in ("sort", "gather, scatter")
        limit = _LARGE_INDEX_SHARE if index else _LARGE_SHARE
        if kind != _EXPECTED and share > limit:
            found.append(f"{kind} {100 * share:.0f} %")
    if summary.grouped:
        found.append(f"{summary.grouped} grouped convolutions")
    if summary.padding > _LARGE_PADDING:
        found.append(f"padding to tiles {summary.padding:.1f} times the data")
    if summary.open_loops:
        found.append(f"{summary.open_loops} loops of unknown length, counted once")
    if summary.without_estimate:
        names = (
            f"{number} {name}" for name, number in summary.without_estimate.items()
        )
        found.append(f"no estimate for {', '.join(names)}")
    number = sum(number for number, _ in summary.collectives.values())
    if number > 1:
        found.append(f"{number:g} collectives")
    return found


def header() -> str:
    """Names of the columns; memory in MB, cycles in millions, times in ms."""
    return (
        f"{'case':34}{'devices':>8}{'arithmetic':>11}{'compile, s':>11}"
        f"{'arguments':>10}{'temporary':>10}{'peak':>8}{'cycles':>8}{'ms':>8}"
        f"{'roofline':>17}  collectives"
    )


def table(result: dict) -> str:
    """Format a result: a row, the cycles by kind of operation, and what stands out."""
    start = f"{result['case']:34}{result['devices']:>8}{result['arithmetic']:>11}"
    if "error" in result:
        return f"{start}  DOES NOT COMPILE: {result['error']}"
    summary, memory = Summary(**result["summary"]), result["memory"]
    sizes = [memory[name] / 1e6 for name in ("arguments", "temporary", "peak")]
    milliseconds = bound = "-"
    if result["peaks"]:
        milliseconds = f"{1e3 * summary.total / result['peaks']['clock']:.2f}"
        seconds, name = roofline(result)
        bound = f"{1e3 * seconds:.3f} {name}"
    exchanged = ", ".join(
        f"{number:g} {kind} ({size / 1e3:.1f} kB)"
        for kind, (number, size) in summary.collectives.items()
    )
    shares = ", ".join(
        f"{kind} {100 * cycles / summary.total:.0f} %"
        for kind, cycles in summary.cycles.items()
        if cycles >= 0.01 * summary.total
    )
    lines = [
        f"{start}{result['compile_s']:>11.1f}{sizes[0]:>10.1f}{sizes[1]:>10.1f}"
        f"{sizes[2]:>8.1f}{summary.total / 1e6:>8.2f}{milliseconds:>8}{bound:>17}"
        f"  {exchanged or '-'}",
        f"    cycles: {shares}",
    ]
    if found := marks(result):
        lines.append(f"    ! {'; '.join(found)}")
    return "\n".join(lines)


if __name__ == "__main__":
    _main()
