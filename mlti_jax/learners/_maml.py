"""MAML, ANIL, MetaSGD and Meta-Curvature: variants of one inner loop (Sec. 2).

Each is a `GradientLearner` with its own update rule and adapted layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TypedDict, Unpack

from mlti_jax._internal.checks import check_range
from mlti_jax.backbones import Stack
from mlti_jax.backbones._layers import Head
from mlti_jax.backbones._wrap import FunctionLayer
from mlti_jax.errors import InputError
from mlti_jax.learners._adapted import named_layers
from mlti_jax.learners._gradient import GradientLearner
from mlti_jax.learners._objectives import CLASSIFICATION, Objective
from mlti_jax.learners._update_rules import (
    UpdateRule,
    curvature,
    fixed_step,
    learned_steps,
)

# The layers that the paper adapts, except on Pose: last block and classifier.
LAST_BLOCK_AND_HEAD = (-2, -1)
_MAX_STEPS = 10_000


class GradientOptions(TypedDict, total=False):
    """Options of all gradient-based learners; defaults are in `gradient_learner`."""

    objective: Objective
    inner_learning_rate: float
    steps: int
    eval_steps: int | None
    second_order: bool
    remat: bool
    norm: str
    adapted: Sequence[str] | None


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
    norm: str = "batch",
    adapted: Sequence[str] | None = None,
) -> GradientLearner:
    """Build a learner of this family; the defaults are the paper's values.

    Args:
      name: name of the learner, for error messages.
      backbone: the network without a head; a linear head is added.
      outputs: number of classes per task, or length of a regression target.
      rule: makes the update rule from the inner learning rate.
      adapted_layers: layers of the network with its head; negative indices count from
        the top, so (-2, -1) is the last block and the classifier.
      objective: loss and metric.
      inner_learning_rate: the inner learning rate eta.
      steps: inner steps in training.
      eval_steps: inner steps at test time; None means as in training.
      second_order, remat: see `adapt`.
      norm: batch-norm policy at test time, `batch` or `running`.
      adapted: paths of the adapted parameters, see `adapted_paths`; None for all
        parameters of `adapted_layers`.
    """
    eval_steps = steps if eval_steps is None else eval_steps
    for field, value in (("steps", steps), ("eval_steps", eval_steps)):
        check_range(f"{field} of {name}", value, _MAX_STEPS, smallest=0)
    if not inner_learning_rate > 0:
        raise InputError(
            f"{name} needs a positive inner_learning_rate, got {inner_learning_rate}"
        )
    stack = backbone.append(Head(outputs))
    is_default = tuple(adapted_layers) == LAST_BLOCK_AND_HEAD
    if adapted is not None:
        if not is_default:
            raise InputError(
                f"{name} has both adapted and adapted_layers="
                f"{tuple(adapted_layers)}; give one of them (anil adapts the head "
                "only: use maml)"
            )
        adapted_layers = named_layers(adapted, stack)
        adapted = tuple(adapted)
    elif is_default:
        adapted_layers = _last_block_and_head(stack)
    return GradientLearner(
        stack=stack,
        objective=objective,
        adapted_layers=_layer_numbers(adapted_layers, stack),
        rule=rule(inner_learning_rate),
        steps=steps,
        eval_steps=eval_steps,
        second_order=second_order,
        remat=remat,
        norm=norm,
        adapted=adapted,
    )


def maml(
    backbone: Stack,
    outputs: int,
    *,
    adapted_layers: Sequence[int] = LAST_BLOCK_AND_HEAD,
    **options: Unpack[GradientOptions],
) -> GradientLearner:
    """Build MAML (Finn et al. 2017), which takes steps of a fixed size.

    Args:
      backbone: the network without a head; a linear head is added.
      outputs: number of classes per task, or length of a regression target.
      adapted_layers: layers that the inner loop adapts; negative indices count from
        the head.
      **options: `objective`, `inner_learning_rate` (0.01), `steps` (5), `eval_steps`
        (as `steps`), `second_order` (True), `remat` (False; see `adapt`), `norm`
        (`batch` or `running` statistics at test time) and `adapted` (paths or patterns
        of the adapted parameters, instead of `adapted_layers`, such as
        `("head/*", "0/BatchNorm_0/*")`; see `adapted_paths`).

    Examples:
      >>> from mlti_jax import backbones
      >>> learner = maml(backbones.mlp((32, 32)), outputs=5, steps=3)
      >>> learner.adapted_layers
      (1, 2)
    """
    return gradient_learner(
        "maml", backbone, outputs, fixed_step, adapted_layers=adapted_layers, **options
    )


def anil(
    backbone: Stack, outputs: int, **options: Unpack[GradientOptions]
) -> GradientLearner:
    """Build ANIL (Raghu et al. 2020), MAML that adapts only the head.

    Arguments are those of `maml`, without `adapted_layers` and `adapted`.

    Examples:
      >>> from mlti_jax import backbones
      >>> learner = anil(backbones.mlp((32, 32)), outputs=5)
      >>> learner.adapted_layers
      (2,)
    """
    return gradient_learner(
        "anil", backbone, outputs, fixed_step, adapted_layers=(-1,), **options
    )


def metasgd(
    backbone: Stack,
    outputs: int,
    *,
    adapted_layers: Sequence[int] = LAST_BLOCK_AND_HEAD,
    **options: Unpack[GradientOptions],
) -> GradientLearner:
    """Build MetaSGD (Li et al. 2017), which meta-learns a step size per parameter.

    Arguments are those of `maml`.

    Examples:
      >>> from mlti_jax import backbones
      >>> learner = metasgd(backbones.mlp((32, 32)), outputs=5)
      >>> learner.adapted_layers
      (1, 2)
    """
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
    **options: Unpack[GradientOptions],
) -> GradientLearner:
    """Build Meta-Curvature (Park and Oliva 2019), which transforms gradients.

    Arguments are those of `maml`.

    Examples:
      >>> from mlti_jax import backbones
      >>> learner = meta_curvature(backbones.mlp((32, 32)), outputs=5)
      >>> learner.adapted_layers
      (1, 2)
    """
    return gradient_learner(
        "meta_curvature",
        backbone,
        outputs,
        curvature,
        adapted_layers=adapted_layers,
        **options,
    )


def _last_block_and_head(stack: Stack) -> tuple[int, ...]:
    """Return `LAST_BLOCK_AND_HEAD`; a function is not a block, a frozen one stays."""
    *layers, _ = stack.layers
    block = len(layers) - 1
    while block > 0 and isinstance(layers[block], FunctionLayer):
        block -= 1
    return (-1,) if block in stack.frozen else (block, -1)


def _layer_numbers(layers: Sequence[int], stack: Stack) -> tuple[int, ...]:
    """Return ascending layer indices; negative ones count from the top."""
    size = len(stack)
    wrong = [
        layer
        for layer in layers
        if not isinstance(layer, Integral) or not -size <= layer < size
    ]
    if wrong or not layers:
        raise InputError(
            f"adapted_layers must name at least one of the {size} layers "
            f"(the head is {size - 1} or -1), got {tuple(layers)}"
        )
    indices = tuple(sorted({layer % size for layer in layers}))
    for number in indices:
        if number in stack.frozen:
            raise InputError(
                f"layer {number} should be adapted and is frozen; adapt other layers, "
                "or wrap the network with frozen=False"
            )
        if stack.tied is not None and stack.tied.count(stack.tied[number]) > 1:
            raise InputError(
                f"adapted_layers names layer {number}, which shares its parameters "
                "with other layers; adapt layers with parameters of their own"
            )
    return indices
