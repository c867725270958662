"""Distribution of the tasks of a meta-batch over devices and over time.

A learner handles one task; `map_tasks` and `mean_loss` run it for all of them. Each
device takes an equal share of the tasks and processes it in *passes* of some tasks at a
time. A single pass, the default, is fastest for small networks. Smaller passes bound
the memory, and on a CPU keep each pass in its cache. The results are the same up to the
order in which sums are rounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mlti_jax._internal.distributed import number_of_processes
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

__all__ = ["Plan", "map_tasks", "mean_loss", "plan_for", "use_all_cores"]

_AXIS = "tasks"
_MAX_CORES = 16  # With more, each core would have too little work.
_EVERYWHERE, _BY_TASK = PartitionSpec(), PartitionSpec(_AXIS)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static description of where and when tasks run.

    Attributes:
      devices: the devices that share the tasks; empty for JAX's default device. In a
        run of several processes, equally many of each, process by process.
      tasks_per_pass: number of tasks that a device runs at a time; None for its entire
        share.

    Raises:
      InputError: if `tasks_per_pass` is less than 1.

    Examples:
      >>> from mlti_jax import parallel
      >>> parallel.Plan(tasks_per_pass=2).tasks_per_pass
      2
    """

    devices: tuple[jax.Device, ...] = ()
    tasks_per_pass: int | None = None

    def __post_init__(self) -> None:
        if self.tasks_per_pass is not None and self.tasks_per_pass < 1:
            raise InputError(
                f"tasks_per_pass must be 1 or more, got {self.tasks_per_pass}"
            )

    @property
    def mesh(self) -> Mesh | None:
        """The devices as a JAX mesh with the axis "tasks"; None for a single device."""
        if len(self.devices) < 2:
            return None
        if self.spans_processes:
            # In the order given: the tasks of a process are next to each other.
            devices = np.asarray(self.devices)
            return Mesh(devices, (_AXIS,), axis_types=(AxisType.Auto,))
        return jax.make_mesh(
            (len(self.devices),),
            (_AXIS,),
            axis_types=(AxisType.Auto,),
            devices=self.devices,
        )

    @property
    def spans_processes(self) -> bool:
        """Whether some of the devices belong to other processes."""
        return len({device.process_index for device in self.devices}) > 1

    def local_tasks(self, number: int) -> slice:
        """Return which of `number` tasks are on devices of this process.

        Examples:
          >>> from mlti_jax.parallel import Plan
          >>> Plan().local_tasks(8)
          slice(0, 8, None)
        """
        if not self.spans_processes:
            return slice(0, number)
        self._check_divides(number)
        share = number // len(self.devices)
        own = [
            index
            for index, device in enumerate(self.devices)
            if device.process_index == jax.process_index()
        ]
        return slice(share * own[0], share * (own[-1] + 1))

    def assemble(self, tree: PyTree) -> PyTree:
        """Make arrays of all tasks from those of this process.

        Args:
          tree: NumPy arrays `[own, ...]` of the tasks `local_tasks(number)`.

        Returns:
          Arrays `[number, ...]`, distributed over the devices by task; on all devices
          of a single process if their number is no multiple of the devices.

        Examples:
          >>> import numpy as np
          >>> from mlti_jax.parallel import Plan
          >>> Plan().assemble(np.arange(3)).tolist()
          [0, 1, 2]
        """
        if self.mesh is None:
            return jax.device_put(tree)
        sharding = NamedSharding(self.mesh, _BY_TASK)
        if self.spans_processes:
            return jax.tree.map(
                lambda leaf: jax.make_array_from_process_local_data(sharding, leaf),
                tree,
            )
        if not self._divides(tree):
            sharding = NamedSharding(self.mesh, _EVERYWHERE)
        return jax.device_put(tree, sharding)

    def to_host(self, tree: PyTree) -> PyTree:
        """Copy arrays to NumPy arrays, with the parts that other processes hold."""
        if not self.spans_processes:
            return jax.tree.map(np.asarray, tree)
        return multihost_utils.process_allgather(tree, tiled=True)

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy arrays to all devices, once instead of at every call.

        With several processes, each copies its own arrays, which must be the same.
        """
        if self.mesh is None:
            return tree
        sharding = NamedSharding(self.mesh, _EVERYWHERE)
        if not self.spans_processes:
            return jax.device_put(tree, sharding)

        def put(leaf: Array) -> Array:
            if isinstance(leaf, jax.Array):
                if not leaf.is_fully_addressable:
                    return leaf
                if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                    data = put(jax.random.key_data(leaf))
                    return jax.random.wrap_key_data(
                        data, impl=jax.random.key_impl(leaf)
                    )
            # `device_put` would compare the values of all processes, and NaN differs
            # from itself.
            value = np.asarray(leaf)
            return jax.make_array_from_callback(
                value.shape, sharding, value.__getitem__
            )

        return jax.tree.map(put, tree)

    def shard(self, tree: PyTree) -> PyTree:
        """Constrain arrays `[tasks, ...]` to be distributed over the devices."""
        if self.mesh is None or not self._divides(tree):
            return tree
        sharding = NamedSharding(self.mesh, _BY_TASK)
        return jax.lax.with_sharding_constraint(tree, sharding)

    def _divides(self, tree: PyTree) -> bool:
        return _length(tree) % len(self.devices) == 0

    def _check_divides(self, number: int) -> None:
        if number % len(self.devices):
            raise InputError(
                f"{number} tasks cannot be divided equally among "
                f"{len(self.devices)} devices; use a multiple of {len(self.devices)} "
                "tasks, or fewer devices"
            )

    def _spread(
        self, function: Callable[..., PyTree], mapped: PyTree, out_specs: PyTree
    ) -> Callable[..., PyTree]:
        """Run `function(shared, mapped)` on each device with its part of `mapped`."""
        if self.mesh is None:
            return function
        self._check_divides(_length(mapped))
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(_EVERYWHERE, _BY_TASK),
            out_specs=out_specs,
            check_vma=False,
        )

    def everywhere(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Make every device compute all of `function(a, b)`.

        For cheap functions: if the compiler distributes them, the devices wait for each
        other, in loops of random draws once per iteration.
        """
        if self.mesh is None:
            return function
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(_EVERYWHERE, _EVERYWHERE),
            out_specs=_EVERYWHERE,
            check_vma=False,
        )


def map_tasks(
    function: Callable[[PyTree, PyTree], PyTree], plan: Plan = Plan()
) -> Callable[[PyTree, PyTree], PyTree]:
    """Map `function(shared, task)` over tasks.

    Args:
      function: takes what all tasks share, and one task. It must not close over traced
        values that are differentiated.
      plan: where and when the tasks run. If a device needs several passes, the backward
        pass recomputes the intermediate results instead of storing them.

    Returns:
      `(shared, tasks) -> outputs`; every leaf of `tasks` and `outputs` is
      `[tasks, ...]`. It raises `InputError` if the number of tasks is not a multiple of
      the number of devices.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax.parallel import Plan, map_tasks
      >>> scale = map_tasks(lambda factor, x: factor * x, Plan(tasks_per_pass=2))
      >>> scale(10.0, jnp.arange(5.0)).tolist()
      [0.0, 10.0, 20.0, 30.0, 40.0]
    """

    def share(shared: PyTree, tasks: PyTree) -> PyTree:
        if plan.tasks_per_pass is None or plan.tasks_per_pass >= _length(tasks):
            return jax.vmap(partial(function, shared))(tasks)
        one = jax.checkpoint(partial(function, shared))
        if plan.tasks_per_pass == 1:  # `vmap` over a single task is slower.
            return jax.lax.map(one, tasks)
        return jax.lax.map(one, tasks, batch_size=plan.tasks_per_pass)

    return lambda shared, tasks: plan._spread(share, tasks, _BY_TASK)(shared, tasks)


def mean_loss(
    loss_fn: Callable[[PyTree, PyTree, PyTree], tuple[Array, PyTree]],
    plan: Plan,
    inputs_depend: bool,
) -> Callable[[PyTree, PyTree, PyTree], tuple[Array, PyTree]]:
    r"""Mean of a loss over tasks, with a gradient accumulated pass by pass.

    $$L(\theta) = \frac{1}{B} \sum_{b=1}^{B} \ell(\theta, x_b, r_b)$$

    The weight of every task is known in advance, so each pass computes its gradient
    immediately and discards everything else. Nothing is computed twice, and the memory
    is that of one pass.

    Args:
      loss_fn: `(shared, inputs, rest) -> (loss, aux)` of one task. It must not close
        over traced values that are differentiated. `rest` and `aux` are treated as
        constants.
      plan: where and when the tasks run.
      inputs_depend: whether to differentiate with respect to `inputs` as well. This
        costs as much as another layer, and raw inputs do not need it.

    Returns:
      `(shared, inputs, rest) -> (scalar, aux)`; every leaf of `inputs`, `rest` and
      `aux` is `[tasks, ...]`. It raises `InputError` if the number of tasks is not a
      multiple of the number of devices.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax.parallel import Plan, mean_loss
      >>> def loss_fn(theta, x, target):
      ...     return (theta * x - target) ** 2, {}
      >>> mean = mean_loss(loss_fn, Plan(tasks_per_pass=1), inputs_depend=False)
      >>> x, target = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0])
      >>> (loss, _), gradient = jax.value_and_grad(mean, has_aux=True)(2.0, x, target)
      >>> float(loss), float(gradient)
      (8.5, 9.0)
    """

    def forward(shared: PyTree, inputs: PyTree, rest: PyTree) -> tuple[Array, PyTree]:
        losses, aux = map_tasks(lambda shared, task: loss_fn(shared, *task), plan)(
            shared, (inputs, rest)
        )
        return losses.mean(), jax.lax.stop_gradient(aux)

    def pass_loss(shared: PyTree, inputs: PyTree, rest: PyTree) -> tuple[Array, PyTree]:
        tasks = (inputs, rest)
        if _length(tasks) == 1:  # A direct call is faster than `vmap` over one task.
            out = loss_fn(shared, *jax.tree.map(lambda leaf: leaf[0], tasks))
            losses, aux = jax.tree.map(lambda leaf: leaf[None], out)
        else:
            losses, aux = jax.vmap(partial(loss_fn, shared))(*tasks)
        return losses.sum(), aux

    def share_gradients(shared: PyTree, tasks: PyTree) -> tuple[PyTree, PyTree]:
        """Return sums over a device's share (loss, gradient) and values per task."""
        wanted = (0, 1) if inputs_depend else 0
        gradient = jax.value_and_grad(pass_loss, wanted, has_aux=True)

        def one_pass(total: PyTree, tasks: PyTree) -> tuple[PyTree, PyTree]:
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
        total, per_task = jax.lax.scan(
            one_pass, total, _divide(_cut(tasks, 0, even), size)
        )
        per_task = jax.tree.map(jnp.concatenate, per_task)
        if even < number:
            total, last = one_pass(total, _cut(tasks, even, number))
            per_task = jax.tree.map(
                lambda *parts: jnp.concatenate(parts), per_task, last
            )
        if plan.mesh is not None:
            total = jax.lax.psum(total, _AXIS)
        return total, per_task

    @jax.custom_vjp
    def mean(shared: PyTree, inputs: PyTree, rest: PyTree) -> tuple[Array, PyTree]:
        return forward(shared, inputs, rest)

    def mean_forward(
        shared: PyTree, inputs: PyTree, rest: PyTree
    ) -> tuple[PyTree, PyTree]:
        tasks = (inputs, rest)
        run = plan._spread(share_gradients, tasks, (_EVERYWHERE, _BY_TASK))
        (loss, by_shared), (aux, by_inputs) = run(shared, tasks)
        number = _length(tasks)
        grads = jax.tree.map(lambda g: g / number, (by_shared, by_inputs))
        return (loss / number, aux), grads

    def mean_backward(grads: PyTree, cotangents: PyTree) -> tuple[PyTree, ...]:
        by_shared, by_inputs = jax.tree.map(lambda g: cotangents[0] * g, grads)
        return by_shared, by_inputs if inputs_depend else None, None

    mean.defvjp(mean_forward, mean_backward)
    return mean


def use_all_cores() -> None:
    """Make each core of a CPU a device, so the cores can share the tasks.

    Call it before the first use of JAX; later calls have no effect. It changes nothing
    if the number of devices is already set with `JAX_NUM_CPU_DEVICES` or `XLA_FLAGS`.

    Examples:
      >>> from mlti_jax import parallel
      >>> parallel.use_all_cores()
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if getattr(jax.config, "jax_num_cpu_devices", 0) > 0:
        return
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(RuntimeError):  # JAX is already in use.
        jax.config.update("jax_num_cpu_devices", min(cores, _MAX_CORES))


def plan_for(
    x: PyTree,
    batch_size: int,
    devices: int | None = None,
    tasks_per_pass: int | None = None,
) -> Plan:
    """Choose a plan for a meta-batch; explicit arguments take precedence.

    On accelerators, the meta-batch is divided among as many devices as can share it
    equally, those of all processes. On a CPU, the devices are its cores (see
    `use_all_cores`). Images are divided among the cores and processed one task at a
    time, because XLA runs a convolution on one core, and one task fits into the cache.
    Other networks use one device of each process, because their matrix products already
    use all cores.

    Args:
      x: inputs, every leaf `[N, ...]`; images are `[N, H, W, C]`.
      batch_size: number of tasks in a meta-batch.
      devices: number of devices to use.
      tasks_per_pass: number of tasks that each device runs at a time.

    Returns:
      The plan.

    Raises:
      InputError: if fewer than `devices` devices are available, or if `batch_size` is
        not a multiple of `devices` or of the number of processes.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax.parallel import plan_for
      >>> plan = plan_for(jnp.zeros((1, 8)), 4, devices=1, tasks_per_pass=2)
      >>> len(plan.devices), plan.tasks_per_pass
      (1, 2)
    """
    processes = number_of_processes()
    # Those of each process, of which all use equally many.
    available = jax.local_device_count() * processes
    if jax.default_backend() == "cpu":
        images = all(leaf.ndim == 4 for leaf in jax.tree.leaves(x))
        devices = processes if devices is None and not images else devices
        tasks_per_pass = 1 if tasks_per_pass is None and images else tasks_per_pass
    if batch_size % processes:
        raise InputError(
            f"train.meta_batch_size is {batch_size}, which is not a multiple of "
            f"{processes} processes; choose a multiple, or start fewer processes"
        )
    if devices is None:
        devices = max(
            n for n in range(processes, available + 1, processes) if batch_size % n == 0
        )
    if not 1 <= devices <= available:
        raise InputError(
            f"train.devices is {devices}, but the number of available devices is "
            f"{available}; choose a number from 1 to {available}"
        )
    if devices % processes:
        raise InputError(
            f"train.devices is {devices}, which is not a multiple of {processes} "
            "processes, of which each uses equally many devices; choose a multiple"
        )
    if batch_size % devices:
        raise InputError(
            f"train.meta_batch_size is {batch_size}, which is not a multiple of "
            f"{devices} devices; choose a multiple, or another train.devices"
        )
    share = devices // processes
    if processes == 1:
        return Plan(tuple(jax.local_devices()[:share]), tasks_per_pass)
    chosen = [d for p in range(processes) for d in _devices_of(p)[:share]]
    return Plan(tuple(chosen), tasks_per_pass)


def _devices_of(process: int) -> list[jax.Device]:
    return [device for device in jax.devices() if device.process_index == process]


def _length(tree: PyTree) -> int:
    """Return the length of the leading axis."""
    return jax.tree.leaves(tree)[0].shape[0]


def _cut(tree: PyTree, start: int, stop: int) -> PyTree:
    """Slice the leading axis."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def _divide(tree: PyTree, size: int) -> PyTree:
    """Reshape `[passes * size, ...]` to `[passes, size, ...]`."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] // size, size, *leaf.shape[1:]), tree
    )
