"""Losses of one task in plain PyTorch: an inner loop, or a comparison.

They are pure functions of parameters and samples, for a loop over tasks and for
`torch.func.vmap` alike; the two differ in how the inner loop takes gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.torch.networks import (
    Layer,
    Norm,
    Parameters,
    composed_norm,
    fused_norm,
    run_layers,
)
from experiments.benchmark.torch.tasks import set_sizes
from experiments.benchmark.torch.update_rules import Gradient, Loss, descend, init_rule


class Model(NamedTuple):
    """All that training changes.

    Attributes:
      layers: the network's parameters, by layer.
      rule: for each parameter of each adapted layer, what the update rule learns for
        it; empty where it learns nothing.
    """

    layers: list[list[Tensor]]
    rule: list[list[list[Tensor]]]

    def tensors(self) -> list[Tensor]:
        """All parameters in one list."""
        of_rule = [t for layer in self.rule for own in layer for t in own]
        return [t for layer in self.layers for t in layer] + of_rule


class InnerLoop(NamedTuple):
    """How the inner loop differentiates, and how it may normalise meanwhile."""

    gradient: Gradient
    norm: Norm


def make_model(case: Any, network: Sequence[Layer], nhwc: bool = False) -> Model:
    """Initialises; with `nhwc`, kernels lie in memory with the channels last."""
    layers = [layer.init() for layer in network]
    if nhwc:
        layers = [[_channels_last(p) for p in layer] for layer in layers]
    rule = init_rule(case, layers[case.first_adapted :]) if case.adapts else []
    model = Model(layers, rule)
    for tensor in model.tensors():
        tensor.requires_grad_()
    return model


def run_sets(
    case: Any, network: Sequence[Layer], layers: Parameters, x: Tensor
) -> list[Tensor]:
    """Runs layers on a task's samples `[n, ...]`; returns its batches.

    Learners with an inner loop normalise support and query set each by itself, the
    others as one batch.
    """
    batches = x.split(set_sizes(case)) if case.adapts else [x]
    return [run_layers(network, layers, h) for h in batches]


def task_loss(
    case: Any,
    network: Sequence[Layer],
    model: Model,
    inner: InnerLoop,
    layer: int,
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Query loss of one task.

    Args:
      case: as from `read_case`.
      network, model: layers and parameters.
      inner: `AUTOGRAD`, or `FUNCTIONAL` under `vmap`.
      layer: the layer at which x enters.
      x: samples `[n, ...]`, the support set first.
      y: their classes `[n]`, or soft labels or targets `[n, D]`.
    """
    stop = case.first_adapted if case.adapts else len(network)
    h = run_sets(case, network[layer:stop], model.layers[layer:stop], x)
    if case.adapts:
        return adaptation_loss(case, network[stop:], model, inner, h, y)
    return METRIC_LOSSES[case.learner](case, h[0].flatten(1), y)


def adaptation_loss(
    case: Any,
    network: Sequence[Layer],
    model: Model,
    inner: InnerLoop,
    h: Sequence[Tensor],
    y: Tensor,
) -> Tensor:
    """Query loss after second-order gradient steps on the support set.

    `network` holds the adapted layers, `h` what enters them, as support and query set.
    """
    support_y, query_y = y.split(set_sizes(case))
    objective = F.mse_loss if case.setting == "regression" else F.cross_entropy

    def loss(adapted: Parameters) -> Tensor:
        return objective(run_layers(network, adapted, h[0], inner.norm), support_y)

    adapted = model.layers[case.first_adapted :]
    for _ in range(case.inner_steps):
        adapted = descend(case, network, model.rule, adapted, loss, inner.gradient)
    return objective(run_layers(network, adapted, h[1], inner.norm), query_y)


def autograd_gradient(loss: Loss, adapted: Parameters) -> Parameters:
    """A gradient that can be differentiated, by `torch.autograd`."""
    flat = [p.requires_grad_() for own in adapted for p in own]
    gradient = iter(torch.autograd.grad(loss(adapted), flat, create_graph=True))
    return [[next(gradient) for _ in own] for own in adapted]


def functional_gradient(loss: Loss, adapted: Parameters) -> Parameters:
    """The same by `torch.func`, which `vmap` can batch."""
    return torch.func.grad(loss)(adapted)


AUTOGRAD = InnerLoop(autograd_gradient, fused_norm)
FUNCTIONAL = InnerLoop(functional_gradient, composed_norm)


def protonet_loss(case: Any, z: Tensor, y: Tensor) -> Tensor:
    """Squared distances to the means of the classes; `z [n, D]`, `y [n]`."""
    support_z, query_z = z.split(set_sizes(case))
    prototypes = support_z.unflatten(0, (case.ways, case.shots)).mean(1)
    distances = (query_z[:, None] - prototypes).square().sum(-1)
    return F.cross_entropy(-distances, y[len(support_z) :])


def matchingnet_loss(case: Any, z: Tensor, y: Tensor) -> Tensor:
    """Attention to the support set by cosine; `z [n, D]`, `y [n]`."""
    support_z, query_z = F.normalize(z, dim=1).split(set_sizes(case))
    scores = (query_z @ support_z.T).unflatten(1, (case.ways, case.shots))
    return F.cross_entropy(scores.logsumexp(2), y[len(support_z) :])


METRIC_LOSSES = {"protonet": protonet_loss, "matchingnet": matchingnet_loss}


def _channels_last(p: Tensor) -> Tensor:
    return p.contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p
