"""MAML, ANIL, MetaSGD and Meta-Curvature: compositions of one inner loop (Sec. 2).

Each is a `GradientLearner` with its update rule and its adapted layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlti_jax.backbones import Head, Stack
from mlti_jax.errors import InputError
from mlti_jax.learners._base import CLASSIFICATION, Objective
from mlti_jax.learners._gradient import GradientLearner
from mlti_jax.learners._update_rules import (
    UpdateRule,
    curvature,
    fixed_step,
    learned_steps,
)

# What the paper adapts, but for Pose: the last block and the classifier.
LAST_BLOCK_AND_HEAD = (-2, -1)


def gradient_learner(
    name: str,
    backbone: Stack,
    outputs: int,
    rule: Callable[[float], UpdateRule],
    *,
    adapted_layers: Sequence[int],
    objective: Objective = CLASSIFICATION,
    inner_learning_rate: float = 0.01,
    steps: int = 5,
    eval_steps: int | None = None,
    second_order: bool = True,
    remat: bool = False,
    unroll: bool = False,
    norm: str = "batch",
) -> GradientLearner:
    """A learner of this family, with the paper's values as defaults.

    Args:
      name: of the learner, for errors.
      backbone: the network without a head; a linear one is put on top.
      outputs: classes of a task, or length of a regression target.
      rule: the update rule, made from the inner learning rate.
      adapted_layers: of the network with its head; negative numbers count from the
        top, so that (-2, -1) is the last block and the classifier.
      objective: loss and metric.
      inner_learning_rate: eta.
      steps: inner steps in training.
      eval_steps: inner steps at test time; as in training if not given.
      second_order, remat, unroll: see `adapt`.
      norm: batch-norm policy at test time, `batch` or `running`.
    """
    eval_steps = steps if eval_steps is None else eval_steps
    if steps < 0 or eval_steps < 0 or not inner_learning_rate > 0:
        raise InputError(
            f"{name} needs steps and eval_steps >= 0 and a positive "
            f"inner_learning_rate, got {steps}, {eval_steps} and {inner_learning_rate}"
        )
    stack = backbone.append(Head(outputs))
    return GradientLearner(
        stack=stack,
        objective=objective,
        adapted_layers=_layer_numbers(adapted_layers, stack),
        rule=rule(inner_learning_rate),
        steps=steps,
        eval_steps=eval_steps,
        second_order=second_order,
        remat=remat,
        unroll=unroll,
        norm=norm,
    )


def maml(
    backbone: Stack,
    outputs: int,
    *,
    adapted_layers: Sequence[int] = LAST_BLOCK_AND_HEAD,
    **options,
) -> GradientLearner:
    """MAML (Finn et al. 2017): a fixed step; options as in `gradient_learner`."""
    return gradient_learner(
        "maml", backbone, outputs, fixed_step, adapted_layers=adapted_layers, **options
    )


def anil(backbone: Stack, outputs: int, **options) -> GradientLearner:
    """ANIL (Raghu et al. 2020): MAML that adapts the head alone."""
    return gradient_learner(
        "anil", backbone, outputs, fixed_step, adapted_layers=(-1,), **options
    )


def metasgd(
    backbone: Stack,
    outputs: int,
    *,
    adapted_layers: Sequence[int] = LAST_BLOCK_AND_HEAD,
    **options,
) -> GradientLearner:
    """MetaSGD (Li et al. 2017): a step size for each parameter, meta-learned."""
    return gradient_learner(
        "metasgd",
        backbone,
        outputs,
        learned_steps,
        adapted_layers=adapted_layers,
        **options,
    )


def meta_curvature(
    backbone: Stack,
    outputs: int,
    *,
    adapted_layers: Sequence[int] = LAST_BLOCK_AND_HEAD,
    **options,
) -> GradientLearner:
    """Meta-Curvature (Park and Oliva 2019): gradients transformed along their modes."""
    return gradient_learner(
        "meta_curvature",
        backbone,
        outputs,
        curvature,
        adapted_layers=adapted_layers,
        **options,
    )


def _layer_numbers(layers: Sequence[int], stack: Stack) -> tuple[int, ...]:
    """Ascending layer numbers, negative ones counted from the top."""
    size = len(stack)
    if not layers or any(not -size <= layer < size for layer in layers):
        raise InputError(
            f"adapted_layers must name at least one of the {size} layers "
            f"(the head is {size - 1} or -1), got {tuple(layers)}"
        )
    numbers = tuple(sorted({layer % size for layer in layers}))
    for number in numbers:
        if stack.tied is not None and stack.tied.count(stack.tied[number]) > 1:
            raise InputError(
                f"adapted_layers names layer {number}, which shares its parameters "
                "with others; adapt layers that have their own"
            )
    return numbers
