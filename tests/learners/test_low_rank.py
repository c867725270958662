"""The inner loop's short way through a linear map of few samples."""

import dataclasses
import functools
import re

import chex
import jax
import numpy as np
import pytest

from mlti_jax import backbones, learners
from mlti_jax.learners._low_rank import Displaced, LowRank
from mlti_jax.learners._update_rules import Factors
from tests.support.tasks import init, make_task

KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(learner, variables, task):
    def loss(params):
        changed = variables.replace(params=params)
        value, aux = learner.loss(changed, task, KEY, 0, True)
        return value, (aux.outputs, aux.outputs_before, aux.state)

    return jax.value_and_grad(loss, has_aux=True)(variables.params)


def long_way(learner):
    return dataclasses.replace(learner, short_way=False)


def away_from_identity(variables):
    """Where a transposed matrix would be noticed."""
    rng = np.random.default_rng(0)

    def move(a):
        return a + 0.3 * rng.normal(size=a.shape).astype(np.float32)

    params = variables.params
    rule = jax.tree.map(move, params["rule"])
    return variables.replace(params={**params, "rule": rule})


def make(name, adapted=(1, 2, 3), steps=3, **options):
    learner = getattr(learners, name)(
        backbones.mlp((16, 7, 5)),
        3,
        adapted_layers=adapted,
        inner_learning_rate=0.1,
        steps=steps,
        **options,
    )
    task = make_task(1, shape=(8,))
    return learner, away_from_identity(init(learner, KEY, task.support.x)), task


@pytest.mark.parametrize("name", ["maml", "metasgd", "meta_curvature"])
@pytest.mark.parametrize(
    ("adapted", "options"),
    [
        ((1, 2, 3), {}),
        pytest.param((1, 3), {}, marks=pytest.mark.slow),
        pytest.param((0, 1, 2, 3), {}, marks=pytest.mark.slow),
        ((1, 3), {"steps": 1}),  # with so few, MetaSGD does without pairs of samples
        pytest.param((1, 3), {"second_order": False}, marks=pytest.mark.slow),
        pytest.param((1, 3), {"unroll": False, "remat": True}, marks=pytest.mark.slow),
    ],
)
def test_it_gives_what_the_long_way_gives(name, adapted, options):
    short, variables, task = make(name, adapted, **options)
    got = value_and_gradient(short, variables, task)
    expected = value_and_gradient(long_way(short), variables, task)
    chex.assert_trees_all_close(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["maml", "metasgd", "meta_curvature"])
def test_adapt_returns_the_kernel_itself(name):
    short, variables, task = make(name)
    adapted = jax.jit(short.adapt)(variables, task.support, KEY)
    expected = jax.jit(long_way(short).adapt)(variables, task.support, KEY)
    assert (adapted[1]["kernel"] != variables.params["model"][1]["kernel"]).any()
    chex.assert_trees_all_close(adapted, expected, rtol=1e-4, atol=1e-6)
    got = jax.jit(short.predict)(variables, task.support, task.query.x, KEY)
    long = jax.jit(long_way(short).predict)(variables, task.support, task.query.x, KEY)
    np.testing.assert_allclose(got, long, rtol=1e-4, atol=1e-5)


def test_no_product_of_the_inner_loop_has_the_kernels_shape():
    """Two of the meta-gradient do, by support and by query set, in any case."""
    short, variables, task = make("maml", (1, 3), unroll=True)

    def products(learner):
        text = value_and_gradient.lower(learner, variables, task).as_text()
        return len(re.findall(r"dot_general.*-> tensor<(16x7|7x16)xf32>", text))

    assert products(short) == 2
    assert products(long_way(short)) > 2 + short.steps


def test_more_samples_than_inputs_go_the_long_way():
    learner, variables, _ = make("maml", (1, 3))
    many = make_task(1, shots=20, shape=(8,))  # 60 samples, 16 inputs
    got = value_and_gradient(learner, variables, many)
    expected = value_and_gradient(long_way(learner), variables, many)
    chex.assert_trees_all_equal(got, expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_displaced_kernel_by_hand(weighted):
    rng = np.random.default_rng(0)
    shared, left, total, x = (
        rng.normal(size=shape) for shape in ((4, 3), (2, 4), (2, 3), (5, 4))
    )
    weight = rng.normal(size=(4, 3)) if weighted else None
    displaced = Displaced(1, shared, Factors(left, None, weight), total)
    change = sum(np.outer(left[n], total[n]) for n in range(2))
    kernel = shared + (change * weight if weighted else change)
    np.testing.assert_allclose(displaced.kernel(), kernel, rtol=1e-5)
    linear = backbones.LinearMap(x @ shared, shared, None, x)
    np.testing.assert_allclose(displaced.hook(x)(1, linear), x @ kernel, rtol=1e-4)
    np.testing.assert_array_equal(displaced.hook(x)(0, linear), linear.output)


@pytest.mark.parametrize("num_steps", [1, 2])  # without and with pairs of samples
def test_weighted_steps_by_hand(num_steps):
    """With the loss sum(c * h W), each step subtracts A * h^T c from the kernel."""
    rng = np.random.default_rng(0)
    n, inputs, outputs = 4, 6, 3
    h, kernel, weight, c, x = (
        rng.normal(size=shape).astype(np.float32)
        for shape in (
            (n, inputs),
            (inputs, outputs),
            (inputs, outputs),
            (n, outputs),
            (5, inputs),
        )
    )
    factors = Factors(h, lambda delta: delta, weight)

    def loss(params, hook, index):
        return (c * hook(0, backbones.LinearMap(None, kernel, None, h))).sum()

    loop = functools.partial(learners.adapt, num_steps=num_steps)
    _, displaced = LowRank(0, kernel, h, factors, num_steps).adapt(
        loss, (), lambda grads: grads, loop
    )
    expected = kernel.copy()
    for _ in range(num_steps):
        for i in range(inputs):
            for o in range(outputs):
                expected[i, o] -= weight[i, o] * sum(
                    h[k, i] * c[k, o] for k in range(n)
                )
    np.testing.assert_allclose(displaced.kernel(), expected, rtol=1e-4, atol=1e-5)
    linear = backbones.LinearMap(x @ kernel, kernel, None, x)
    np.testing.assert_allclose(
        displaced.hook(x)(0, linear), x @ expected, rtol=1e-4, atol=1e-4
    )


def test_first_order_still_learns_the_matrices():
    learner = learners.meta_curvature(
        backbones.mlp((6, 7)), 3, steps=2, second_order=False
    )
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    _, gradient = value_and_gradient(learner, variables, task)
    kernel = gradient["rule"][0]["kernel"]
    assert all(np.abs(np.asarray(matrix)).max() > 0 for matrix in kernel)
