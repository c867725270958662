"""Meta-Reg: weights drawn around their means, and the divergence that it adds."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.strategies._metareg import kl_to_standard_normal
from mlti_jax.training import Episode, Evaluator
from tests.support.regulariser_cases import maml, start, tasks  # noqa: F401
from tests.support.tasks import KEY, objective


def test_kl_equals_the_closed_form_and_a_monte_carlo_estimate():
    rng = np.random.default_rng(0)
    mean, spread = rng.normal(size=5), rng.uniform(0.2, 1.5, size=5)
    kl = float(kl_to_standard_normal(jnp.asarray(mean), jnp.asarray(spread)))
    by_hand = sum(
        0.5 * (s * s + m * m - 1 - np.log(s * s))
        for m, s in zip(mean, spread, strict=True)
    )
    np.testing.assert_allclose(kl, by_hand, rtol=1e-5)
    w = mean + spread * rng.normal(size=(400_000, 5))
    log_q = -0.5 * ((w - mean) / spread) ** 2 - np.log(spread)
    estimate = (log_q + 0.5 * w**2).sum(1)
    error = 4 * estimate.std() / np.sqrt(len(estimate))
    assert abs(estimate.mean() - kl) < error
    assert kl_to_standard_normal(jnp.zeros(3), jnp.ones(3)) == 0


def test_metareg_draws_one_set_of_shared_weights(maml, tasks):
    strategy = strategies.metareg(initial_rho=-1.0)
    variables = start(maml, strategy, tasks.support.x[0])
    drawn = strategy.sample(variables, KEY)
    before, after = variables.params["model"], drawn.params["model"]
    # Only the kernel of the one layer that is not adapted.
    assert (np.asarray(after[0]["kernel"] != before[0]["kernel"])).all()
    chex.assert_trees_all_equal(after[0]["norm"], before[0]["norm"])
    chex.assert_trees_all_equal(after[1:], before[1:])
    draws = jax.vmap(lambda k: strategy.sample(variables, k).params["model"][0])(
        jax.random.split(KEY, 4000)
    )["kernel"]
    sigma = np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(draws.mean(0), before[0]["kernel"], atol=5 * sigma / 63)
    np.testing.assert_allclose(np.std(draws, axis=0), sigma, rtol=0.06)


def test_metareg_adds_the_kl_of_the_means_not_of_the_draw(maml, tasks):
    strategy = strategies.metareg(beta=0.01, initial_rho=-1.0)
    variables = start(maml, strategy, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks)
    without, _ = objective(maml, strategy._replace(penalty=None), variables, tasks)
    mean = np.asarray(variables.params["model"][0]["kernel"], np.float64)
    sigma = np.log1p(np.exp(-1.0))
    kl = 0.5 * (sigma**2 + mean**2 - 1 - 2 * np.log(sigma)).sum()
    np.testing.assert_allclose(loss - without, 0.01 * kl, rtol=1e-4)


def test_metareg_without_strength_is_vanilla_exactly(maml, tasks):
    strategy = strategies.metareg(beta=0.0, initial_rho=-80.0)
    variables = start(maml, strategy, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks)
    plain = variables.replace(strategy=())
    vanilla, _ = objective(maml, strategies.vanilla(), plain, tasks)
    assert loss == vanilla


def test_metareg_learns_its_spreads(maml, tasks):
    strategy = strategies.metareg(initial_rho=-1.0)
    variables = start(maml, strategy, tasks.support.x[0])

    @jax.jit
    @jax.grad
    def gradient(own):
        return objective(maml, strategy, variables.replace(strategy=own), tasks)[0]

    grads = jax.tree.leaves(gradient(variables.strategy))
    assert len(grads) == 1
    assert np.abs(np.asarray(grads[0])).min() > 0


def test_metareg_evaluates_with_the_means(maml, tasks):
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(3), 10)
    x = rng.normal(size=(30, 5)).astype(np.float32) + label[:, None]
    pool = data.DomainPool.from_arrays(x, np.zeros(30, int), label)
    strategy = strategies.metareg(initial_rho=1.0)  # noise that would be seen
    variables = start(maml, strategy, tasks.support.x[0])
    values = [
        Evaluator(maml, s, Episode(3, 2, 4))(v, pool, KEY, 8)
        for s, v in (
            (strategy, variables),
            (strategies.vanilla(), variables.replace(strategy=())),
        )
    ]
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("rho", [-80.0, -20.0, 3.0])
def test_metareg_is_finite_wherever_rho_begins(maml, tasks, rho):
    strategy = strategies.metareg(initial_rho=rho)
    variables = start(maml, strategy, tasks.support.x[0])
    penalty = lambda own: strategy.penalty(  # noqa: E731
        variables.replace(strategy=own), None
    )
    value, gradient = jax.value_and_grad(penalty)(variables.strategy)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    "options", [{"beta": -1.0}, {"beta": np.inf}, {"initial_rho": -81.0}]
)
def test_metareg_refuses_wrong_options(options):
    with pytest.raises(InputError, match="metareg needs"):
        strategies.metareg(**options)


def test_metareg_refuses_a_learner_that_shares_nothing(tasks):
    everything = learners.maml(backbones.mlp((6, 7)), 3, adapted_layers=(0, 1, 2))
    with pytest.raises(InputError, match="adapts all of them"):
        strategies.init_variables(
            everything, strategies.metareg(), KEY, tasks.support.x[0]
        )
