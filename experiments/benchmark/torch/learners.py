"""Losses of one task in PyTorch, for gradient-based and metric-based learners.

They are pure functions of parameters and samples, used by the loop over tasks and by
`torch.func.vmap`; the two differ in how the inner loop computes gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.cases import Case
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
    """All trained parameters.

    Attributes:
      layers: parameters of the network, by layer.
      rule: learned parameters of the update rule, for each parameter of each adapted
        layer; empty lists if it learns none.
    """

    layers: list[list[Tensor]]
    rule: list[list[list[Tensor]]]

    def tensors(self) -> list[Tensor]:
        """All parameters in one list."""
        of_rule = [t for layer in self.rule for own in layer for t in own]
        return [t for layer in self.layers for t in layer] + of_rule


class InnerLoop(NamedTuple):
    """How the inner loop differentiates, and a normalization that supports it."""

    gradient: Gradient
    norm: Norm


def make_model(case: Case, network: Sequence[Layer], nhwc: bool = False) -> Model:
    """Initialize the parameters; with `nhwc`, kernels are channels-last in memory."""
    layers = [layer.init() for layer in network]
    if nhwc:
        layers = [[_channels_last(p) for p in layer] for layer in layers]
    rule = init_rule(case, layers[case.first_adapted :]) if case.adapts else []
    model = Model(layers, rule)
    for tensor in model.tensors():
        tensor.requires_grad_()
    return model


def run_sets(
    case: Case, network: Sequence[Layer], layers: Parameters, x: Tensor
) -> list[Tensor]:
    """Run layers on a task's samples `[n, ...]`; return its batches.

    Learners with an inner loop normalize support and query set separately, the others
    as one batch.
    """
    batches = x.split(set_sizes(case)) if case.adapts else [x]
    return [run_layers(network, layers, h) for h in batches]


def task_loss(
    case: Case,
    network: Sequence[Layer],
    model: Model,
    inner: InnerLoop,
    layer: int,
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Query loss of one task.

    Args:
      case: as returned by `check_case`.
      network: the layers.
      model: their parameters.
      inner: `AUTOGRAD`, or `FUNCTIONAL` under `vmap`.
      layer: the layer that x is the input of.
      x: samples `[n, ...]`, the support set first.
      y: their classes `[n]`, or soft labels or targets `[n, D]`.
    """
    stop = case.first_adapted if case.adapts else len(network)
    h = run_sets(case, network[layer:stop], model.layers[layer:stop], x)
    if case.adapts:
        return adaptation_loss(case, network[stop:], model, inner, h, y)
    logits = METRIC_LOGITS[case.learner](case, h[0].flatten(1))
    return F.cross_entropy(logits, y[-len(logits) :])


def adaptation_loss(
    case: Case,
    network: Sequence[Layer],
    model: Model,
    inner: InnerLoop,
    h: Sequence[Tensor],
    y: Tensor,
) -> Tensor:
    """Query loss after second-order gradient steps on the support set.

    `network` holds the adapted layers, `h` their inputs: support and query set.
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
    """Differentiable gradient, with `torch.autograd`."""
    flat = [p.requires_grad_() for own in adapted for p in own]
    gradient = iter(torch.autograd.grad(loss(adapted), flat, create_graph=True))
    return [[next(gradient) for _ in own] for own in adapted]


def functional_gradient(loss: Loss, adapted: Parameters) -> Parameters:
    """Differentiable gradient, with `torch.func`, which `vmap` can batch."""
    return torch.func.grad(loss)(adapted)


AUTOGRAD = InnerLoop(autograd_gradient, fused_norm)
FUNCTIONAL = InnerLoop(functional_gradient, composed_norm)


def protonet_logits(case: Case, z: Tensor) -> Tensor:
    """Squared distances of queries to class means, negative; `z` is `[n, D]`."""
    support_z, query_z = z.split(set_sizes(case))
    prototypes = support_z.unflatten(0, (case.ways, case.shots)).mean(1)
    return -(query_z[:, None] - prototypes).square().sum(-1)


def matchingnet_logits(case: Case, z: Tensor) -> Tensor:
    """Log of the cosine attention of queries to each class; `z` is `[n, D]`."""
    support_z, query_z = F.normalize(z, dim=1).split(set_sizes(case))
    scores = (query_z @ support_z.T).unflatten(1, (case.ways, case.shots))
    return scores.logsumexp(2)


METRIC_LOGITS = {"protonet": protonet_logits, "matchingnet": matchingnet_logits}


def _channels_last(p: Tensor) -> Tensor:
    return p.contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p
