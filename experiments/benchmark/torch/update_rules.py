"""Update rules of the inner loop in PyTorch.

A rule learns, for each parameter that it updates, nothing (MAML, ANIL), a step size per
entry (MetaSGD), or a matrix per mode (Meta-Curvature).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.cases import Case
from experiments.benchmark.torch.networks import Layer, LowRankWeight, Parameters

Loss = Callable[[Parameters], Tensor]
# (loss, parameters) -> gradient, like the parameters
Gradient = Callable[[Loss, Parameters], Parameters]
# By layer and parameter: the tensors that the rule has learned.
RuleParameters = Sequence[Sequence[Sequence[Tensor]]]


def init_rule(case: Case, adapted: Parameters) -> list[list[list[Tensor]]]:
    """Initialize the learned tensors for the parameters of the adapted layers."""
    return [[_learned(case, p) for p in layer] for layer in adapted]


def descend(
    case: Case,
    network: Sequence[Layer],
    rule: RuleParameters,
    adapted: Parameters,
    loss: Loss,
    gradient: Gradient,
) -> list[list[Tensor]]:
    """One step of the inner loop.

    Args:
      case: as returned by `check_case`.
      network: the adapted layers.
      rule: as returned by `init_rule`.
      adapted: parameters of the adapted layers.
      loss: function of such parameters.
      gradient: differentiates the loss.

    Returns:
      The parameters after the step.
    """
    # With a `LowRankWeight`, the gradient of the displacement is the step itself.
    short = [
        [case.learner == "meta_curvature" and layer.dense and p.ndim == 2 for p in own]
        for layer, own in zip(network, adapted, strict=True)
    ]
    variables = _each(lambda p, s: torch.zeros_like(p) if s else p, adapted, short)

    def loss_of(variables: Parameters) -> Tensor:
        def place(v: Tensor, p: Tensor, own: Sequence[Tensor], short: bool):
            return LowRankWeight(p, v, *own) if short else v

        return loss(_each(place, variables, adapted, rule, short))

    def step(p: Tensor, g: Tensor, own: Sequence[Tensor], short: bool) -> Tensor:
        return (_fixed_step if short else _STEPS[case.learner])(case, p, g, own)

    return _each(step, adapted, gradient(loss_of, variables), rule, short)


def transform_modes(gradient: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply `[O]`, `[O, I]` or `[O, I, kh, kw]` with a matrix along each mode.

    The positions of a kernel form one mode: `matrices` are `[O, O]`, then `[I, I]`,
    then `[kh * kw, kh * kw]`.
    """
    if gradient.ndim == 1:
        return matrices[0] @ gradient
    out = matrices[0] @ gradient.flatten(1)
    if gradient.ndim == 2:
        return F.linear(out, matrices[1])
    out = out.reshape(*gradient.shape[:2], -1)
    return (matrices[1] @ F.linear(out, matrices[2])).reshape(gradient.shape)


def _fixed_step(case: Case, p: Tensor, gradient: Tensor, own: Sequence) -> Tensor:
    del own
    return p.sub(gradient, alpha=case.inner_lr)


def _learned_step(case: Case, p: Tensor, gradient: Tensor, own: Sequence) -> Tensor:
    del case
    return torch.addcmul(p, gradient, own[0], value=-1)


def _curved_step(case: Case, p: Tensor, gradient: Tensor, own: Sequence) -> Tensor:
    return p.sub(transform_modes(gradient, own), alpha=case.inner_lr)


_STEPS = {
    "maml": _fixed_step,
    "anil": _fixed_step,
    "metasgd": _learned_step,
    "meta_curvature": _curved_step,
}


def _learned(case: Case, p: Tensor) -> list[Tensor]:
    if case.learner == "metasgd":
        return [torch.full_like(p, case.inner_lr)]
    if case.learner == "meta_curvature":
        modes = p.flatten(2).shape if p.ndim > 2 else p.shape
        return [torch.eye(size, dtype=p.dtype) for size in modes]
    return []


def _each(function: Callable, *by_layer: Sequence[Sequence]) -> list[list]:
    """Call a function on each parameter of each layer."""
    return [
        [function(*each) for each in zip(*layers, strict=True)]
        for layers in zip(*by_layer, strict=True)
    ]
