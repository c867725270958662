"""Memory of second-order MAML: plain, with `remat`, and in passes.

XLA's analysis of the compiled program; nothing is run. The plain inner loop keeps the
intermediates of every step for the outer backward pass. With `remat` it keeps only
adapted parameters and recomputes the rest. Both run all tasks at once on one device;
`passes` is the plain loop with one task at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.benchmark.cases import NETWORKS, TWO_NETWORKS, Case, vanilla
from experiments.benchmark.program import RUNS_ONCE, compile_case
from mlti_jax.parallel import Plan

# `remat`, and the number of tasks that run at a time.
FORMS = {
    "plain": (False, Plan()),
    "remat": (True, Plan()),
    "passes": (False, Plan(tasks_per_pass=1)),
}
INNER_STEPS = (1, 5, 10, 20, 50)
TASKS = (1, 4, 16)


def measure(rounds: int, seconds: float) -> dict:
    """Measure MAML with two networks; the arguments are not used."""
    del rounds, seconds
    cases = {name: vanilla(NETWORKS[name]) for name in TWO_NETWORKS}
    return measure_cases(cases, TASKS, INNER_STEPS)


def measure_cases(
    cases: dict[str, Case], tasks: Sequence[int], inner_steps: Sequence[int]
) -> dict:
    """Compile every combination of case, tasks, form and inner steps.

    Args:
      cases: by the names of their networks.
      tasks: numbers of tasks per meta-batch.
      inner_steps: at least two numbers, ascending.

    Returns:
      A result with the memory of each combination in `rows`, in bytes (see
      `program.memory_of`), and the temporary bytes per additional inner step in
      `growth`.
    """
    rows, growth = [], []
    for network, case in cases.items():
        for number in tasks:
            for form, (remat, plan) in FORMS.items():
                some = replace(case, tasks=number, remat=remat)
                own = {"network": network, "tasks": number, "form": form}
                new = [
                    {**own, "inner_steps": steps, **_memory(some, steps, plan)}
                    for steps in inner_steps
                ]
                more = new[-1]["temporary"] - new[0]["temporary"]
                rows += new
                per_step = more / (inner_steps[-1] - inner_steps[0])
                growth.append({**own, "bytes_per_inner_step": per_step})
    return {"case": "memory", "kind": "memory", "rows": rows, "growth": growth}


def _memory(case: Case, inner_steps: int, plan: Plan) -> dict[str, int]:
    case = replace(case, inner_steps=inner_steps)
    return compile_case(case, plan, RUNS_ONCE).memory


def table(result: dict) -> str:
    """Format peak memory in MB, one line per network, number of tasks and form."""
    steps = sorted({row["inner_steps"] for row in result["rows"]})
    head = "".join(f"{number:>10}" for number in steps)
    lines = [
        "memory: peak of second-order MAML in MB, including the pool, by inner steps",
        f"  {'network':14}{'tasks':>6}  {'form':6}{head}{'MB per step':>12}",
    ]
    peaks = {_key(row, row["inner_steps"]): row["peak"] for row in result["rows"]}
    for row in result["growth"]:
        cells = "".join(f"{peaks[_key(row, number)] / 1e6:>10.1f}" for number in steps)
        lines.append(
            f"  {row['network']:14}{row['tasks']:>6}  {row['form']:6}{cells}"
            f"{row['bytes_per_inner_step'] / 1e6:>12.3f}"
        )
    return "\n".join(lines)


def _key(row: dict, inner_steps: int) -> tuple:
    return row["network"], row["tasks"], row["form"], inner_steps
