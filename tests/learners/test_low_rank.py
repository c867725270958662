"""Low-rank adaptation of a linear map of few samples."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, learners
from mlti_jax.backbones._stack import LinearMap
from mlti_jax.learners import TaskContext, _low_rank
from mlti_jax.learners._inner_loop import descend
from mlti_jax.learners._low_rank import LowRankKernel, adapt_low_rank
from mlti_jax.learners._update_rules import Factors
from tests.support.tasks import init, make_task

KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(learner, variables, task):
    def loss(params):
        changed = variables.replace(params=params)
        value, aux = learner.loss(changed, task, TaskContext(KEY, True), 0)
        return value, (aux.outputs, aux.outputs_before, aux.state)

    return jax.value_and_grad(loss, has_aux=True)(variables.params)


def full_rank(learner):
    return dataclasses.replace(learner, low_rank=False)


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
        ((1, 3), {"steps": 1}),  # too few for pairs of samples in MetaSGD
        pytest.param((1, 3), {"second_order": False}, marks=pytest.mark.slow),
        pytest.param((1, 3), {"remat": True}, marks=pytest.mark.slow),
    ],
)
def test_low_rank_equals_full_rank(name, adapted, options):
    low_rank, variables, task = make(name, adapted, **options)
    got = value_and_gradient(low_rank, variables, task)
    expected = value_and_gradient(full_rank(low_rank), variables, task)
    chex.assert_trees_all_close(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["maml", "metasgd", "meta_curvature"])
def test_adapt_returns_the_kernel(name):
    low_rank, variables, task = make(name)
    adapted = jax.jit(low_rank.adapt)(variables, task.support, TaskContext(KEY))
    expected = jax.jit(full_rank(low_rank).adapt)(
        variables, task.support, TaskContext(KEY)
    )
    assert (adapted[1]["kernel"] != variables.params["model"][1]["kernel"]).any()
    chex.assert_trees_all_close(adapted, expected, rtol=1e-4, atol=1e-6)
    inputs = (variables, task.support, task.query.x, TaskContext(KEY))
    got = jax.jit(low_rank.predict)(*inputs)
    expected = jax.jit(full_rank(low_rank).predict)(*inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_no_product_of_the_inner_loop_has_the_kernels_shape():
    """Two products of the meta-gradient do in any case: of support and query set."""
    low_rank, variables, task = make("maml", (1, 3))

    def products(learner):
        text = value_and_gradient.lower(learner, variables, task).as_text()
        return len(re.findall(r"dot_general.*-> tensor<(16x7|7x16)xf32>", text))

    assert products(low_rank) == 2
    assert products(full_rank(low_rank)) > 2


@pytest.mark.slow
def test_more_samples_than_inputs_use_full_rank():
    learner, variables, _ = make("maml", (1, 3))
    many = make_task(1, shots=20, shape=(8,))  # 60 samples, 16 inputs
    got = value_and_gradient(learner, variables, many)
    expected = value_and_gradient(full_rank(learner), variables, many)
    chex.assert_trees_all_equal(got, expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_low_rank_kernel_by_hand(weighted):
    rng = np.random.default_rng(0)
    shared, left, total, x = (
        rng.normal(size=shape) for shape in ((4, 3), (2, 4), (2, 3), (5, 4))
    )
    weight = rng.normal(size=(4, 3)) if weighted else None
    adapted_kernel = LowRankKernel(1, shared, Factors(left, None, weight), total)
    change = sum(np.outer(left[n], total[n]) for n in range(2))
    kernel = shared + (change * weight if weighted else change)
    np.testing.assert_allclose(adapted_kernel.kernel(), kernel, rtol=1e-5)
    linear = LinearMap(x @ shared, shared, None, x)
    np.testing.assert_allclose(adapted_kernel.hook(x)(1, linear), x @ kernel, rtol=1e-4)
    np.testing.assert_array_equal(adapted_kernel.hook(x)(0, linear), linear.output)


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

    def loss(params, index, hook):
        return (c * hook(0, LinearMap(None, kernel, None, h))).sum()

    _, adapted_kernel = adapt_low_rank(
        loss,
        (),
        lambda grads: grads,
        functools.partial(descend, second_order=True, remat=False),
        layer=0,
        kernel=kernel,
        h=h,
        factors=factors,
        num_steps=num_steps,
    )
    expected = kernel.copy()
    for _ in range(num_steps):
        for i in range(inputs):
            for o in range(outputs):
                expected[i, o] -= weight[i, o] * sum(
                    h[k, i] * c[k, o] for k in range(n)
                )
    np.testing.assert_allclose(adapted_kernel.kernel(), expected, rtol=1e-4, atol=1e-5)
    linear = LinearMap(x @ kernel, kernel, None, x)
    np.testing.assert_allclose(
        adapted_kernel.hook(x)(0, linear), x @ expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_products_of_pairs_equal_the_kernel(symmetric):
    """Values and first and second derivatives in float64, for tasks under vmap."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, left, total, weight, c, *directions = (
            jnp.asarray(rng.normal(size=shape))
            for shape in (
                *((3, 4, 6), (3, 4, 6), (3, 4, 5), (6, 5), (3, 4, 5)),
                *((3, 4, 6), (3, 4, 6), (3, 4, 5), (6, 5)),
            )
        )

        def gradient(product):
            def loss(x, left, total, weight):
                left = x if symmetric else left
                per_task = jax.vmap(product, (0, 0, 0, None))
                return (c * jnp.tanh(per_task(x, left, total, weight))).sum()

            def along(*args):
                grads = jax.grad(loss, (0, 1, 2, 3))(*args)
                pairs = zip(grads, directions, strict=True)
                return sum((g * d).sum() for g, d in pairs), grads

            arguments = (x, left, total, weight)
            second = jax.grad(along, (0, 1, 2, 3), has_aux=True)
            return jax.jit(second)(*arguments)

        def plain(x, left, total, weight):
            kernel = jnp.zeros_like(weight)
            for row, delta in zip(left, total, strict=True):
                kernel += weight * jnp.outer(row, delta)
            return x @ kernel

        def of(function):
            def product(x, left, total, weight):
                left = x if symmetric else left  # the same array under vmap too
                return function(Factors(left, None, weight), x)(total)

            return product

        expected = gradient(plain)
        for function in (_low_rank._pair_product, _low_rank._product):
            got = gradient(of(function))
            chex.assert_trees_all_close(got, expected, rtol=1e-10, atol=1e-10)


def test_first_order_still_learns_the_matrices():
    learner = learners.meta_curvature(
        backbones.mlp((6, 7)), 3, steps=2, second_order=False
    )
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    _, gradient = value_and_gradient(learner, variables, task)
    kernel = gradient["rule"][0]["kernel"]
    assert all(np.abs(np.asarray(matrix)).max() > 0 for matrix in kernel)
