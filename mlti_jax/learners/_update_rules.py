"""How an inner-loop gradient becomes a step: fixed, learned, or by curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.types import Array, PyTree


class Factors(NamedTuple):
    """The step of a linear map's kernel, whose gradient is `input^T delta`.

    `delta [N, O]` is the gradient of the map's output. The step is the product
    `left^T right(delta)`, times `weight` entry by entry if there is one.

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
      init: `(adapted params) -> parameters of the rule`, meta-learned with the rest.
      step: `(parameters of the rule, gradient) -> what is subtracted`.
      factors: `(parameters of the rule, input [N, I]) -> Factors` for the kernel of the
        first adapted layer, if that is a linear map of few samples.
    """

    init: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, PyTree], PyTree]
    factors: Callable[[PyTree, Array], Factors]


def fixed_step(learning_rate: float) -> UpdateRule:
    r"""MAML's rule: :math:`\eta \nabla_\theta \mathcal{L}`."""
    return UpdateRule(
        init=lambda params: (),
        step=lambda _, grads: jax.tree.map(lambda g: learning_rate * g, grads),
        factors=lambda _, h: Factors(h, lambda delta: learning_rate * delta),
    )


def learned_steps(learning_rate: float) -> UpdateRule:
    r"""MetaSGD's rule: :math:`\alpha \circ \nabla_\theta \mathcal{L}`.

    Every parameter has a step size of its own, which begins at `learning_rate`.
    """
    return UpdateRule(
        init=lambda params: jax.tree.map(
            lambda p: jnp.full(p.shape, learning_rate, p.dtype), params
        ),
        step=lambda alpha, grads: jax.tree.map(jnp.multiply, alpha, grads),
        factors=lambda alpha, h: Factors(h, lambda delta: delta, alpha[0]["kernel"]),
    )


def curvature(learning_rate: float) -> UpdateRule:
    r"""Meta-Curvature's rule: :math:`\eta\, \mathrm{MC}(\nabla_\theta \mathcal{L})`.

    A tensor's gradient is multiplied along each of its modes by a matrix, which begins
    at the identity. For a convolution's kernel, as the tensor :math:`G` with the modes
    (spatial, input, output),

    .. math:: \mathrm{MC}(G)_{fio} = \sum_{f'i'o'}
              M^f_{ff'} M^i_{ii'} M^o_{oo'} G_{f'i'o'},

    where the positions of the window are one mode. A matrix has the modes (input,
    output), a vector one.

    For a linear map :math:`h W` of few samples this is a product of
    :math:`h {M^i}^\top` and :math:`\delta {M^o}^\top`, which have N rows instead of I.
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
    """Multiplies a tensor along each of its modes by a square matrix.

    Args:
      gradient: of any shape; `[kh, kw, I, O]` is taken as `[kh * kw, I, O]`.
      matrices: one for each mode, `[n, n]`.

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
