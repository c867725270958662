"""Whole training steps in PyTorch, for the speed comparison.

A step draws a meta-batch from a pool on the device, interpolates its tasks (Eqs. 5 and
6 of the paper), runs the learner on each, with second-order gradients if it adapts, and
updates the parameters with Adam. It is written for speed in eager mode: one gather per
meta-batch, frozen layers outside the inner loop, no unnecessary copies.

`make_step` runs the tasks in a loop, `make_vmap_step` all at once, and
`make_compiled_step` compiles the loss of a task with `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.benchmark.cases import Case
from experiments.benchmark.torch.case import check_case
from experiments.benchmark.torch.learners import (
    AUTOGRAD,
    FUNCTIONAL,
    InnerLoop,
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


class Functions(NamedTuple):
    """What `loop_losses` computes for each task.

    Attributes:
      embed: moves a task to the layer where it is mixed, see `run_sets`.
      loss: see `task_loss`.
      inner: its inner loop.
    """

    embed: Callable[..., list[Tensor]] = run_sets
    loss: Callable[..., Tensor] = task_loss
    inner: InnerLoop = AUTOGRAD


def make_step(
    case: Case,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    channels_last: bool = False,
    pool_y: np.ndarray | None = None,
) -> Callable[[], Tensor]:
    """Build a training step that runs tasks in a loop, with parameters and Adam state.

    Args:
      case: the step.
      pool_x: all samples, `[M, H, W, C]` images or `[M, F]` features; `uint8` values
        are divided by 255 after the gather, floating-point values are not changed.
      pool_index: rows of `pool_x`, `[domains, classes, samples]` for label-sharing
        tasks, which have all classes, and `[groups, samples]` otherwise, where a group
        is a class, or the object of a regression task.
      channels_last: whether images and kernels are stored as NHWC; shapes and results
        are the same.
      pool_y: targets `[M, 1]` for regression; random if None.

    Returns:
      A function without arguments that performs one update and returns the loss before
      it as a detached scalar. Its attribute `model` holds the parameters.

    Raises:
      NotImplementedError, ValueError: see `check_case`.
    """
    return _make_step(case, loop_losses, pool_x, pool_index, pool_y, channels_last)


def make_vmap_step(
    case: Case,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    pool_y: np.ndarray | None = None,
) -> Callable[[], Tensor]:
    """Build a step that runs all tasks at once with `torch.func.vmap`."""
    return _make_step(case, vmap_losses, pool_x, pool_index, pool_y)


def make_compiled_step(
    case: Case,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    pool_y: np.ndarray | None = None,
) -> Callable[[], Tensor]:
    """Build a step whose loss of a task is compiled, with channels last in memory.

    This is the fastest of the forms that were tried. Without channels last it takes
    longer, and so does one program for all tasks; the mode "max-autotune-no-cudagraphs"
    saves at most two percent.

    The inner loop differentiates with `torch.func`. PyTorch cannot compile the support
    loss of a loop with `create_graph=True`: "torch.compile with aot_autograd does not
    currently support double backward".

    Raises:
      NotImplementedError: also if PyTorch cannot compile the case.
    """
    torch.compiler.reset()  # Each case has its own programs; their number is limited.
    step = _make_step(
        case, compiled_losses(), pool_x, pool_index, pool_y, channels_last=True
    )
    try:
        step.prepare()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise NotImplementedError(f"torch.compile failed: {reason}") from error
    return step


def loop_losses(
    case: Case,
    network: Sequence[Layer],
    model: Model,
    layer: int,
    x: Tensor,
    y: Tensor,
    functions: Functions = Functions(),
) -> Iterator[Tensor]:
    """Interpolate tasks at `layer`, if the case does, and yield their losses.

    The losses sum to the total over tasks. Each can be differentiated before the next
    is computed, so all use the same memory. Tasks whose graphs are connected, because
    hidden representations were mixed, yield a single sum.

    Args:
      case: as returned by `check_case`.
      network: the layers.
      model: their parameters.
      layer: where the tasks are mixed.
      x: a meta-batch `[tasks, n, ...]` at the input.
      y: its classes `[tasks, n]` or targets `[tasks, n, D]`.
      functions: what is computed for each task.
    """
    if layer:
        shared = network[:layer], model.layers[:layer]
        embed = partial(functions.embed, case, *shared)
        x = torch.cat([h for task in x for h in embed(task)]).unflatten(0, (len(x), -1))
    if case.interpolation:
        x, y = interpolate(case, x, y)
    loss = partial(functions.loss, case, network, model, functions.inner, layer)
    losses = map(loss, x, y)
    return iter([sum(losses)]) if layer else losses


def compiled_losses() -> MetaLosses:
    """`loop_losses` with compiled functions; fails instead of running without."""
    compiled = partial(torch.compile, dynamic=False, fullgraph=True)
    functions = Functions(compiled(run_sets), compiled(task_loss), FUNCTIONAL)
    return partial(loop_losses, functions=functions)


def vmap_losses(
    case: Case, network: Sequence[Layer], model: Model, layer: int, x: Tensor, y: Tensor
) -> list[Tensor]:
    """As `loop_losses`, with all tasks at once and a single sum."""
    vmap = partial(torch.func.vmap, randomness="different")
    if layer:
        shared = network[:layer], model.layers[:layer]
        x = vmap(lambda task: torch.cat(run_sets(case, *shared, task)))(x)
    if case.interpolation:
        x, y = interpolate(case, x, y)
    loss = partial(task_loss, case, network, model, FUNCTIONAL, layer)
    return [vmap(loss)(x, y).sum()]


def _make_step(
    case: Case,
    losses: MetaLosses,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    pool_y: np.ndarray | None,
    channels_last: bool = False,
) -> Callable[[], Tensor]:
    case = check_case(case)
    pool = make_task_pool(case, pool_x, pool_index, pool_y, channels_last)
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

    def prepare() -> None:
        """Compute the gradient once for each interpolation layer."""
        for layer in case.layers:
            for loss in losses(case, network, model, layer, *draw_tasks(case, pool)):
                loss.backward()

    step.model, step.prepare = model, prepare
    return step
