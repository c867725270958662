"""Step time and memory of MAML against tasks, inner steps and pool size.

Each quantity is varied separately, and its sizes are timed in turn. Tasks are varied
twice: with all tasks of a device at once, and with four at a time (`tasks_per_pass`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from experiments.benchmark import timing
from experiments.benchmark.cases import NETWORKS, TWO_NETWORKS, Case
from experiments.benchmark.program import Program, compile_case
from mlti_jax.parallel import plan_for

SIZES = {
    "tasks": (4, 16, 64, 256),
    "tasks, passes": (4, 16, 64, 256),
    "inner_steps": (1, 5, 20, 50),
    "pool": (1, 8, 64),  # factor of the samples per class
}
Sizes = dict[str, tuple[int, ...]]


def _with_pool(case: Case, factor: int) -> Case:
    return replace(case, pool=(*case.pool[:-1], factor * case.pool[-1]))


RESIZE: dict[str, Callable[[Case, int], Case]] = {
    "tasks": lambda case, size: replace(case, tasks=size),
    "tasks, passes": lambda case, size: replace(case, tasks=size),
    "inner_steps": lambda case, size: replace(case, inner_steps=size),
    "pool": _with_pool,
}
TASKS_PER_PASS = {"tasks": None, "tasks, passes": 4}


def _compile(case: Case, varied: str) -> Program:
    """Compile as in a training run, except for the tasks per pass if varied."""
    if varied not in TASKS_PER_PASS:
        return compile_case(case)
    plan = plan_for(np.zeros((1, *case.image_shape)), case.tasks)
    return compile_case(case, replace(plan, tasks_per_pass=TASKS_PER_PASS[varied]))


def measure(rounds: int, seconds: float) -> dict:
    """Measure MAML with MLTI, for two networks, at all sizes."""
    # A single interpolation layer: each further one adds a step to the program.
    cases = {name: replace(NETWORKS[name], layers=(0,)) for name in TWO_NETWORKS}
    return measure_cases(cases, SIZES, rounds, seconds)


def measure_cases(
    cases: dict[str, Case], sizes: Sizes, rounds: int, seconds: float
) -> dict:
    """Measure every case at every size.

    Args:
      cases: by the names of their networks.
      sizes: of each varied quantity, see `RESIZE`.
      rounds: per quantity, see `timing.time_sides`.
      seconds: per quantity, see `timing.time_sides`.

    Returns:
      A result with `rows` of `network`, `varied`, `size`, `time`, `memory` and
      `compile_s`.
    """
    rows = []
    share = timing.CpuShare()
    for network, case in cases.items():
        for varied, values in sizes.items():
            resized = {size: RESIZE[varied](case, size) for size in values}
            programs = {size: _compile(each, varied) for size, each in resized.items()}
            steps = {str(size): program.steps for size, program in programs.items()}
            times = timing.time_sides(steps, rounds, seconds)
            for size, program in programs.items():
                row = {
                    "network": network,
                    "varied": varied,
                    "size": size,
                    "time": timing.spread(times[str(size)]),
                    "memory": program.memory,
                    "compile_s": program.compile_s,
                }
                rows.append(row)
    return {
        "case": "scaling",
        "kind": "scaling",
        "rows": rows,
        "others": share.of_others(),
    }


def table(result: dict) -> str:
    """Format a result, one line per size."""
    lines = [
        "scaling of MAML with MLTI; pool: factor of the samples; others "
        f"{timing.format_share(result['others'])}",
        f"  {'network':14}{'varied':>14}{'size':>6}{'ms':>26}{'peak, MB':>12}"
        f"{'temporary, MB':>15}{'compile, s':>12}",
    ]
    for row in result["rows"]:
        memory = row["memory"]
        lines.append(
            f"  {row['network']:14}{row['varied']:>14}{row['size']:>6}"
            f"{timing.format_spread(row['time']):>26}{memory['peak'] / 1e6:>12.1f}"
            f"{memory['temporary'] / 1e6:>15.1f}{row['compile_s']:>12.1f}"
        )
    return "\n".join(lines)
