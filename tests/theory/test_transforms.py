"""All public functions of `theory` support jit, vmap and grad."""

import jax
import numpy as np
import pytest

from mlti_jax import theory
from tests.support.theory_loops import uneven_data

TASKS, CLASSES = np.array([0, 0, 0, 1, 1, 3]), np.array([0, 0, 1, 1, 1, 2])


def beta_moments(alpha):
    return theory.moments(theory.beta_law(alpha, 2.0, 4))


def heads(name, argument):
    """A function of the heads, and the heads."""
    phi, h, y, _ = uneven_data()
    return lambda phi: getattr(theory, name)(phi, h, y, argument()), phi


def proto(name, argument):
    """A function of the embedding, and the embedding."""
    phi, x, y, prototypes = uneven_data()
    function = getattr(theory, name)
    return lambda theta: function(theta, x, y, prototypes, argument()), phi[0]


def law():
    return theory.beta_law(2.0, num_nodes=6)


def samples():
    return np.random.default_rng(0).normal(size=(len(TASKS), 2))


# A scalar function, and the point at which it is differentiated.
CASES = {
    "beta_law": (lambda a: theory.beta_law(a, num_nodes=6).lam[0], np.float64(1.7)),
    "covariances": (
        lambda x: theory.covariances(x, TASKS, CLASSES, 4, 3).between_tasks[0, 1],
        samples(),
    ),
    "logistic": (lambda u: theory.logistic(u, 1.0), np.float64(0.7)),
    "moments": (lambda a: sum(beta_moments(a)), np.float64(1.7)),
    "partner_weights": (
        lambda x: x[:, 0] @ theory.partner_weights(TASKS, CLASSES, 4, 3),
        samples(),
    ),
    "non_label_sharing_loss": heads("non_label_sharing_loss", law),
    "non_label_sharing_approximation": heads("non_label_sharing_approximation", law),
    "label_sharing_loss": heads("label_sharing_loss", law),
    "label_sharing_approximation": heads("label_sharing_approximation", law),
    "protonet_loss": proto("protonet_loss", law),
    "protonet_approximation": proto("protonet_approximation", law),
}
FUNCTIONS = [name for name in theory.__all__ if name[0].islower()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_of_a_batch_equals_finite_differences(name):
    function, place = CASES[name]
    step = 1e-5
    direction = np.random.default_rng(0).normal(size=np.shape(place))
    with jax.enable_x64(True):
        places = np.stack([place, 1.1 * place])
        shifts = np.array([-step, step])
        values, gradients = jax.jit(jax.vmap(jax.value_and_grad(function)))(places)
        along = jax.vmap(lambda x, t: function(x + t * direction), (None, 0))
        beside = np.asarray(jax.jit(jax.vmap(along, (0, None)))(places, shifts))
        values, gradients = np.asarray(values), np.asarray(gradients)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(np.mean(beside, axis=1), values, rtol=1e-8)
    by_gradient = np.sum(gradients * direction, axis=tuple(range(1, gradients.ndim)))
    differences = (beside[:, 1] - beside[:, 0]) / (2 * step)
    np.testing.assert_allclose(by_gradient, differences, rtol=1e-5, atol=1e-8)


def test_single_precision_is_enough_for_small_data():
    def loss(phi, h, y):
        return theory.non_label_sharing_loss(phi, h, y, theory.beta_law(0.5))

    data = uneven_data()[:3]
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(loss)(*data))
    found = jax.jit(loss)(*data)
    assert (exact.dtype, found.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
