r"""Meta-Dropout (Lee et al. 2020), Learning to Perturb Latent Features.

A second linear map of the input of each block sets the noise on the output of its
linear map $W h$, before normalization:

$$\tilde a = W h \circ \mathrm{softplus}(\alpha + \epsilon), \quad
  \alpha = V h + b, \quad \epsilon \sim N(0, I).$$

V and b are meta-learned and not adapted. The support set gets noise in the inner loop,
drawn again in every step, also at test time, where the loss of a step is the mean over
several draws; the query set has the gate without noise, $\mathrm{softplus}(\alpha)$.

Differences from the paper: the head gets no noise (the authors' code adds noise to the
logits). If tasks are interpolated at a hidden layer, the noise before that layer is
drawn once per task. Of the support set, only the first draw updates the running
averages.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax import ops
from mlti_jax._internal.checks import check_range
from mlti_jax.backbones import Context
from mlti_jax.backbones._stack import Hook, LinearMap
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.learners._base import Perturbation
from mlti_jax.strategies._base import GRADIENT, Strategy
from mlti_jax.types import Array, PyTree

INITIAL_SPREAD = 0.02  # of V, as in the authors' code; b starts at 0


def metadropout(
    *, samples: int = 1, eval_samples: int = 30, noise: float = 1.0
) -> Strategy:
    """Add learned, input-dependent multiplicative noise to every block.

    Args:
      samples: draws per inner step in training; 1 in the authors' code.
      eval_samples: draws per inner step at test time; 30 in the authors' code.
      noise: standard deviation of epsilon; 1 in the paper.

    Examples:
      >>> metadropout(eval_samples=10).name
      'metadropout'
    """
    check_range("strategy.metadropout.samples", samples, 10_000)
    check_range("strategy.metadropout.eval_samples", eval_samples, 10_000)
    if not 0 <= noise < float("inf"):
        raise InputError(f"metadropout needs noise >= 0, got {noise}")

    def init(learner: Learner, variables: Variables, key: Array, x: PyTree) -> PyTree:
        shapes: dict[int, tuple[int, ...]] = {}

        def record(layer: int, linear: LinearMap) -> Array:
            shapes[layer] = linear.kernel.shape
            return linear.output

        model, state = variables.params["model"], variables.state
        jax.eval_shape(
            lambda x: learner.stack.apply(
                model, state, x, context=Context(hook=record)
            ),
            x,
        )
        if not shapes:
            raise InputError(
                "metadropout needs a network with blocks whose output it can gate, and "
                "this network has none (the blocks of a wrapped module are hidden); "
                "use another strategy, or a network of this package"
            )
        return tuple(
            _noise_network(jax.random.fold_in(key, layer), shapes[layer])
            if layer in shapes
            else {}
            for layer in range(len(learner.stack))
        )

    def perturb(variables: Variables) -> Perturbation:
        own = variables.strategy

        def gated(
            layer: int, linear: LinearMap, epsilon: Array | None = None
        ) -> Array | ops.Gated:
            kernel, bias = own[layer]["kernel"], own[layer]["bias"]
            if epsilon is None:
                epsilon = jnp.zeros(linear.output.shape, kernel.dtype)
            if kernel.ndim != 4 or kernel.dtype != linear.kernel.dtype:
                alpha = linear.apply(kernel) + bias
                return linear.output * jax.nn.softplus(alpha + epsilon)
            # One convolution with both kernels is faster than two.
            both = linear.apply(jnp.concatenate([linear.kernel, kernel], -1))
            return ops.Gated(both, bias, epsilon)

        def support(key: Array) -> Hook:
            def hook(layer: int, linear: LinearMap) -> Array | ops.Gated:
                layer_key = jax.random.fold_in(key, layer)
                drawn = ops.normal(layer_key, linear.output.shape)
                return gated(layer, linear, noise * drawn)

            return hook

        return Perturbation(support, gated, samples, eval_samples)

    return Strategy(name="metadropout", applies_to=GRADIENT, init=init, perturb=perturb)


def _noise_network(key: Array, shape: tuple[int, ...]) -> dict[str, Array]:
    return {
        "kernel": INITIAL_SPREAD * jax.random.truncated_normal(key, -2.0, 2.0, shape),
        "bias": jnp.zeros(shape[-1]),
    }
