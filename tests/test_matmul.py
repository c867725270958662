"""Matrix product with a fast gradient of the kernel."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax.ops import matmul


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def derivatives(product, axes):
    """Value, gradient, and the derivative of the gradient in both modes."""

    def loss(x, kernel):
        y = product
        for in_axes in axes:
            y = jax.vmap(y, in_axes)
        return jnp.sin(y(x, kernel)).sum()

    gradient = jax.grad(loss, (0, 1))

    def squared(x, kernel):
        return sum(jnp.sum(g**2) for g in gradient(x, kernel))

    def run(x, kernel):
        forward = jax.jvp(gradient, (x, kernel), (x.sum() * x, kernel))
        return loss(x, kernel), *forward, jax.grad(squared, (0, 1))(x, kernel)

    return jax.jit(run)


# Few outputs and few inputs: the gradient of the kernel has one form for each.
@pytest.mark.parametrize(("samples", "inputs", "outputs"), [(5, 9, 2), (5, 2, 9)])
@pytest.mark.parametrize(
    ("axes", "x_shape", "kernel_shape"),
    [
        ((), (), ()),
        (((0, None),), (3,), ()),
        (((1, None),), "second", ()),
        (((None, 0),), (), (3,)),
        (((0, 0),), (3,), (3,)),
        (((0, None), (0, None)), (4, 3), ()),
        (((0, None), (0, 0)), (4, 3), (4,)),
        (((0, 0), (0, None)), (4, 3), (3,)),
    ],
)
def test_equals_the_product_with_all_derivatives(
    axes, x_shape, kernel_shape, samples, inputs, outputs
):
    own = (samples, 3, inputs) if x_shape == "second" else (*x_shape, samples, inputs)
    with jax.enable_x64(True):
        operands = arrays(own, (*kernel_shape, inputs, outputs))
        got = derivatives(matmul, axes)(*operands)
        expected = derivatives(jnp.matmul, axes)(*operands)
        chex.assert_trees_all_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("outputs", [2, 9])
def test_gradient_of_a_shared_kernel_by_hand(outputs):
    with jax.enable_x64(True):
        x, kernel, y = arrays((4, 5, 3), (3, outputs), (4, 5, outputs))
        gradient = jax.grad(lambda k: (y * jax.vmap(matmul, (0, None))(x, k)).sum())(
            kernel
        )
    expected = sum(
        np.outer(np.asarray(x)[g, n], np.asarray(y)[g, n])
        for g in range(4)
        for n in range(5)
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-10)


def test_dtypes_are_promoted():
    x, kernel = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4))
    assert matmul(x, kernel).dtype == jnp.float32


def test_without_jit():
    x, kernel = arrays((5, 3), (3, 2))
    expected = np.asarray(x) @ np.asarray(kernel)
    np.testing.assert_allclose(matmul(x, kernel), expected, rtol=1e-5)


def test_ranks_are_checked():
    with pytest.raises(AssertionError):
        matmul(jnp.ones(3), jnp.ones((3, 2)))
