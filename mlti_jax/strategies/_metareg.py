r"""Meta-Reg (Yin et al. 2020), Meta-Learning without Memorization, on weights.

The weights that tasks share, and that could memorise them, are Gaussian,
:math:`q(\theta) = N(\mu, \mathrm{diag}(\sigma^2))`, and pay for what they know:

.. math:: \mathcal{L} + \beta\, \mathrm{KL}(q(\theta) \,\|\, N(0, I)), \qquad
   \mathrm{KL} = \tfrac12 \sum_w (\sigma_w^2 + \mu_w^2 - 1 - \log \sigma_w^2).

Their draw is reparameterised, :math:`\theta = \mu + \sigma \epsilon` with
:math:`\sigma = \mathrm{softplus}(\rho)`, one for all tasks of a meta-batch; the mean
serves at test time. Biases and batch-norm's scale and offset stay as they are.

Departures: the released code draws support's and query's weights apart, draws at test
time too, and begins with less noise (see `initial_rho`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy
from mlti_jax.types import Array, PyTree

NOT_GAUSSIAN = ("bias", "scale", "offset")


SMALLEST_RHO = -80.0  # below, softplus is 0 in single precision


def metareg(*, beta: float = 1e-3, initial_rho: float = -5.0) -> Strategy:
    """Gaussian weights in the layers that are not adapted.

    Args:
      beta: weight of the KL term; 1e-3 in the authors' code for Pose.
      initial_rho: where rho begins, at least -80, which is no noise. The authors' code
        has -20, next to no noise, and moves it by up to 60 in training (30,000 steps
        of 0.002). With 10,000 steps of 0.001 it would stay at next to none.
    """
    if not 0 <= beta < float("inf") or not SMALLEST_RHO <= initial_rho < float("inf"):
        raise InputError(
            f"metareg needs a finite beta >= 0 and initial_rho >= {SMALLEST_RHO}, got "
            f"{beta} and {initial_rho}"
        )

    def init(learner, variables, key, x):
        del key, x
        shared = variables.params["model"][: learner.shared_layers]
        rho = tuple(_spreads(layer, initial_rho) for layer in shared)
        if not jax.tree.leaves(rho):
            raise InputError(
                "metareg acts on the weights that the inner loop does not adapt, and "
                "here there are none; adapt fewer layers (learner.*.adapted_layers)"
            )
        return rho

    def sample(variables, key):
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

    def penalty(variables, losses, aux):
        del losses, aux
        means = [
            mean
            for layer, rho in zip(
                variables.params["model"], variables.strategy, strict=False
            )
            for mean in jax.tree.leaves(_like(layer, rho))
        ]
        spreads = [jax.nn.softplus(rho) for rho in jax.tree.leaves(variables.strategy)]
        return beta * sum(map(kl_to_standard_normal, means, spreads))

    return Strategy(
        name="metareg",
        init=init,
        sample=sample,
        penalty=penalty if beta > 0 else None,
    )


def kl_to_standard_normal(mean: Array, spread: Array) -> Array:
    r""":math:`\frac12 \sum (\sigma^2 + \mu^2 - 1 - \log\sigma^2)`, over all entries."""
    return 0.5 * jnp.sum(spread**2 + mean**2 - 1 - 2 * jnp.log(spread))


def _is_gaussian(name: str) -> bool:
    return not name.endswith(NOT_GAUSSIAN)


def _spreads(params: dict, initial: float) -> dict:
    """A tree of rho for the weights of a layer, without those that stay as they are."""
    return {
        name: _spreads(value, initial)
        if isinstance(value, dict)
        else jnp.full(value.shape, initial, value.dtype)
        for name, value in params.items()
        if isinstance(value, dict) or _is_gaussian(name)
    }


def _like(params: dict, part: dict) -> PyTree:
    """The entries of `params` that `part` has."""
    return {
        name: _like(params[name], value) if isinstance(value, dict) else params[name]
        for name, value in part.items()
    }


def _add(params: dict, part: dict) -> dict:
    """`params`, with `part` added where it has entries."""
    return {
        name: value
        if name not in part
        else _add(value, part[name])
        if isinstance(value, dict)
        else value + part[name]
        for name, value in params.items()
    }
