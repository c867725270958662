"""The inner loop of gradient-based meta-learning, as a pure function (Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mlti_jax.types import Array, PyTree


def adapt(
    loss_fn: Callable[[PyTree, int | Array], Array],
    params: PyTree,
    step: Callable[[PyTree], PyTree],
    num_steps: int,
    *,
    gradient: Callable = jax.grad,
    second_order: bool = True,
    remat: bool = False,
    unroll: bool = False,
) -> PyTree:
    r"""The inner loop: :math:`\phi \leftarrow \phi - step(\nabla \mathcal{L}(\phi))`.

    A pure function of the parameters, differentiable through every step.

    Args:
      loss_fn: `(params, i) -> scalar`, the support loss in step i.
      params: where adaptation starts.
      step: what is subtracted, given a gradient.
      num_steps: how many steps.
      gradient: of `loss_fn`, as a function of the same arguments; what `step` takes.
      second_order: whether derivatives go through the inner gradients; if not, they
        are taken as constants (first-order MAML).
      remat: recompute each step's intermediates in the outer backward pass instead of
        keeping them: less memory, more time, the same result. Unless unrolled, n steps
        keep the parameters of about 2 sqrt(n) of them.
      unroll: a Python loop instead of `lax.scan`: a larger program, that takes longer
        to compile and is no faster on CPU.

    Returns:
      The adapted parameters.

    Example:
      >>> loss = lambda w, i: 0.5 * w**2
      >>> float(adapt(loss, 1.0, lambda g: 0.5 * g, num_steps=2))
      0.25
    """

    def body(phi: PyTree, index: int | Array) -> tuple[PyTree, None]:
        grads = gradient(loss_fn)(phi, index)
        if not second_order:
            grads = jax.lax.stop_gradient(grads)
        return jax.tree.map(lambda p, s: p - s, phi, step(grads)), None

    if remat:
        body = jax.checkpoint(body)
    if unroll or not num_steps:
        for index in range(num_steps):
            params, _ = body(params, index)
        return params
    indices = jnp.arange(num_steps)
    if remat:
        # In about sqrt(n) segments of sqrt(n) steps: parameters are kept where a
        # segment begins, and within one segment at a time.
        size = math.isqrt(num_steps)
        even = num_steps - num_steps % size

        def segment(phi: PyTree, indices: Array) -> tuple[PyTree, None]:
            return jax.lax.scan(body, phi, indices)

        segments = indices[:even].reshape(-1, size)
        params, _ = jax.lax.scan(jax.checkpoint(segment), params, segments)
        indices = indices[even:]
    return jax.lax.scan(body, params, indices)[0] if indices.size else params


def mean_over(function: Callable[[Array], PyTree], keys: Array) -> PyTree:
    """The mean of `function(key)` over keys `[S]`, computed one after the other."""
    total = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(function, keys[0]),
    )

    def add(total: PyTree, key: Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, function(key)), None

    total, _ = jax.lax.scan(add, total, keys)
    return jax.tree.map(lambda leaf: leaf / keys.shape[0], total)
