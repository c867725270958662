"""The inner loop of gradient-based meta-learning, as a pure function (Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mlti_jax._internal import platforms
from mlti_jax.types import Array, PyTree

MAX_UNROLLED = 10  # draws of noise; the time to compile is proportional to it


def adapt(
    loss_fn: Callable[[PyTree, Array], Array],
    params: PyTree,
    step: Callable[[PyTree], PyTree],
    num_steps: int,
    *,
    second_order: bool = True,
    remat: bool = False,
) -> PyTree:
    r"""Run the inner loop $\phi \leftarrow \phi - \mathrm{step}(\nabla L(\phi))$.

    A pure function of the parameters, differentiable through every step.

    Args:
      loss_fn: `(params, i) -> scalar`, the support loss in step i.
      params: initial parameters.
      step: maps a gradient to the update that is subtracted.
      num_steps: number of steps.
      second_order: whether to differentiate through the inner gradients; if not, they
        are treated as constants (first-order MAML).
      remat: whether to recompute the intermediates of each step in the outer backward
        pass instead of storing them: less memory, more time, the same result. For n
        steps, the parameters of about $2\sqrt n$ steps are stored.

    Returns:
      The adapted parameters.

    Examples:
      >>> loss = lambda w, i: 0.5 * w**2
      >>> float(adapt(loss, 1.0, lambda g: 0.5 * g, num_steps=2))
      0.25
    """
    return descend(jax.grad(loss_fn), params, step, num_steps, second_order, remat)


def descend(
    gradient: Callable[[PyTree, Array], PyTree],
    params: PyTree,
    step: Callable[[PyTree], PyTree],
    num_steps: int,
    second_order: bool,
    remat: bool,
) -> PyTree:
    """Run the loop of `adapt` with `gradient`, `(params, i) -> input of step`."""

    def body(phi: PyTree, index: Array) -> tuple[PyTree, None]:
        grads = gradient(phi, index)
        if not second_order:
            grads = jax.lax.stop_gradient(grads)
        return jax.tree.map(lambda p, s: p - s, phi, step(grads)), None

    if not num_steps:
        return params
    indices = jnp.arange(num_steps)
    if remat:
        # About sqrt(n) segments of sqrt(n) steps: parameters are stored at the start
        # of every segment, and within one segment at a time.
        body = jax.checkpoint(body)
        size = math.isqrt(num_steps)
        even = num_steps - num_steps % size

        def segment(phi: PyTree, indices: Array) -> tuple[PyTree, None]:
            return jax.lax.scan(body, phi, indices)

        segments = indices[:even].reshape(-1, size)
        params, _ = jax.lax.scan(jax.checkpoint(segment), params, segments)
        indices = indices[even:]
    return jax.lax.scan(body, params, indices)[0] if indices.size else params


def mean_over(function: Callable[[Array], PyTree], keys: Array) -> PyTree:
    """Average `function(key)` over keys `[S]`, computed one after the other."""
    total = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(function, keys[0]),
    )

    def add(total: PyTree, key: Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, function(key)), None

    total, _ = jax.lax.scan(add, total, keys)
    return jax.tree.map(lambda leaf: leaf / keys.shape[0], total)


def map_draws(
    function: Callable[[Array], PyTree], keys: Array, together: bool
) -> PyTree:
    """Compute `function(key)` for keys `[T, S]`; leaves become `[T, S, ...]`.

    Native kernels compute all draws together: these are more images for a convolution,
    and gates add up their derivatives in the cache. Without them, few draws are
    computed one after the other on CPU, without a loop. Each of them stays in the
    cache, and derivatives by what all draws share are sums of separate arrays, which
    takes half the time of XLA's sums over an axis of draws.

    Args:
      function: of one key.
      keys: of all draws.
      together: whether native kernels compute the function.
    """
    one_by_one = keys.size <= MAX_UNROLLED and platforms.target() == "cpu"
    if together or not one_by_one:
        return jax.vmap(jax.vmap(function))(keys)
    outputs = [function(key) for key in keys.reshape(-1)]
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves).reshape(*keys.shape, *leaves[0].shape),
        *outputs,
    )
