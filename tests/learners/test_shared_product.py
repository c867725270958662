"""Elementwise product of a shared matrix with a matrix of each task."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax.learners import _shared_product
from mlti_jax.learners._shared_product import shared_product


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def derivatives(product, axes):
    """Value, gradient, and the derivative of the gradient in forward mode."""

    def loss(shared, x):
        y = product
        for in_axes in axes:
            y = jax.vmap(y, in_axes)
        return jnp.sin(y(shared, x)).sum()

    def run(shared, x):
        gradient = jax.grad(loss, (0, 1))
        return loss(shared, x), *jax.jvp(gradient, (shared, x), (x.sum() * shared, x))

    return jax.jit(run)


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        ((), ((2, 3), (2, 3))),
        (((None, 0),), ((2, 3), (5, 2, 3))),
        (((None, 1),), ((2, 3), (2, 5, 3))),
        (((0, None),), ((5, 2, 3), (2, 3))),
        (((0, 0),), ((5, 2, 3), (5, 2, 3))),
        (((None, 0), (None, 0)), ((2, 3), (4, 5, 2, 3))),
        (((None, 0), (0, 0)), ((4, 2, 3), (4, 5, 2, 3))),
    ],
)
@pytest.mark.parametrize("terms", [32, 1])
def test_equals_the_product_with_all_derivatives(axes, shapes, terms, monkeypatch):
    monkeypatch.setattr(_shared_product, "_MAX_TERMS", terms)
    with jax.enable_x64(True):
        inputs = arrays(*shapes)
        got = derivatives(shared_product, axes)(*inputs)
        expected = derivatives(jnp.multiply, axes)(*inputs)
        chex.assert_trees_all_close(got, expected, rtol=1e-10, atol=1e-10)


def test_gradient_of_the_shared_matrix_by_hand():
    shared, x, c = arrays((2, 3), (4, 2, 3), (4, 2, 3))
    gradient = jax.grad(
        lambda a: (c * jax.vmap(shared_product, (None, 0))(a, x)).sum()
    )(shared)
    expected = sum(np.asarray(c)[g] * np.asarray(x)[g] for g in range(4))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_without_jit():
    shared, x = arrays((2, 3), (2, 3))
    np.testing.assert_allclose(shared_product(shared, x), shared * x, rtol=1e-6)
