"""Training steps traced for platforms that this machine does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from experiments.benchmark.cases import Case
from experiments.benchmark.program import abstract_parts
from mlti_jax._internal import platforms
from mlti_jax.parallel import Plan
from mlti_jax.training import make_run_steps

# Prefix of the library calls of `mlti_jax._internal.native`, which only CPUs have.
_NATIVE = re.compile(r'custom_call @(mlti_jax_\w+)|call_target_name = "(mlti_jax_\w+)"')


def trace(case: Case, devices: Sequence[jax.Device] = ()) -> jax.stages.Traced:
    """Trace the training steps of a case as on an accelerator, without data.

    Args:
      case: the step.
      devices: of a topology (`jax.experimental.topologies`), to compile for them; the
        tasks are divided among them.

    Returns:
      The program `run(state, pool, key, stop)` of `make_run_steps`. Without devices,
      it can be lowered (`lowering_platforms`), but not compiled.
    """
    parts = abstract_parts(case)
    plan = Plan(tuple(devices))
    key = jax.eval_shape(jax.random.key, 0)
    stop = jax.ShapeDtypeStruct((), jnp.int32)
    arguments = (parts.state, parts.pool, key, stop)
    if devices:
        everywhere = (
            SingleDeviceSharding(devices[0])
            if plan.mesh is None
            else NamedSharding(plan.mesh, PartitionSpec())
        )
        arguments = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=everywhere
            ),
            arguments,
        )
    with platforms.tracing_for("accelerator"):
        run = make_run_steps(*parts[:4], case.tasks, plan)
        return run.trace(*arguments)


def native_calls(program: str) -> set[str]:
    """Return the native kernels that a program calls, which exist on CPUs only.

    Args:
      program: as text, in StableHLO.
    """
    return {a or b for a, b in _NATIVE.findall(program)}
