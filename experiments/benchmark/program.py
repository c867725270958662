"""Our side of a case: one compiled program, with what XLA says of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmark.cases import Case, make_learner, make_pool, make_strategy
from mlti_jax.data import ClassPool, DomainPool, Pool, RegressionPool
from mlti_jax.learners import Learner
from mlti_jax.parallel import Plan, plan_for
from mlti_jax.strategies import Strategy
from mlti_jax.training import Episode, TrainState, adam, init_state, make_run_steps

# For a program that is compiled longer than it runs.
RUNS_ONCE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


class Parts(NamedTuple):
    """What a training step is made of."""

    learner: Learner
    strategy: Strategy
    optimiser: optax.GradientTransformation
    episode: Episode
    state: TrainState
    pool: Pool


class Program(NamedTuple):
    """Our side of a case, compiled.

    Attributes:
      steps: runs so many training steps and waits for the last.
      compile_s: how long tracing and compiling took.
      memory: in bytes, see `memory_of`.
      cost: of a step, see `cost_of`.
    """

    steps: Callable[[int], None]
    compile_s: float
    memory: dict[str, int]
    cost: dict[str, float]


def make_parts(case: Case) -> Parts:
    """Builds learner, strategy and optimiser, and puts the pool on the device."""
    learner = make_learner(case)
    strategy = make_strategy(case, learner)
    optimiser = adam(case.outer_lr)
    episode = Episode(case.ways, case.shots, case.queries)
    example = np.zeros((2, *case.image_shape), np.float32)

    def init(key: jax.Array) -> TrainState:
        return init_state(learner, strategy, optimiser, key, example)

    state = jax.jit(init, compiler_options=RUNS_ONCE)(jax.random.key(0))
    return Parts(learner, strategy, optimiser, episode, state, _on_device(case))


def compile_case(
    case: Case, plan: Plan | None = None, compiler_options: dict | None = None
) -> Program:
    """Builds our side of a case: one program, compiled once, for any number of steps.

    The compiled program itself is called, not the jitted function, which would compile
    it again.

    Args:
      case: the step.
      plan: how tasks are spread over devices and time; None: as in a run.
      compiler_options: of XLA, such as `RUNS_ONCE`.
    """
    learner, strategy, optimiser, episode, state, pool = make_parts(case)
    plan = plan_for(pool.x, case.tasks) if plan is None else plan
    run = make_run_steps(learner, strategy, optimiser, episode, case.tasks, plan)
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
    """What XLA says that a program needs at its peak, in bytes.

    Counted are the arguments (parameters, the optimiser's state and the whole pool),
    the outputs, unless they take the place of donated arguments, and all temporaries,
    whose buffers XLA lets share memory where they do not live at the same time. Not
    counted are the program's code, and what a library allocates inside one call: on CPU
    XLA hands matrix products to one together with what stands around them, and what is
    computed and used up within such a call is not seen here.

    Returns:
      `peak`, and of it `arguments` and `temporary`.
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
    """What XLA counts of a program: operations, and bytes read and written.

    The body of a loop is counted once, however often it runs. So the loop over steps
    gives the cost of one step; a loop inside a step makes the count too small.

    Returns:
      `flops` and `bytes`; 0 where XLA does not say.
    """
    counts = compiled.cost_analysis() or {}
    return {
        "flops": float(counts.get("flops", 0)),
        "bytes": float(counts.get("bytes accessed", 0)),
    }


def _on_device(case: Case) -> Pool:
    """The pool of a case as a learner takes it."""
    x, index = make_pool(case)
    arrays = {
        "x": jnp.asarray(x),
        "index": jnp.asarray(index, jnp.int32),
        "count": jnp.full(index.shape[:-1], index.shape[-1], jnp.int32),
    }
    names = tuple(map(str, range(max(index.shape))))
    if case.setting == "regression":
        y = np.random.default_rng(1).uniform(0, 10, (len(x), 1))
        y = jnp.asarray(y, jnp.float32)
        return RegressionPool(**arrays, y=y, domains=names[: len(index)])
    classes = names[: index.shape[-2]]
    if case.setting == "label_sharing":
        return DomainPool(**arrays, classes=classes, domains=names[: len(index)])
    return ClassPool(**arrays, classes=classes)
