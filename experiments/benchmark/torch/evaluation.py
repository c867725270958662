"""Evaluation of trained parameters on test tasks in PyTorch, one task after another.

The tasks of a pass are drawn with one gather. Nothing is differentiated except the
inner loop, with first-order gradients, as no meta-gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.cases import Case
from experiments.benchmark.torch.case import check_case
from experiments.benchmark.torch.learners import (
    METRIC_LOGITS,
    Model,
    functional_gradient,
    make_model,
)
from experiments.benchmark.torch.networks import (
    Layer,
    Norm,
    Parameters,
    fused_norm,
    make_network,
    run_layers,
)
from experiments.benchmark.torch.tasks import (
    class_labels,
    draw_tasks,
    make_task_pool,
    set_sizes,
)
from experiments.benchmark.torch.update_rules import Gradient, Loss

SAMPLES_PER_PASS = 256  # samples whose features are computed at once
# Mean and variance of each normalization, in the order of the layers.
Statistics = Sequence[tuple[Tensor, Tensor]]


class Trained(NamedTuple):
    """What is evaluated.

    Attributes:
      case: as returned by `check_case`.
      network: the layers.
      layers: their parameters.
      statistics: running averages; None for the statistics of the samples.
    """

    case: Case
    network: Sequence[Layer]
    layers: Parameters
    statistics: Statistics | None = None

    def run(self, x: Tensor) -> Tensor:
        """Compute the output of the layers for `x [n, ...]`."""
        norm = fused_norm if self.statistics is None else running_norm(self.statistics)
        return run_layers(self.network, self.layers, x, norm)


def running_norm(statistics: Statistics) -> Norm:
    """Batch normalization with running averages, for one run of all layers."""
    remaining = iter(statistics)

    def norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.batch_norm(h, *next(remaining), scale, shift, training=False)

    return norm


def first_order_gradient(loss: Loss, adapted: Parameters) -> Parameters:
    """Gradient that is itself a constant, with `torch.autograd`."""
    with torch.enable_grad():
        flat = [p.detach().requires_grad_() for own in adapted for p in own]
        again = iter(flat)
        value = loss([[next(again) for _ in own] for own in adapted])
        gradient = iter(torch.autograd.grad(value, flat))
    return [[next(gradient) for _ in own] for own in adapted]


def task_logits(
    trained: Trained, x: Tensor, gradient: Gradient = first_order_gradient
) -> Tensor:
    """Compute the logits `[N_q, ways]` of the queries of one task.

    MAML normalizes with the statistics of each set.

    Args:
      trained: what is evaluated.
      x: samples `[n, ...]`, the support set first.
      gradient: of the inner loop.
    """
    case = trained.case
    if not case.adapts:
        return METRIC_LOGITS[case.learner](case, trained.run(x).flatten(1))
    network, layers, stop = trained.network, trained.layers, case.first_adapted
    support, query = (
        run_layers(network[:stop], layers[:stop], h) for h in x.split(set_sizes(case))
    )
    labels = class_labels(case)[: len(support)]

    def loss(adapted: Parameters) -> Tensor:
        return F.cross_entropy(run_layers(network[stop:], adapted, support), labels)

    adapted = layers[stop:]
    for _ in range(case.inner_steps):
        adapted = [
            [p.sub(g, alpha=case.inner_lr) for p, g in zip(*own, strict=True)]
            for own in zip(adapted, gradient(loss, adapted), strict=True)
        ]
    return run_layers(network[stop:], adapted, query)


def make_evaluation(
    case: Case,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    running: bool,
    tasks_per_pass: int,
    channels_last: bool = False,
    compiled: bool = False,
    features_first: bool = False,
) -> Callable[[int], Tensor]:
    """Build an evaluation of random parameters.

    Args:
      case: the size of the tasks, and the learner: MAML or a metric-based one.
      pool_x: see `steps.make_step`.
      pool_index: see `steps.make_step`.
      running: whether to normalize with running averages, here of 0 and 1.
      tasks_per_pass: tasks that are drawn at once.
      channels_last: see `steps.make_step`.
      compiled: whether to compile the function of a task with `torch.compile`.
      features_first: whether to compute the features of each sample of the pool only
        once, which requires running averages and a metric-based learner.

    Returns:
      A function of a number of tasks, which returns the accuracy for each, `[tasks]`.
    """
    case = replace(check_case(case), tasks=tasks_per_pass)
    pool = make_task_pool(case, pool_x, pool_index, nhwc=channels_last)
    network = make_network(case)
    model = make_model(case, network, pool.nhwc)
    statistics = _initial_statistics(model) if running else None
    layers = [[p.detach() for p in own] for own in model.layers]
    trained = Trained(case, network, layers, statistics)
    logits = partial(task_logits, trained)
    if features_first:
        logits = partial(METRIC_LOGITS[case.learner], case)
    if compiled:
        torch.compiler.reset()  # see `steps.make_compiled_step`
        if case.adapts:
            logits = partial(logits, gradient=functional_gradient)
        logits = torch.compile(logits, dynamic=False, fullgraph=True)
    labels = class_labels(case)[case.ways * case.shots :]

    @torch.no_grad()
    def evaluate(num_tasks: int) -> Tensor:
        own = pool
        if features_first:
            own = pool._replace(x=_features(trained, pool.x, pool.nhwc), nhwc=False)
        right = []
        while len(right) < num_tasks:
            x, _ = draw_tasks(case, own)
            for task in x[: num_tasks - len(right)]:
                right.append((logits(task).argmax(1) == labels).float().mean())
        return torch.stack(right)

    return evaluate


def _initial_statistics(model: Model) -> list[tuple[Tensor, Tensor]]:
    """Averages 0 and 1 for each scale and shift of Conv4 and the MLP."""
    scales = [own[1] for own in model.layers if len(own) == 3]
    return [(torch.zeros_like(s), torch.ones_like(s).detach()) for s in scales]


def _features(trained: Trained, samples: Tensor, nhwc: bool) -> Tensor:
    """Compute the features of all samples, `[M, D]`."""
    parts = []
    for x in samples.split(SAMPLES_PER_PASS):
        x = x.float().div_(255) if x.dtype == torch.uint8 else x
        parts.append(trained.run(x.movedim(-1, 1) if nhwc else x).flatten(1))
    return torch.cat(parts)
