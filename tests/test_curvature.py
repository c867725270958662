"""Meta-Curvature's short way through linear maps, against the long one."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from conftest import init, make_task

from mlti_jax import backbones, learners, strategies

KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnums=(0, 3))
def value_and_gradient(learner, variables, task, noisy=False):
    noise = {}
    if noisy:
        noise = strategies.perturbation(strategies.metadropout(), variables)

    def loss(params):
        changed = variables.replace(params=params)
        return learner.loss(changed, task, KEY, 0, True, **noise)[0]

    return jax.value_and_grad(loss)(variables.params)


@pytest.mark.parametrize(
    ("adapted", "noisy"), [((1, 2, 3), False), ((1, 3), False), ((1, 2, 3), True)]
)
def test_displacements_give_the_steps_of_transformed_gradients(adapted, noisy):
    short = learners.meta_curvature(
        backbones.mlp((6, 7, 5)),
        3,
        adapted_layers=adapted,
        inner_learning_rate=0.1,
        steps=3,
    )
    long = dataclasses.replace(short, rule=short.rule._replace(displaced=None))
    task = make_task(1, shape=(8,))
    variables = init(short, KEY, task.support.x)
    if noisy:
        own = strategies.metadropout().init(short, variables, KEY, task.support.x)
        variables = variables.replace(strategy=own)
    # Away from identity, where a transposed matrix would not be noticed.
    rng = np.random.default_rng(0)
    params = {
        **variables.params,
        "rule": jax.tree.map(
            lambda a: a + 0.3 * rng.normal(size=a.shape).astype(np.float32),
            variables.params["rule"],
        ),
    }
    variables = variables.replace(params=params)
    got = value_and_gradient(short, variables, task, noisy)
    expected = value_and_gradient(long, variables, task, noisy)
    chex.assert_trees_all_close(got, expected, rtol=1e-3, atol=1e-5)


def test_first_order_still_learns_the_matrices():
    learner = learners.meta_curvature(
        backbones.mlp((6, 7)), 3, steps=2, second_order=False
    )
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    _, gradient = value_and_gradient(learner, variables, task)
    kernel = gradient["rule"][0]["kernel"]
    assert all(np.abs(np.asarray(matrix)).max() > 0 for matrix in kernel)
