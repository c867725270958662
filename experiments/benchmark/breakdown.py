"""Breakdown of the step time, compared with the machine's peak performance.

Each program contains the one before and goes one part further, from drawing tasks to
the whole step. Programs are compiled separately, run in a loop that reuses their
buffers, and timed in turn. The time of a part is the difference between a program and
the one before. Work that the compiler fuses across parts, and what the forward pass
keeps for the backward pass, counts for the later part. Tasks are interpolated at the
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmark import timing
from experiments.benchmark.cases import Case, find
from experiments.benchmark.flops import step_flops
from experiments.benchmark.machine import measure_peaks
from experiments.benchmark.program import Parts, Program, compile_case, make_parts
from mlti_jax.data import sample_task
from mlti_jax.data._pools import Pool
from mlti_jax.learners import TaskContext, Variables
from mlti_jax.parallel import Plan, map_tasks, plan_for
from mlti_jax.strategies import meta_objective
from mlti_jax.strategies._base import repeat_support
from mlti_jax.strategies._objective import tasks_per_step
from mlti_jax.types import Array, PyTree

# As measured on two CPU cores; used if no steps were timed in the same run.
SLOWEST = (
    "maml_pose_mlti",
    "maml_resnet12_28_1q_mlti",
    "protonet_resnet12_28_1q_mlti",
    "maml_conv4_84_5s_mlti",
    "protonet_conv4_84_5s_mlti",
    "maml_conv4_84_1s_mlti",
)
PARTS = {
    "sampling": "drawing tasks",
    "interpolation": "interpolating them",
    "shared": "forward of shared layers",
    "forward": "inner loop, query loss",
    "gradient": "outer backward pass",
    "step": "optimizer, the rest",
}
DISPATCH = "dispatch"  # once per call, which may run many steps

# (variables, pool, key) -> outputs
Function = Callable[[Variables, Pool, Array], PyTree]


def slowest(results: list[dict], number: int = 6) -> tuple[str, ...]:
    """Names of the slowest cases; of the vanilla and MLTI form, only the slower."""
    times = {}
    for result in results:
        if result["kind"] == "step":
            step = result["case"].rpartition("_")[0]
            time = result["time"]["jax"]["median_ms"]
            times[step] = max(times.get(step, (0.0, "")), (time, result["case"]))
    ordered = sorted(times.values(), reverse=True)
    return tuple(name for _, name in ordered[:number])


def functions(case: Case, parts: Parts, plan: Plan) -> dict[str, Function]:
    """The functions of all programs except the whole step, by name."""
    learner, strategy = parts.learner, parts.strategy
    drawn = tasks_per_step(strategy, case.tasks)

    def sampling(variables, pool, key):
        keys = jax.random.split(key, drawn)
        draw = jax.vmap(lambda k: sample_task(pool, k, **parts.episode._asdict()))
        return draw(keys)

    def interpolation(variables, pool, key):
        tasks = sampling(variables, pool, key)
        if strategy.transform is None:
            return tasks

        def transform(tasks, key):
            return repeat_support(strategy.transform(tasks, key, case.tasks))

        mixed = plan.everywhere(transform)(tasks, key)
        return plan.shard(jax.tree.map(lambda leaf: leaf[:, 0], mixed))

    def shared(variables, pool, key):
        def embed(variables, task):
            context = TaskContext(key, train=True)
            return learner.embed(variables, task, context, learner.shared_layers)[0]

        return map_tasks(embed, plan)(variables, interpolation(variables, pool, key))

    def loss(trained, variables, pool, key):
        changed = variables.replace(params=trained[0], strategy=trained[1])
        tasks = sampling(variables, pool, key)
        return meta_objective(
            learner, strategy, changed, tasks, key, 0, case.tasks, plan
        )[0]

    def forward(variables, pool, key):
        trained = (variables.params, variables.strategy)
        return loss(trained, variables, pool, key)

    def gradient(variables, pool, key):
        trained = (variables.params, variables.strategy)
        return jax.grad(loss)(trained, variables, pool, key)

    several = (sampling, interpolation, shared, forward, gradient)
    return {function.__name__: function for function in several}


def looped(function: Function, parts: Parts, plan: Plan) -> timing.Steps:
    """Compile a loop that calls a function a given number of times."""
    variables, pool, key = plan.replicate(
        (parts.state.variables, parts.pool, jax.random.key(2))
    )
    shapes = jax.eval_shape(function, variables, pool, key)

    @jax.jit
    def run(variables, pool, key, count):
        def body(index, _):
            return function(variables, pool, jax.random.fold_in(key, index))

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, zeros)

    compiled = run.lower(variables, pool, key, plan.replicate(jnp.int32(0))).compile()

    def steps(count: int) -> None:
        count = plan.replicate(jnp.int32(count))
        jax.block_until_ready(compiled(variables, pool, key, count))

    return steps


def measure_case(
    name: str, case: Case, peaks: dict[str, float], rounds: int, seconds: float
) -> dict:
    """Measure the breakdown of one case.

    Args:
      name: of the case.
      case: the step; interpolates at the input, regardless of its `layers`.
      peaks: performance of the machine, see `measure_peaks`.
      rounds: see `timing.time_sides`.
      seconds: see `timing.time_sides`.

    Returns:
      A result with the times of `programs`, the `parts` in milliseconds per step, and
      the `limit` given by the machine.
    """
    case = replace(case, layers=(0,))
    parts = make_parts(case)
    plan = plan_for(parts.pool.x, case.tasks)
    sides = {
        part: looped(function, parts, plan)
        for part, function in functions(case, parts, plan).items()
    }
    program = compile_case(case)

    def dispatch(count: int) -> None:
        for _ in range(count):
            program.steps(0)

    share = timing.CpuShare()
    sides |= {"step": program.steps, DISPATCH: dispatch}
    times = timing.time_sides(sides, rounds, seconds)
    spreads = {side: timing.spread(values) for side, values in times.items()}
    return {
        "case": name,
        "kind": "account",
        "peaks": peaks,
        "setting": asdict(case),
        "programs": spreads,
        "parts": _differences(spreads),
        "limit": _limit(case, program, peaks, spreads["step"]["median_ms"]),
        "others": share.of_others(),
    }


def _differences(spreads: dict[str, dict]) -> dict[str, float]:
    """Milliseconds of each part; noise can make small parts negative."""
    before, parts = 0.0, {}
    for part in PARTS:
        parts[part] = spreads[part]["median_ms"] - before
        before = spreads[part]["median_ms"]
    parts[DISPATCH] = spreads[DISPATCH]["median_ms"]
    return parts


def _limit(
    case: Case, program: Program, peaks: dict[str, float], step_ms: float
) -> dict[str, float]:
    by_hand = step_flops(case)
    return {
        "gflop_by_hand": by_hand / 1e9,
        "gflop_by_xla": program.cost["flops"] / 1e9,
        "gb_by_xla": program.cost["bytes"] / 1e9,
        "gflops": by_hand / 1e6 / step_ms,
        "share_of_peak": by_hand / 1e6 / step_ms / peaks["gflops"],
        "ms_at_peak": by_hand / 1e6 / peaks["gflops"],
        "ms_at_bandwidth": program.cost["bytes"] / 1e6 / peaks["gb_s"],
    }


def measure(
    names: tuple[str, ...], rounds: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Measure the peak performance, then yields the breakdown of each case."""
    peaks = measure_peaks()
    for name in names:
        yield measure_case(name, find(name), peaks, rounds, seconds)


def table(result: dict) -> str:
    """Format the breakdown of a case."""
    limit, step = result["limit"], result["programs"]["step"]
    peaks = result["peaks"]
    lines = [
        f"breakdown of {result['case']}: {timing.format_spread(step)} ms per step; "
        f"others {timing.format_share(result['others'])}"
    ]
    for part, milliseconds in result["parts"].items():
        share = milliseconds / step["median_ms"]
        label = PARTS.get(part, "dispatch, once per call")
        lines.append(f"    {label:26}{timing.format_ms(milliseconds):>10}{share:>7.0%}")
    lines += [
        f"    {limit['gflop_by_hand']:.2f} GFLOP counted by hand (XLA, which counts "
        f"loops once: {limit['gflop_by_xla']:.2f}): {limit['gflops']:.1f} GFLOP/s, "
        f"{limit['share_of_peak']:.0%} of the peak of {peaks['gflops']:.0f}",
        f"    {timing.format_ms(limit['ms_at_peak'])} ms at the peak; moving XLA's "
        f"{limit['gb_by_xla']:.2f} GB {timing.format_ms(limit['ms_at_bandwidth'])} ms "
        f"at {peaks['gb_s']:.1f} GB/s without any cache",
    ]
    return "\n".join(lines)
