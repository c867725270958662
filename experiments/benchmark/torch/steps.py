"""Whole training steps in plain PyTorch: the other sides of the speed comparison.

A step draws a meta-batch from a pool held on the device, interpolates its tasks
(Eqs. 5 and 6 of the paper), runs the learner on each, with second-order gradients where
it adapts, and updates the parameters with Adam. It is written as one writes it in
PyTorch when speed matters and no compiler is asked: one gather for the meta-batch,
frozen layers outside the inner loop, no copy that the mathematics does not need.

`make_step` takes the tasks one after the other, `make_vmap_step` all at once. What a
case is, see `torch_case.read_case`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.benchmark.torch.case import read_case
from experiments.benchmark.torch.learners import (
    AUTOGRAD,
    FUNCTIONAL,
    Model,
    make_model,
    run_sets,
    task_loss,
)
from experiments.benchmark.torch.networks import Layer, make_network
from experiments.benchmark.torch.tasks import (
    choose,
    draw_tasks,
    interpolate,
    make_task_pool,
)

# (case, network, model, layer, x, y) -> losses, to be differentiated one by one
MetaLosses = Callable[..., Iterator[Tensor] | Sequence[Tensor]]


def make_step(
    case: Any,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    channels_last: bool = False,
    pool_y: np.ndarray | None = None,
) -> Callable[[], Tensor]:
    """Builds a training step, tasks in a loop, with its own parameters and Adam state.

    Args:
      case: the setting to run, see `read_case`.
      pool_x: all samples, `[M, H, W, C]` images or `[M, F]` features; `uint8` values
        are divided by 255 after the gather, floating-point ones are taken as they are.
      pool_index: rows of `pool_x`, `[domains, classes, samples]` for label-sharing
        tasks, which have all classes, and `[groups, samples]` otherwise, where a group
        is a class, or the object of a regression task.
      channels_last: whether images and kernels lie in memory as NHWC; the shapes that
        PyTorch sees, and the results, are the same.
      pool_y: targets `[M, 1]` for regression; random ones if not given.

    Returns:
      A function without arguments that makes one update and returns the loss before
      it as a detached scalar. Its attribute `model` holds the parameters.
    """
    return _make_step(case, loop_losses, pool_x, pool_index, pool_y, channels_last)


def make_vmap_step(
    case: Any,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    pool_y: np.ndarray | None = None,
) -> Callable[[], Tensor]:
    """The same step with all tasks at once, by `torch.func.vmap`; see `make_step`."""
    return _make_step(case, vmap_losses, pool_x, pool_index, pool_y)


def loop_losses(
    case: Any, network: Sequence[Layer], model: Model, layer: int, x: Tensor, y: Tensor
) -> Iterator[Tensor]:
    """Interpolates tasks, if at all, at `layer`, and gives the loss of each in turn.

    The losses add up to the sum over tasks. Those whose graphs hang together, because
    hidden representations were mixed, come as one: every loss can be differentiated
    before the next is computed, so that all use the same memory.

    Args:
      case: as from `read_case`.
      network, model: layers and parameters.
      layer: where the tasks are mixed.
      x: a meta-batch `[tasks, n, ...]` at the input.
      y: its classes `[tasks, n]` or targets `[tasks, n, D]`.
    """
    if layer:
        shared = network[:layer], model.layers[:layer]
        h = torch.cat([h for task in x for h in run_sets(case, *shared, task)])
        x = h.unflatten(0, (len(x), -1))
    if case.interpolation:
        x, y = interpolate(case, x, y)
    loss = partial(task_loss, case, network, model, AUTOGRAD, layer)
    losses = map(loss, x, y)
    return iter([sum(losses)]) if layer else losses


def vmap_losses(
    case: Any, network: Sequence[Layer], model: Model, layer: int, x: Tensor, y: Tensor
) -> list[Tensor]:
    """The same with all tasks at once, as one sum; arguments as in `loop_losses`."""
    vmap = partial(torch.func.vmap, randomness="different")
    if layer:
        shared = network[:layer], model.layers[:layer]
        x = vmap(lambda task: torch.cat(run_sets(case, *shared, task)))(x)
    if case.interpolation:
        x, y = interpolate(case, x, y)
    loss = partial(task_loss, case, network, model, FUNCTIONAL, layer)
    return [vmap(loss)(x, y).sum()]


def _make_step(
    case: Any,
    losses: MetaLosses,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    pool_y: np.ndarray | None,
    nhwc: bool = False,
) -> Callable[[], Tensor]:
    case = read_case(case)
    pool = make_task_pool(case, pool_x, pool_index, pool_y, nhwc)
    network = make_network(case)
    model = make_model(case, network, pool.nhwc)
    optimizer = torch.optim.Adam(model.tensors(), case.outer_lr, fused=True)

    def step() -> Tensor:
        x, y = draw_tasks(case, pool)
        optimizer.zero_grad()
        total = torch.zeros(())
        for loss in losses(case, network, model, choose(case.layers), x, y):
            (loss / case.tasks).backward()
            total += loss.detach()
        optimizer.step()
        return total / case.tasks

    step.model = model
    return step
