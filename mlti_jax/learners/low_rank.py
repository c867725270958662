"""An adapted linear map of few samples, without its kernel ever being written.

The support set's features h `[N, I]` enter the first adapted layer and stay the same
throughout the inner loop. The gradient of its kernel is :math:`h^\\top \\delta`, with
:math:`\\delta` `[N, O]` the gradient of the map's output, so that after t steps

.. math:: W_t = W_0 + l^\\top D_t, \\quad D_t = -\\sum_{s < t} r(\\delta_s),
          \\quad x W_t = x W_0 + (x l^\\top) D_t,

where l and r are the update rule's factors. The inner loop then runs on `[N, N]` and
`[N, O]` arrays; the product with the shared W_0 is one for all tasks, and no `[I, O]`
copy of it is made for a task, nor for a task's second derivatives. This is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.backbones import Hook, LinearMap
from mlti_jax.types import Array, PyTree


class Displaced(NamedTuple):
    """A layer's kernel :math:`W_0 + l^\\top D`.

    Attributes:
      layer: which.
      shared: W_0, `[I, O]`.
      left: l, `[N, I]`.
      sum: D, `[N, O]`.
    """

    layer: int
    shared: Array
    left: Array
    sum: Array

    def kernel(self) -> Array:
        """The kernel itself, `[I, O]`."""
        return self.shared + self.left.T @ self.sum

    def hook(self, x: Array) -> Hook:
        """Gives the layer the output that it would have with this kernel on `x`."""
        return _replace_output(self.layer, x @ self.shared + x @ self.left.T @ self.sum)


class LowRank(NamedTuple):
    """What the inner loop needs to go the short way.

    Attributes:
      layer: the first adapted layer.
      kernel: W_0, `[I, O]`.
      h: what enters it, `[N, I]`.
      left: l, `[N, I]`.
      right: r, `[N, O] -> [N, O]`.
    """

    layer: int
    kernel: Array
    h: Array
    left: Array
    right: Callable[[Array], Array]

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
        base, gram = self.h @ self.kernel, self.h @ self.left.T

        def loss_fn(phi, index, output_change):
            rest, displacement = phi
            output = base + gram @ displacement + output_change
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
            lambda grads: (step(grads[0]), self.right(grads[1])),
            gradient=gradient,
        )
        return rest, Displaced(self.layer, self.kernel, self.left, total)


def without_kernel(layers: tuple) -> tuple:
    """Parameters by layer, or an update rule's, without the first layer's kernel."""
    if not layers:
        return layers
    first = {name: value for name, value in layers[0].items() if name != "kernel"}
    return (first, *layers[1:])


def _replace_output(layer: int, output: Array) -> Hook:
    def hook(index: int, linear: LinearMap) -> Array:
        return output if index == layer else linear.output

    return hook
