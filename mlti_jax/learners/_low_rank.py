r"""An adapted linear map of few samples, without its kernel ever being written.

The support set's features h `[N, I]` enter the first adapted layer and stay the same
throughout the inner loop. The gradient of its kernel is :math:`h^\top \delta`, with
:math:`\delta` `[N, O]` the gradient of the map's output, so that after t steps

.. math:: W_t = W_0 + l^\top D_t, \quad D_t = -\sum_{s < t} r(\delta_s),
          \quad x W_t = x W_0 + (x l^\top) D_t,

where l and r are the update rule's factors. The inner loop then runs on `[N, N]` and
`[N, O]` arrays; the product with the shared W_0 is one for all tasks, and no `[I, O]`
copy of it is made for a task, nor for a task's second derivatives. This is exact.

A rule may also weigh the step's entries by A `[I, O]`, as MetaSGD does. Then

.. math:: (x (A \circ l^\top D_t))_{no} = \sum_m K_{nmo} (D_t)_{mo},
          \quad K_{nmo} = \sum_i x_{ni} l_{mi} A_{io},

and K `[N, N, O]` of the support set is one product with the shared A before the loop.
It has N times the rows of the product with W_0, so that it is the shorter way while N
is not much larger than the number of steps. Else, and for the query set, which passes
once, :math:`A \circ l^\top D_t` is written for the moment of its use, but never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.backbones import Hook, LinearMap
from mlti_jax.learners._update_rules import Factors
from mlti_jax.types import Array, PyTree

# Up to so many samples for each inner step, products of pairs of samples are faster:
# MetaSGD, 500 x 500, 5 steps, whole meta-gradients: 2.1 times with 10 samples, a third
# as fast with 40.
PAIRS_PER_STEP = 3


class Displaced(NamedTuple):
    r"""A layer's kernel :math:`W_0 + l^\top D`.

    Attributes:
      layer: which.
      shared: W_0, `[I, O]`.
      factors: l, and weights if any.
      sum: D, `[N, O]`.
    """

    layer: int
    shared: Array
    factors: Factors
    sum: Array

    def kernel(self) -> Array:
        """The kernel itself, `[I, O]`."""
        return self.shared + _change(self.factors, self.sum)

    def hook(self, x: Array) -> Hook:
        """Gives the layer the output that it would have with this kernel on `x`."""
        output = x @ self.shared + _product(self.factors, x)(self.sum)
        return _replace_output(self.layer, output)


class LowRank(NamedTuple):
    """What the inner loop needs to go the short way.

    Attributes:
      layer: the first adapted layer.
      kernel: W_0, `[I, O]`.
      h: what enters it, `[N, I]`.
      factors: of the step.
      num_steps: of the inner loop.
    """

    layer: int
    kernel: Array
    h: Array
    factors: Factors
    num_steps: int

    def adapt(
        self,
        loss: Callable[[PyTree, Hook, int | Array], Array],
        params: PyTree,
        step: Callable[[PyTree], PyTree],
        loop: Callable,
    ) -> tuple[PyTree, Displaced]:
        """The inner loop.

        Args:
          loss: `(params, hook, i) -> scalar`, the support loss in step i.
          params: all that is adapted but the kernel.
          step: what is subtracted from them, given their gradient.
          loop: `inner_loop.adapt` with its options.

        Returns:
          The adapted parameters, and the kernel's change.
        """
        few = self.h.shape[0] <= PAIRS_PER_STEP * self.num_steps
        product = (_pair_product if few else _product)(self.factors, self.h)
        base = self.h @ self.kernel

        def loss_fn(phi, index, output_change):
            rest, displacement = phi
            output = base + product(displacement) + output_change
            return loss(rest, _replace_output(self.layer, output), index)

        def gradient(loss_fn):
            by_params = jax.grad(
                lambda rest, delta, total, index: loss_fn((rest, total), index, delta),
                argnums=(0, 1),
            )
            zero = jnp.zeros_like(base)
            return lambda phi, index: by_params(phi[0], zero, phi[1], index)

        rest, total = loop(
            loss_fn,
            (params, jnp.zeros_like(base)),
            lambda grads: (step(grads[0]), self.factors.right(grads[1])),
            gradient=gradient,
        )
        return rest, Displaced(self.layer, self.kernel, self.factors, total)


def without_kernel(layers: tuple) -> tuple:
    """Parameters by layer, or an update rule's, without the first layer's kernel."""
    if not layers:
        return layers
    first = {name: value for name, value in layers[0].items() if name != "kernel"}
    return (first, *layers[1:])


def _change(factors: Factors, total: Array) -> Array:
    """What is added to the kernel, `[I, O]`."""
    change = factors.left.T @ total
    return change if factors.weight is None else factors.weight * change


def _product(factors: Factors, x: Array) -> Callable[[Array], Array]:
    """`D -> x (A * l^T D)`, without a matrix `[I, O]` that is kept for derivatives."""
    if factors.weight is None:
        gram = x @ factors.left.T
        return lambda total: gram @ total
    left, _, weight = factors
    product = jax.checkpoint(lambda x, l, w, total: x @ (w * (l.T @ total)))  # noqa: E741
    return lambda total: product(x, left, weight, total)


def _pair_product(factors: Factors, x: Array) -> Callable[[Array], Array]:
    """The same, by K: more work beforehand, and next to none for each D."""
    if factors.weight is None:
        return _product(factors, x)
    pairs = x[:, None] * factors.left  # [N, N, I]
    rows = pairs.reshape(-1, x.shape[1]) @ factors.weight
    k = rows.reshape(*pairs.shape[:2], -1)
    return lambda total: jnp.einsum("nmo,mo->no", k, total)


def _replace_output(layer: int, output: Array) -> Hook:
    def hook(index: int, linear: LinearMap) -> Array:
        return output if index == layer else linear.output

    return hook
