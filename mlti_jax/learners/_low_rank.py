r"""Low-rank adaptation of a linear map: exact, and its kernel is never written.

The features h `[N, I]` of the support set enter the first adapted layer and stay the
same throughout the inner loop. The gradient of the kernel is $h^\top \delta$, where
$\delta$ `[N, O]` is the gradient of the output of the map. After t steps

$$W_t = W_0 + l^\top D_t, \quad D_t = -\sum_{s < t} r(\delta_s),
  \quad x W_t = x W_0 + (x l^\top) D_t,$$

where l and r are the factors of the update rule. The inner loop then works on `[N, N]`
and `[N, O]` arrays. The product with the shared $W_0$ is one product for all tasks, and
no task needs an `[I, O]` copy of it, nor do the second derivatives. This is exact.

A rule may also weight the entries of the step with A `[I, O]`, as MetaSGD does:

$$(x (A \circ l^\top D_t))_{no} = \sum_m K_{nmo} (D_t)_{mo},
  \quad K_{nmo} = \sum_i x_{ni} l_{mi} A_{io}.$$

K `[O, N, N]` of the support set is one product with the shared A before the loop. With
l = x, K is symmetric, so the product has N (N + 1) / 2 rows. Those are (N + 1) / 2
times the rows of the product with $W_0$, so it is faster only while N is not much
larger than the number of steps. Otherwise, and for the query set, which is evaluated
once, $A \circ l^\top D_t$ is computed when it is used and never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax import ops
from mlti_jax.backbones._stack import Hook, LinearMap
from mlti_jax.learners._shared_product import shared_product
from mlti_jax.learners._update_rules import Factors
from mlti_jax.types import Array, PyTree

# Up to this many samples per inner step, products of sample pairs are faster: MetaSGD,
# 500 x 500, 5 steps, whole meta-gradients: 2.1 times faster with 10 samples, 3 times
# slower with 40.
PAIRS_PER_STEP = 3


class LowRankKernel(NamedTuple):
    r"""The adapted kernel $W_0 + l^\top D$ of one layer.

    Attributes:
      layer: index of the layer.
      shared: $W_0$, `[I, O]`.
      factors: l, and the weights if any.
      total: D, `[N, O]`.
    """

    layer: int
    shared: Array
    factors: Factors
    total: Array

    def kernel(self) -> Array:
        """Compute the kernel, `[I, O]`."""
        return self.shared + _kernel_update(self.factors, self.total)

    def hook(self, x: Array) -> Hook:
        """Return a hook that gives the layer its output for input `x`."""
        output = ops.matmul(x, self.shared) + _product(self.factors, x)(self.total)
        return _replace_output(self.layer, output)


def adapt_low_rank(
    loss_fn: Callable[[PyTree, Array, Hook], Array],
    params: PyTree,
    step: Callable[[PyTree], PyTree],
    descend: Callable[..., PyTree],
    *,
    layer: int,
    kernel: Array,
    h: Array,
    factors: Factors,
    num_steps: int,
) -> tuple[PyTree, LowRankKernel]:
    """Run the inner loop with a low-rank update of the kernel of one layer.

    Args:
      loss_fn: `(params, i, hook) -> scalar`, the support loss in step i.
      params: everything that is adapted except the kernel.
      step: maps the gradient of `params` to the update that is subtracted.
      descend: the loop, `(gradient, params, step, num_steps=...) -> params`.
      layer: the first adapted layer.
      kernel: its kernel $W_0$, `[I, O]`.
      h: its input, `[N, I]`.
      factors: factors of the update of the kernel.
      num_steps: number of inner steps.

    Returns:
      The adapted parameters, and the adapted kernel.
    """
    few_samples = h.shape[0] <= PAIRS_PER_STEP * num_steps
    product = (_pair_product if few_samples else _product)(factors, h)
    base = ops.matmul(h, kernel)

    def loss(rest: PyTree, delta: Array, total: Array, index: Array) -> Array:
        output = base + product(total) + delta
        return loss_fn(rest, index, _replace_output(layer, output))

    # The gradient by an output of zero, added to that of the map, is its delta.
    gradient = jax.grad(loss, argnums=(0, 1))
    zero = jnp.zeros_like(base)
    rest, total = descend(
        lambda phi, index: gradient(phi[0], zero, phi[1], index),
        (params, zero),
        lambda grads: (step(grads[0]), factors.right(grads[1])),
        num_steps=num_steps,
    )
    return rest, LowRankKernel(layer, kernel, factors, total)


def without_kernel(layers: tuple) -> tuple:
    """Replace the kernel of the first layer by None in per-layer parameters."""
    if not layers:
        return layers
    return ({**layers[0], "kernel": None}, *layers[1:])


def _kernel_update(factors: Factors, total: Array) -> Array:
    """Compute what is added to the kernel, `[I, O]`."""
    change = factors.left.T @ total
    return change if factors.weight is None else factors.weight * change


def _product(factors: Factors, x: Array) -> Callable[[Array], Array]:
    """Return `D -> x (A * l^T D)`, which stores no `[I, O]` matrix for derivatives."""
    if factors.weight is None:
        gram = x @ factors.left.T
        return lambda total: gram @ total

    @jax.checkpoint
    def product(x: Array, left: Array, weight: Array, total: Array) -> Array:
        return x @ shared_product(weight, left.T @ total)

    return lambda total: product(x, factors.left, factors.weight, total)


def _pair_product(factors: Factors, x: Array) -> Callable[[Array], Array]:
    """Return the same map through K: more work once, very little for each D."""
    if factors.weight is None:
        return _product(factors, x)
    samples = x.shape[0]
    symmetric = factors.left is x  # then K_nmo = K_mno
    n, m = np.triu_indices(samples) if symmetric else np.indices((samples, samples))
    n, m = n.ravel(), m.ravel()
    # Products with one-hot rows select samples. Their derivatives are products as well,
    # while those of an index or a broadcast are slow sums.
    one_hot = np.eye(samples, dtype=x.dtype)
    rows = ((one_hot[n] @ x) * (one_hot[m] @ factors.left)) @ factors.weight
    # With outputs first, no step of the inner loop has to transpose K.
    if symmetric:
        copies = np.zeros((samples, samples, len(n)), x.dtype)
        copies[n, m, np.arange(len(n))] = copies[m, n, np.arange(len(n))] = 1
        k = jnp.einsum("po,nmp->onm", rows, copies)
    else:
        k = rows.T.reshape(-1, samples, samples)
    return lambda total: jnp.einsum("onm,om->on", k, total.T).T


def _replace_output(layer: int, output: Array) -> Hook:
    def hook(index: int, linear: LinearMap) -> Array:
        return output if index == layer else linear.output

    return hook
