"""Update rules: how an inner-loop gradient becomes a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.types import Array, PyTree


class Factors(NamedTuple):
    """Factors of the step of a linear map's kernel, whose gradient is `input^T delta`.

    `delta [N, O]` is the gradient of the map's output. The step is `left^T
    right(delta)`, multiplied elementwise by `weight` if given.

    Attributes:
      left: `[N, I]`.
      right: `[N, O] -> [N, O]`, linear.
      weight: `[I, O]`, or None.
    """

    left: Array
    right: Callable[[Array], Array]
    weight: Array | None = None


class UpdateRule(NamedTuple):
    """How an inner-loop gradient becomes a step.

    Attributes:
      init: `(adapted params) -> parameters of the rule`, which are meta-learned.
      step: `(parameters of the rule, gradient) -> update`, which is subtracted.
      factors: `(parameters of the rule, input [N, I]) -> Factors` of the kernel of the
        first adapted layer, if it is a linear map of few samples.
    """

    init: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, PyTree], PyTree]
    factors: Callable[[PyTree, Array], Factors]


def fixed_step(learning_rate: float) -> UpdateRule:
    r"""Return MAML's rule, the step $\eta \nabla_\theta L$."""
    return UpdateRule(
        init=lambda params: (),
        step=lambda _, grads: jax.tree.map(lambda g: learning_rate * g, grads),
        factors=lambda _, h: Factors(h, lambda delta: learning_rate * delta),
    )


def learned_steps(learning_rate: float) -> UpdateRule:
    r"""Return MetaSGD's rule, the step $\alpha \circ \nabla_\theta L$.

    Every parameter has its own step size, initialized to `learning_rate`.
    """
    return UpdateRule(
        init=lambda params: jax.tree.map(
            lambda p: jnp.full(p.shape, learning_rate, p.dtype), params
        ),
        step=lambda alpha, grads: jax.tree.map(jnp.multiply, alpha, grads),
        factors=lambda alpha, h: Factors(h, lambda delta: delta, alpha[0]["kernel"]),
    )


def curvature(learning_rate: float) -> UpdateRule:
    r"""Return Meta-Curvature's rule, the step $\eta\, \mathrm{MC}(\nabla_\theta L)$.

    The gradient of a tensor is multiplied along each of its modes with a matrix that is
    initialized to the identity. A convolution kernel is a tensor $G$ with the modes
    (spatial, input, output), where all window positions form one mode:

    $$\mathrm{MC}(G)_{fio} = \sum_{f'i'o'} M^f_{ff'} M^i_{ii'} M^o_{oo'} G_{f'i'o'}.$$

    A matrix has the modes (input, output), a vector has one mode.

    For a linear map $h W$ of few samples this is a product of $h {M^i}^\top$ and
    $\delta {M^o}^\top$, which have N rows instead of I.
    """
    return UpdateRule(
        init=lambda params: jax.tree.map(_identities, params),
        step=lambda matrices, grads: jax.tree.map(
            lambda g, m: learning_rate * transform_modes(g, m), grads, matrices
        ),
        factors=lambda matrices, h: Factors(
            h @ matrices[0]["kernel"][0].T,
            lambda delta: learning_rate * delta @ matrices[0]["kernel"][1].T,
        ),
    )


def transform_modes(gradient: Array, matrices: tuple[Array, ...]) -> Array:
    """Multiply a tensor along each of its modes with a square matrix.

    Args:
      gradient: of any shape; `[kh, kw, I, O]` is treated as `[kh * kw, I, O]`.
      matrices: one `[n, n]` matrix per mode.

    Returns:
      A tensor of the same shape.
    """
    out = gradient.reshape(_modes(gradient.shape))
    for mode, matrix in enumerate(matrices):
        out = jnp.moveaxis(jnp.tensordot(matrix, out, axes=(1, mode)), 0, mode)
    return out.reshape(gradient.shape)


def _modes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0] * shape[1], *shape[2:]) if len(shape) == 4 else shape


def _identities(param: Array) -> tuple[Array, ...]:
    return tuple(jnp.eye(size, dtype=param.dtype) for size in _modes(param.shape))
