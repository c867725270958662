"""Training steps lowered for a platform that this machine does not have."""

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


def lower(
    case: Case, platform: str, devices: Sequence[jax.Device] = ()
) -> jax.stages.Lowered:
    """Lower the training steps of a case, without data.

    Args:
      case: the step.
      platform: `cpu`, `cuda` or `tpu`.
      devices: of a topology (`jax.experimental.topologies`), to compile for them; the
        tasks are divided among them. Without them, the result can only be looked at.

    Returns:
      The program `run(state, pool, key, stop)` of `make_run_steps`, as it would be on a
      machine with that platform.
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
    with platforms.tracing_for("gpu" if platform == "cuda" else platform):
        run = make_run_steps(*parts[:4], case.tasks, plan)
        traced = run.trace(*arguments)
        if devices:
            return traced.lower()
        return traced.lower(lowering_platforms=(platform,))


def native_calls(program: str) -> set[str]:
    """Return the native kernels that a program calls, which exist on CPUs only.

    Args:
      program: as text, in StableHLO.
    """
    return {a or b for a, b in _NATIVE.findall(program)}
