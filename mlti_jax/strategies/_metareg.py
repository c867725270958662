r"""Meta-Reg (Yin et al. 2020), Meta-Learning without Memorization, on weights.

The weights that tasks share, which could memorize them, are Gaussian,
$q(\theta) = N(\mu, \mathrm{diag}(\sigma^2))$, with a penalty on their information:

$$L + \beta\, \mathrm{KL}(q(\theta) \,\|\, N(0, I)), \qquad
  \mathrm{KL} = \tfrac12 \sum_w (\sigma_w^2 + \mu_w^2 - 1 - \log \sigma_w^2).$$

Weights are drawn with the reparameterization $\theta = \mu + \sigma \epsilon$,
$\sigma = \mathrm{softplus}(\rho)$, once per meta-batch; the mean is used at test time.
Biases and the scale and offset of batch-norm are not Gaussian.

Differences from the released code: it draws the weights for support and query
separately, also draws at test time, and starts with less noise (see `initial_rho`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Learner, Variables
from mlti_jax.strategies._base import GRADIENT, Strategy
from mlti_jax.types import Array, PyTree

NOT_GAUSSIAN = ("bias", "scale", "offset")


SMALLEST_RHO = -80.0  # softplus of less is 0 in single precision


def metareg(*, beta: float = 1e-3, initial_rho: float = -5.0) -> Strategy:
    """Make the weights of the layers that are not adapted Gaussian.

    Args:
      beta: weight of the KL term; 1e-3 in the authors' code for Pose.
      initial_rho: initial value of rho, at least -80 (no noise). The authors' code
        starts at -20, almost no noise, and training moves it by up to 60 (30,000 steps
        of 0.002). With 10,000 steps of 0.001 it would stay close to no noise.

    Examples:
      >>> sorted(metareg(beta=1e-4).applies_to)
      ['gradient']
    """
    if not 0 <= beta < float("inf") or not SMALLEST_RHO <= initial_rho < float("inf"):
        raise InputError(
            f"metareg needs a finite beta >= 0 and initial_rho >= {SMALLEST_RHO}, got "
            f"{beta} and {initial_rho}"
        )

    def init(learner: Learner, variables: Variables, key: Array, x: PyTree) -> PyTree:
        del key, x
        shared = variables.params["model"][: learner.shared_layers]
        rho = tuple(_spreads(layer, initial_rho) for layer in shared)
        if not jax.tree.leaves(rho):
            raise InputError(
                "metareg regularizes the weights that the inner loop does not adapt, "
                "and this learner adapts all of them; adapt fewer layers "
                "(learner.*.adapted_layers). A wrapped module is one layer"
            )
        return rho

    def sample(variables: Variables, key: Array) -> Variables:
        model = variables.params["model"]
        rho = variables.strategy
        leaves, structure = jax.tree.flatten(rho)
        keys = jax.random.split(key, len(leaves))
        noise = [
            jax.nn.softplus(leaf) * jax.random.normal(k, leaf.shape)
            for leaf, k in zip(leaves, keys, strict=True)
        ]
        noise = jax.tree.unflatten(structure, noise)
        shared = tuple(_add(m, n) for m, n in zip(model, noise, strict=False))
        params = {**variables.params, "model": (*shared, *model[len(rho) :])}
        return variables.replace(params=params)

    def penalty(variables: Variables, aux: Aux) -> Array:
        del aux
        means = [
            mean
            for layer, rho in zip(
                variables.params["model"], variables.strategy, strict=False
            )
            for mean in jax.tree.leaves(_like(layer, rho))
        ]
        spreads = [jax.nn.softplus(rho) for rho in jax.tree.leaves(variables.strategy)]
        terms = map(kl_to_standard_normal, means, spreads)
        return beta * sum(terms, start=jnp.zeros(()))

    return Strategy(
        name="metareg",
        applies_to=GRADIENT,
        init=init,
        sample=sample,
        penalty=penalty if beta > 0 else None,
    )


def kl_to_standard_normal(mean: Array, spread: Array) -> Array:
    r"""Sum $\frac12 (\sigma^2 + \mu^2 - 1 - \log\sigma^2)$ over all entries."""
    return 0.5 * jnp.sum(spread**2 + mean**2 - 1 - 2 * jnp.log(spread))


def _spreads(params: PyTree, initial: float) -> PyTree:
    """Build a tree of rho for the Gaussian weights of a layer; None for others."""

    def spread(path: tuple, value: Array) -> Array | None:
        name = jax.tree_util.keystr(path[-1:], simple=True)
        if name.endswith(NOT_GAUSSIAN):
            return None
        return jnp.full(value.shape, initial, value.dtype)

    return jax.tree_util.tree_map_with_path(spread, params)


def _like(params: PyTree, part: PyTree) -> PyTree:
    """Select the entries of `params` that are not None in `part`."""
    return _map_part(lambda part, value: None if part is None else value, part, params)


def _add(params: PyTree, part: PyTree) -> PyTree:
    """Add `part` to the entries of `params` where it is not None."""
    return _map_part(
        lambda part, value: value if part is None else value + part, part, params
    )


def _map_part(function: Callable, part: PyTree, params: PyTree) -> PyTree:
    return jax.tree.map(function, part, params, is_leaf=lambda node: node is None)
