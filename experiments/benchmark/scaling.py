"""Growth of step time and memory with the size of the problem: table `scaling`.

Each quantity is varied separately, and its sizes are timed in turn. Tasks are varied
twice: with all tasks of a device at once, and with four at a time (`tasks_per_pass`).

The *work* of a step is the number of samples times the numbers per sample, of all its
tasks. For inner steps it is their number. The size of the pool does not count.

  per unit   time per unit of work relative to the smallest size, which is 1: more means
             faster growth than linear
  exponent   slope of log time against log work, or against log size where the work is
             constant; 1 is linear growth, 0 none. `last` is that of the two largest
             sizes alone, where fixed costs matter least.

Some work is not counted: distances of n ways and q queries per class are n^2 q
numbers, and MAML on an MLP uses Gram matrices of the support set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from experiments.benchmark import timing
from experiments.benchmark.cases import NETWORKS, TWO_NETWORKS, Case
from experiments.benchmark.program import Program, compile_case
from mlti_jax.parallel import plan_for

Sizes = dict[str, tuple[int, ...]]
SIZES: Sizes = {
    "tasks": (4, 16, 64, 256),
    "tasks, passes": (4, 16, 64, 256),
    "ways": (2, 5, 10, 20, 50),
    "shots": (1, 5, 10, 20, 50),
    "image side": (28, 56, 112, 224),
    "inner_steps": (1, 5, 20, 50),
    "pool": (1, 8, 64),  # factor of the samples per class
    "classes": (10, 100, 1000, 10_000),  # in the pool
}
# Of ProtoNet; everything else is as for MAML.
METRIC_SIZES = {
    name: SIZES[name] for name in ("tasks, passes", "ways", "shots", "image side")
}
WITHOUT_WORK = ("pool", "classes")
LEARNERS: dict[str, Sizes] = {"maml": SIZES, "protonet": METRIC_SIZES}


def _with_ways(case: Case, ways: int) -> Case:
    # The pool is the same for all sizes.
    groups = max(SIZES["ways"])
    return _with_classes(replace(case, ways=ways), groups)


def _with_classes(case: Case, classes: int) -> Case:
    """Draw the classes of a task from so many, with as few samples as a task needs."""
    ways = min(case.ways, classes)
    pool = (classes, case.shots + case.queries)
    return replace(case, setting="non_label_sharing", pool=pool, ways=ways)


def _with_shots(case: Case, shots: int) -> Case:
    samples = max(SIZES["shots"]) + case.queries
    return replace(case, shots=shots, pool=(*case.pool[:-1], samples))


def _with_side(case: Case, side: int) -> Case:
    samples = case.shots + case.queries
    shape = (side, side, case.image_shape[-1])
    return replace(case, image_shape=shape, pool=(2, *case.pool[1:-1], samples))


def _with_pool(case: Case, factor: int) -> Case:
    return replace(case, pool=(*case.pool[:-1], factor * case.pool[-1]))


RESIZE: dict[str, Callable[[Case, int], Case]] = {
    "tasks": lambda case, size: replace(case, tasks=size),
    "tasks, passes": lambda case, size: replace(case, tasks=size),
    "ways": _with_ways,
    "shots": _with_shots,
    "image side": _with_side,
    "inner_steps": lambda case, size: replace(case, inner_steps=size),
    "pool": _with_pool,
    "classes": _with_classes,
}
TASKS_PER_PASS = {"tasks": None, "tasks, passes": 4}


def work(case: Case, varied: str) -> float:
    """Work of a step, see above; 1 if the varied quantity does not change it."""
    if varied in WITHOUT_WORK:
        return 1.0
    if varied == "inner_steps":
        return float(case.inner_steps)
    samples = case.tasks * case.ways * (case.shots + case.queries)
    return float(samples * math.prod(case.image_shape))


def _compile(case: Case, varied: str) -> Program:
    """Compile as in a training run, except for the tasks per pass if varied."""
    if varied not in TASKS_PER_PASS:
        return compile_case(case)
    plan = plan_for(np.zeros((1, *case.image_shape)), case.tasks)
    return compile_case(case, replace(plan, tasks_per_pass=TASKS_PER_PASS[varied]))


def measure(rounds: int, seconds: float) -> dict:
    """Measure MAML and ProtoNet with MLTI, for two networks, at all sizes."""
    # A single interpolation layer: each further one adds a step to the program.
    cases = {name: replace(NETWORKS[name], layers=(0,)) for name in TWO_NETWORKS}
    return measure_cases(cases, LEARNERS, rounds, seconds)


def measure_cases(
    cases: dict[str, Case], learners: dict[str, Sizes], rounds: int, seconds: float
) -> dict:
    """Measure every case with every learner at every size.

    Args:
      cases: by the names of their networks.
      learners: sizes of each varied quantity, see `RESIZE`, by learner. Networks on
        vectors have no image side.
      rounds: per quantity, see `timing.time_sides`.
      seconds: per quantity, see `timing.time_sides`.

    Returns:
      A result with `rows` of `learner`, `network`, `varied`, `size`, `time`, `memory`,
      `compile_s`, `work` and `per_unit`, and the `growth` of the time of each quantity:
      `exponent` and `last`.
    """
    rows, growth = [], []
    share = timing.CpuShare()
    for network, base in cases.items():
        for learner, sizes in learners.items():
            case = replace(base, learner=learner)
            for varied, values in sizes.items():
                if varied == "image side" and len(case.image_shape) == 1:
                    continue
                own = {"learner": learner, "network": network, "varied": varied}
                new = _measure_sizes(case, varied, values, rounds, seconds)
                rows += [{**own, **row} for row in new]
                growth.append({**own, **exponents(new)})
    return {
        "case": "scaling",
        "kind": "scaling",
        "rows": rows,
        "growth": growth,
        "others": share.of_others(),
    }


def _measure_sizes(
    case: Case, varied: str, sizes: tuple[int, ...], rounds: int, seconds: float
) -> list[dict]:
    resized = {size: RESIZE[varied](case, size) for size in sizes}
    programs = {size: _compile(each, varied) for size, each in resized.items()}
    steps = {str(size): program.steps for size, program in programs.items()}
    times = timing.time_sides(steps, rounds, seconds)
    rows = []
    for size, program in programs.items():
        row = {
            "size": size,
            "time": timing.spread(times[str(size)]),
            "memory": program.memory,
            "compile_s": program.compile_s,
            "work": work(resized[size], varied),
        }
        first = rows[0] if rows else row
        growth = row["time"]["median_ms"] / first["time"]["median_ms"]
        row["per_unit"] = growth * first["work"] / row["work"]
        rows.append(row)
    return rows


def exponents(rows: list[dict]) -> dict[str, float | None]:
    """Slopes of log time against log work, of all sizes and of the last two.

    Where the work is constant, against log size; None for a single size.
    """
    if len(rows) < 2:
        return {"exponent": None, "last": None}
    time = np.log([row["time"]["median_ms"] for row in rows])
    grows = rows[0]["work"] != rows[-1]["work"]
    against = np.log([row["work" if grows else "size"] for row in rows])
    slopes = (np.polyfit(against[part], time[part], 1)[0] for part in _PARTS)
    return dict(zip(("exponent", "last"), map(float, slopes), strict=True))


_PARTS = (slice(None), slice(-2, None))


def table(result: dict) -> str:
    """Format a result, one line per size, and one per quantity for its growth."""
    lines = [
        "scaling with MLTI; pool: factor of the samples; classes: in the pool; others "
        f"{timing.format_share(result['others'])}",
        f"  {'learner':10}{'network':14}{'varied':>14}{'size':>7}{'ms':>26}"
        f"{'per unit':>10}{'peak, MB':>10}{'temporary, MB':>15}{'compile, s':>12}",
    ]
    for row in result["rows"]:
        memory = row["memory"]
        lines.append(
            f"  {row['learner']:10}{row['network']:14}{row['varied']:>14}"
            f"{row['size']:>7}{timing.format_spread(row['time']):>26}"
            f"{row['per_unit']:>10.2f}{memory['peak'] / 1e6:>10.1f}"
            f"{memory['temporary'] / 1e6:>15.1f}{row['compile_s']:>12.1f}"
        )
    lines.append(f"  {'exponents':38}{'all sizes':>10}{'last two':>10}")
    for row in result["growth"]:
        cells = "".join(
            f"{'-' if row[name] is None else f'{row[name]:.2f}':>10}"
            for name in ("exponent", "last")
        )
        name = f"  {row['learner']:10}{row['network']:14}{row['varied']:>14}"
        lines.append(name + cells)
    return "\n".join(lines)
