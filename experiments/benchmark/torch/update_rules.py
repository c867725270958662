"""How an inner-loop gradient becomes a step, in plain PyTorch.

A rule learns some tensors for each parameter that it changes: none (MAML, ANIL), a step
size for each entry (MetaSGD), or a matrix for each mode (Meta-Curvature).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.torch.networks import Displaced, Layer, Parameters

Loss = Callable[[Parameters], Tensor]
# (loss, parameters) -> gradient, like the parameters
Gradient = Callable[[Loss, Parameters], Parameters]
# For each layer, for each of its parameters, what the rule has learned for it.
RuleParameters = Sequence[Sequence[Sequence[Tensor]]]


def init_rule(case: Any, adapted: Parameters) -> list[list[list[Tensor]]]:
    """What the rule of a case learns for the parameters of the adapted layers."""
    return [[_learned(case, p) for p in layer] for layer in adapted]


def descend(
    case: Any,
    network: Sequence[Layer],
    rule: RuleParameters,
    adapted: Parameters,
    loss: Loss,
    gradient: Gradient,
) -> list[list[Tensor]]:
    """One step of the inner loop.

    Args:
      case: as from `read_case`.
      network: the adapted layers.
      rule: as from `init_rule`.
      adapted: their parameters.
      loss: of parameters like these.
      gradient: how to differentiate it.

    Returns:
      The parameters after the step.
    """
    # Where there is a short way, the gradient by a displacement is the step itself.
    short = [
        [case.learner == "meta_curvature" and layer.dense and p.ndim == 2 for p in own]
        for layer, own in zip(network, adapted, strict=True)
    ]
    variables = _each(lambda p, s: torch.zeros_like(p) if s else p, adapted, short)

    def loss_of(variables: Parameters) -> Tensor:
        def place(v: Tensor, p: Tensor, own: Sequence[Tensor], short: bool):
            return Displaced(p, v, *own) if short else v

        return loss(_each(place, variables, adapted, rule, short))

    def step(p: Tensor, g: Tensor, own: Sequence[Tensor], short: bool) -> Tensor:
        return (_fixed_step if short else _STEPS[case.learner])(case, p, g, own)

    return _each(step, adapted, gradient(loss_of, variables), rule, short)


def transform_modes(gradient: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiplies `[O]`, `[O, I]` or `[O, I, kh, kw]` along each mode by a matrix.

    The positions of a window are one mode: `matrices` are `[O, O]`, then `[I, I]`, then
    `[kh * kw, kh * kw]`.
    """
    if gradient.ndim == 1:
        return matrices[0] @ gradient
    out = matrices[0] @ gradient.flatten(1)
    if gradient.ndim == 2:
        return F.linear(out, matrices[1])
    out = out.reshape(*gradient.shape[:2], -1)
    return (matrices[1] @ F.linear(out, matrices[2])).reshape(gradient.shape)


def _fixed_step(case: Any, p: Tensor, gradient: Tensor, own: Sequence) -> Tensor:
    del own
    return p.sub(gradient, alpha=case.inner_lr)


def _learned_step(case: Any, p: Tensor, gradient: Tensor, own: Sequence) -> Tensor:
    del case
    return torch.addcmul(p, gradient, own[0], value=-1)


def _curved_step(case: Any, p: Tensor, gradient: Tensor, own: Sequence) -> Tensor:
    return p.sub(transform_modes(gradient, own), alpha=case.inner_lr)


_STEPS = {
    "maml": _fixed_step,
    "anil": _fixed_step,
    "metasgd": _learned_step,
    "meta_curvature": _curved_step,
}


def _learned(case: Any, p: Tensor) -> list[Tensor]:
    if case.learner == "metasgd":
        return [torch.full_like(p, case.inner_lr)]
    if case.learner == "meta_curvature":
        modes = p.flatten(2).shape if p.ndim > 2 else p.shape
        return [torch.eye(size, dtype=p.dtype) for size in modes]
    return []


def _each(function: Callable, *by_layer: Sequence[Sequence]) -> list[list]:
    """Calls a function for each parameter of each layer."""
    return [
        [function(*each) for each in zip(*layers, strict=True)]
        for layers in zip(*by_layer, strict=True)
    ]
