"""Our side of a case: one compiled program, with XLA's memory and cost analysis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmark.cases import Case, make_learner, make_pool, make_strategy
from mlti_jax.data import ClassPool, DomainPool, RegressionPool
from mlti_jax.data._pools import Pool
from mlti_jax.learners import Learner
from mlti_jax.parallel import Plan, plan_for
from mlti_jax.strategies import Strategy
from mlti_jax.training import Episode, init_state, make_run_steps
from mlti_jax.training._step import TrainState
from mlti_jax.types import Array, PyTree

# For programs that take longer to compile than to run.
RUNS_ONCE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


class Parts(NamedTuple):
    """The parts of a training step."""

    learner: Learner
    strategy: Strategy
    optimizer: optax.GradientTransformation
    episode: Episode
    state: TrainState | None
    pool: Pool | None


class Program(NamedTuple):
    """Our side of a case, compiled.

    Attributes:
      steps: runs a given number of training steps and waits for the last.
      compile_s: seconds for tracing and compiling.
      memory: in bytes, see `memory_of`.
      cost: of one step, see `cost_of`.
    """

    steps: Callable[[int], None]
    compile_s: float
    memory: dict[str, int]
    cost: dict[str, float]


def make_parts(case: Case, learner: Learner | None = None) -> Parts:
    """Build learner, strategy and optimizer, and put the pool on the device.

    Args:
      case: the step.
      learner: the learner; None for that of the case.
    """
    parts, init = _without_arrays(case, learner)
    state = jax.jit(init, compiler_options=RUNS_ONCE)(jax.random.key(0))
    return parts._replace(state=state, pool=_on_device(case))


def abstract_parts(case: Case) -> Parts:
    """Build the same with shapes and dtypes in place of arrays."""
    parts, init = _without_arrays(case)
    state = jax.eval_shape(init, jax.random.key(0))
    return parts._replace(state=state, pool=_abstract_pool(case))


def _without_arrays(
    case: Case, learner: Learner | None = None
) -> tuple[Parts, Callable[[jax.Array], TrainState]]:
    """Return the parts without state and pool, and a function that makes the state."""
    learner = make_learner(case) if learner is None else learner
    strategy = make_strategy(case, learner)
    optimizer = optax.adam(case.outer_lr)
    episode = Episode(case.ways, case.shots, case.queries)

    def init(key: jax.Array) -> TrainState:
        x = jnp.zeros((2, *case.image_shape))
        example = {"ids": x.astype(jnp.int32), "mask": x} if case.is_text else x
        return init_state(learner, strategy, optimizer, key, example)

    return Parts(learner, strategy, optimizer, episode, None, None), init


def compile_case(
    case: Case,
    plan: Plan | None = None,
    compiler_options: dict | None = None,
    learner: Learner | None = None,
) -> Program:
    """Compile our side of a case to one program for any number of steps.

    Calls the compiled program directly, because the jitted function would compile it a
    second time.

    Args:
      case: the step.
      plan: how tasks are distributed over devices and passes; None for the default of
        training runs.
      compiler_options: XLA options, such as `RUNS_ONCE`.
      learner: the learner; None for that of the case.
    """
    learner, strategy, optimizer, episode, state, pool = make_parts(case, learner)
    plan = plan_for(pool.x, case.tasks) if plan is None else plan
    run = make_run_steps(learner, strategy, optimizer, episode, case.tasks, plan)
    state, pool, key = plan.replicate((state, pool, jax.random.key(1)))
    start = time.perf_counter()
    compiled = run.lower(state, pool, key, 0).compile(compiler_options)
    compile_s = time.perf_counter() - start
    done = 0

    def steps(count: int) -> None:
        nonlocal state, done
        done += count
        state, bad_step = compiled(state, pool, key, plan.replicate(jnp.int32(done)))
        if int(bad_step) >= 0:
            raise FloatingPointError(f"the loss is not finite at step {int(bad_step)}")

    return Program(steps, compile_s, memory_of(compiled), cost_of(compiled))


def memory_of(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Peak memory of a program according to XLA, in bytes.

    Includes the arguments (parameters, optimizer state and the whole pool), outputs
    that do not reuse donated arguments, and all temporary buffers, which share memory
    where their lifetimes do not overlap. Excludes the program's code and allocations
    inside library calls: on CPU, XLA passes matrix products with surrounding
    operations to a library, whose intermediates are not visible here.

    Returns:
      `peak`, and its parts `arguments` and `temporary`.
    """
    sizes = compiled.memory_analysis()
    arguments, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    new_outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return {
        "peak": arguments + temporary + new_outputs,
        "arguments": arguments,
        "temporary": temporary,
    }


def cost_of(compiled: jax.stages.Compiled) -> dict[str, float]:
    """XLA's count of operations, and of bytes read and written.

    XLA counts the body of a loop once. The loop over steps therefore gives the cost of
    one step; loops inside a step are underestimated.

    Returns:
      `flops` and `bytes`; 0 if XLA does not report them.
    """
    counts = compiled.cost_analysis() or {}
    return {
        "flops": float(counts.get("flops", 0)),
        "bytes": float(counts.get("bytes accessed", 0)),
    }


def _on_device(case: Case) -> Pool:
    """Put the pool of a case on the device."""
    x, index = make_pool(case)
    y = np.random.default_rng(1).uniform(0, 10, (len(x), 1))
    return _pool(
        case,
        jnp.asarray(x),
        jnp.asarray(index, jnp.int32),
        jnp.full(index.shape[:-1], index.shape[-1], jnp.int32),
        jnp.asarray(y, jnp.float32),
    )


def _abstract_pool(case: Case) -> Pool:
    """Return the pool of a case with shapes and dtypes in place of arrays."""
    samples = (math.prod(case.pool), *case.image_shape)

    def shape(dtype: str, sizes: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    if case.is_text:
        x = {"ids": shape("int32", samples), "mask": shape("float32", samples)}
    else:
        cells = case.backbone == "mlp" and case.setting == "non_label_sharing"
        x = shape("float32" if cells else "uint8", samples)
    return _pool(
        case,
        x,
        shape("int32", case.pool),
        shape("int32", case.pool[:-1]),
        shape("float32", (samples[0], 1)),
    )


def _pool(case: Case, x: PyTree, index: Array, count: Array, y: Array) -> Pool:
    arrays = {"x": x, "index": index, "count": count}
    names = tuple(map(str, range(max(case.pool))))
    if case.setting == "regression":
        return RegressionPool(**arrays, y=y, domains=names[: case.pool[0]])
    classes = names[: case.pool[-2]]
    if case.setting == "label_sharing":
        return DomainPool(**arrays, classes=classes, domains=names[: case.pool[0]])
    return ClassPool(**arrays, classes=classes)
