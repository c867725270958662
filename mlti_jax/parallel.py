"""How the tasks of a meta-batch are spread over devices and over time.

A learner speaks of one task; `map_tasks` and `mean_loss` run it for all of them. Each
device takes an equal share of the tasks, and goes through its share in *passes* of some
tasks at a time: all of them at once by default, which is best for small networks; or
fewer, which bounds memory, and on a CPU keeps a pass in its cache. What comes out is
the same, up to the order in which sums are rounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

AXIS = "tasks"
MOST_CORES = 16  # that share a meta-batch; more would each have too little to do
EVERYWHERE, BY_TASK = PartitionSpec(), PartitionSpec(AXIS)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where and when tasks are run; static.

    Attributes:
      devices: that share the tasks; empty for JAX's default device alone.
      tasks_per_pass: tasks that a device runs at a time; None: its whole share.
    """

    devices: tuple[jax.Device, ...] = ()
    tasks_per_pass: int | None = None

    def __post_init__(self):
        if self.tasks_per_pass is not None and self.tasks_per_pass < 1:
            raise InputError(
                f"tasks_per_pass must be 1 or more, got {self.tasks_per_pass}"
            )

    @property
    def mesh(self) -> Mesh | None:
        """The devices as JAX wants them; None where there is nothing to share."""
        if len(self.devices) < 2:
            return None
        return jax.make_mesh(
            (len(self.devices),),
            (AXIS,),
            axis_types=(AxisType.Auto,),
            devices=self.devices,
        )

    def replicate(self, tree: PyTree) -> PyTree:
        """Copies arrays to all the devices, once, so that no call has to do it."""
        if self.mesh is None:
            return tree
        return jax.device_put(tree, NamedSharding(self.mesh, EVERYWHERE))

    def shard(self, tree: PyTree) -> PyTree:
        """Asks the compiler to lay out arrays `[tasks, ...]` over the devices."""
        if self.mesh is None or not self._divides(tree):
            return tree
        sharding = NamedSharding(self.mesh, BY_TASK)
        return jax.lax.with_sharding_constraint(tree, sharding)

    def _divides(self, tree: PyTree) -> bool:
        return _length(tree) % len(self.devices) == 0

    def spread(self, function: Callable, mapped: PyTree, out_specs) -> Callable:
        """`function(shared, mapped)` with each device given its part of `mapped`."""
        if self.mesh is None:
            return function
        if not self._divides(mapped):
            raise InputError(
                f"{_length(mapped)} tasks can't be shared equally by "
                f"{len(self.devices)} devices; choose a multiple, or fewer devices"
            )
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(EVERYWHERE, BY_TASK),
            out_specs=out_specs,
            check_vma=False,
        )

    def everywhere(self, function: Callable) -> Callable:
        """`function(a, b)` computed whole by every device.

        For what is cheap: a compiler that shares it has the devices wait for each
        other, in loops of random draws once a round.
        """
        if self.mesh is None:
            return function
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(EVERYWHERE, EVERYWHERE),
            out_specs=EVERYWHERE,
            check_vma=False,
        )


ONE_PASS = Plan()


def map_tasks(
    function: Callable[[PyTree, PyTree], PyTree], plan: Plan = ONE_PASS
) -> Callable[[PyTree, PyTree], PyTree]:
    """Maps `function(shared, task)` over tasks.

    Args:
      function: of what all tasks share, and of one task; it must not close over traced
        values that derivatives are taken by.
      plan: where and when. With passes, what a pass computes on its way is computed
        again in the backward pass instead of being kept.

    Returns:
      `(shared, tasks) -> outputs`, every leaf of the last two `[tasks, ...]`.

    Example:
      >>> scale = map_tasks(lambda factor, x: factor * x, Plan(tasks_per_pass=2))
      >>> scale(10.0, jnp.arange(5.0)).tolist()
      [0.0, 10.0, 20.0, 30.0, 40.0]
    """

    def share(shared: PyTree, tasks: PyTree) -> PyTree:
        if plan.tasks_per_pass is None or plan.tasks_per_pass >= _length(tasks):
            return jax.vmap(partial(function, shared))(tasks)
        one = jax.checkpoint(partial(function, shared))
        return jax.lax.map(one, tasks, batch_size=plan.tasks_per_pass)

    return lambda shared, tasks: plan.spread(share, tasks, BY_TASK)(shared, tasks)


def mean_loss(
    loss_fn: Callable[[PyTree, PyTree, PyTree], tuple[Array, PyTree]],
    plan: Plan,
    inputs_depend: bool,
) -> Callable[[PyTree, PyTree, PyTree], tuple[Array, PyTree]]:
    """The mean of a loss over tasks, whose gradient is summed up pass by pass.

    A mean weighs all tasks alike, so each pass can take its gradient at once and throw
    away all else: nothing is computed twice, and the memory is that of one pass.

    Args:
      loss_fn: `(shared, inputs, rest) -> (loss, aux)` of one task; it must not close
        over traced values that derivatives are taken by. No derivative is taken by
        `rest`, and none of `aux`.
      plan: where and when; with passes of one share it is the plain mean.
      inputs_depend: whether a derivative by `inputs` is wanted too. It costs as much
        as another layer; images as they come don't need it.

    Returns:
      `(shared, inputs, rest) -> (scalar, aux)`, the leaves of `inputs`, `rest` and
      `aux` `[tasks, ...]`.
    """

    def forward(shared, inputs, rest):
        losses, aux = map_tasks(lambda shared, task: loss_fn(shared, *task), plan)(
            shared, (inputs, rest)
        )
        return losses.mean(), jax.lax.stop_gradient(aux)

    def pass_loss(shared, inputs, rest):
        tasks = (inputs, rest)
        if _length(tasks) == 1:  # An axis of one task is dearer than none.
            out = loss_fn(shared, *jax.tree.map(lambda leaf: leaf[0], tasks))
            losses, aux = jax.tree.map(lambda leaf: leaf[None], out)
        else:
            losses, aux = jax.vmap(partial(loss_fn, shared))(*tasks)
        return losses.sum(), aux

    def share_gradients(shared, tasks):
        """Sums over a device's share: loss, gradient; and what each task has alone."""
        wanted = (0, 1) if inputs_depend else 0
        gradient = jax.value_and_grad(pass_loss, wanted, has_aux=True)

        def one_pass(total, tasks):
            (loss, aux), grads = gradient(shared, *tasks)
            by_shared, by_inputs = grads if inputs_depend else (grads, ())
            total = jax.tree.map(jnp.add, total, (loss, by_shared))
            return total, (aux, by_inputs)

        number = _length(tasks)
        size = min(plan.tasks_per_pass or number, number)
        even = number - number % size
        first = _cut(tasks, 0, size)
        loss, _ = jax.eval_shape(pass_loss, shared, *first)
        total = jax.tree.map(jnp.zeros_like, (jnp.zeros((), loss.dtype), shared))
        total, alone = jax.lax.scan(
            one_pass, total, _divide(_cut(tasks, 0, even), size)
        )
        alone = jax.tree.map(jnp.concatenate, alone)
        if even < number:
            total, last = one_pass(total, _cut(tasks, even, number))
            alone = jax.tree.map(lambda *parts: jnp.concatenate(parts), alone, last)
        if plan.mesh is not None:
            total = jax.lax.psum(total, AXIS)
        return total, alone

    @jax.custom_vjp
    def mean(shared, inputs, rest):
        return forward(shared, inputs, rest)

    def mean_forward(shared, inputs, rest):
        tasks = (inputs, rest)
        run = plan.spread(share_gradients, tasks, (EVERYWHERE, BY_TASK))
        (loss, by_shared), (aux, by_inputs) = run(shared, tasks)
        number = _length(tasks)
        grads = jax.tree.map(lambda g: g / number, (by_shared, by_inputs))
        return (loss / number, aux), grads

    def mean_backward(grads, cotangents):
        by_shared, by_inputs = jax.tree.map(lambda g: cotangents[0] * g, grads)
        return by_shared, by_inputs if inputs_depend else None, None

    mean.defvjp(mean_forward, mean_backward)
    return mean


def use_all_cores() -> None:
    """Makes each core of a CPU a device, so that they can share the tasks.

    For a program to call before it uses JAX: later it has no effect, nor where the
    number of devices is set already (by `JAX_NUM_CPU_DEVICES` or in `XLA_FLAGS`).
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.jax_num_cpu_devices > 0:
        return
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(RuntimeError):  # JAX is in use already
        jax.config.update("jax_num_cpu_devices", min(cores, MOST_CORES))


def plan_for(
    x: PyTree,
    batch_size: int,
    devices: int | None = None,
    tasks_per_pass: int | None = None,
) -> Plan:
    """How a meta-batch is best spread, in so far as nothing else is asked for.

    On accelerators as many devices share it as can do so equally. On a CPU the devices
    are its cores (see `use_all_cores`): images are shared by them and taken one task at
    a time, since XLA runs a convolution on one core, and a task stays in the cache; the
    matrix products of other networks use all cores by themselves.

    Args:
      x: inputs, every leaf `[N, ...]`; images are `[N, H, W, C]`.
      batch_size: tasks in a meta-batch.
      devices: how many are to share it.
      tasks_per_pass: tasks that each of them is to run at a time.
    """
    there = jax.local_devices()
    if jax.default_backend() == "cpu":
        images = all(leaf.ndim == 4 for leaf in jax.tree.leaves(x))
        devices = 1 if devices is None and not images else devices
        tasks_per_pass = 1 if tasks_per_pass is None and images else tasks_per_pass
    if devices is None:
        devices = max(n for n in range(1, len(there) + 1) if batch_size % n == 0)
    if not 1 <= devices <= len(there):
        raise InputError(
            f"train.devices is {devices}, and there are {len(there)}; choose from 1 "
            f"to {len(there)}"
        )
    if batch_size % devices:
        raise InputError(
            f"train.meta_batch_size is {batch_size}, which {devices} devices can't "
            "share equally; choose a multiple, or another train.devices"
        )
    return Plan(tuple(there[:devices]), tasks_per_pass)


def _length(tree: PyTree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]


def _cut(tree: PyTree, start: int, stop: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def _divide(tree: PyTree, size: int) -> PyTree:
    """`[passes * size, ...]` to `[passes, size, ...]`."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] // size, size, *leaf.shape[1:]), tree
    )
