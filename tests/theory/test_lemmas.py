"""The corrected lemmas: losses and approximations against NumPy loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from mlti_jax import theory
from tests.support.theory_loops import (
    PAIRS,
    bounded,
    jacobi_points,
    logistic,
    loop_approximation,
    loop_loss,
    program,
    psi,
    slope,
    uneven_data,
)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def jax_bounded(score, label):
    """The loss printed in Lemma 2."""
    return jax.nn.sigmoid(-score)


# ----------------------------------------------------------------------- law of lambda


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_quadrature_equals_scipys(alpha, beta):
    law = program(theory.beta_law, num_nodes=12)(alpha, beta)
    points, probability = jacobi_points(alpha, beta, 12)
    np.testing.assert_allclose(law.lam, points, atol=1e-12)
    np.testing.assert_allclose(law.probability, probability, atol=1e-12)
    known = scipy.stats.beta(alpha, beta)
    mean, variance, partner = program(theory.moments)(law)
    np.testing.assert_allclose(mean, known.mean(), rtol=1e-12)
    np.testing.assert_allclose(variance, known.var(), rtol=1e-11)
    np.testing.assert_allclose(partner, known.var() + (1 - known.mean()) ** 2)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.inf])
def test_invalid_parameters_raise(alpha):
    with pytest.raises(ValueError, match="positive"):
        theory.beta_law(alpha)


# --------------------------------------------------- losses and formulas by NumPy loops

NODES = 10  # for the losses too: sums over the same points agree to the last digits


@pytest.fixture
def laws():
    """Beta(3, 3/2), here and from SciPy."""
    return theory.beta_law(3.0, 1.5, NODES), jacobi_points(3.0, 1.5, NODES)


def test_lemma_1_equals_loops(laws):
    law, points = laws
    data = phi, h, y = uneven_data()[:3]
    for by_class in (True, False):
        np.testing.assert_allclose(
            program(theory.non_label_sharing_loss, by_class=by_class)(*data, law),
            loop_loss(logistic, phi, h, y, points, by_class),
            rtol=1e-11,
        )
        np.testing.assert_allclose(
            program(theory.non_label_sharing_approximation, by_class=by_class)(
                *data, law
            ),
            loop_approximation(logistic, psi, phi, h, y, points, by_class),
            rtol=1e-11,
        )


def test_lemma_4_equals_loops(laws):
    law, points = laws
    data = phi, h, y = uneven_data(1)[:3]
    np.testing.assert_allclose(
        program(theory.label_sharing_loss)(*data, law),
        loop_loss(logistic, phi, h, y, points, False, mixed_labels=True),
        rtol=1e-11,
    )


def test_lemma_4_has_the_terms_of_its_docstring(laws):
    law, (lam, p) = laws
    data = phi, h, y = uneven_data(2)[:3]
    mean, variance = p @ lam, p @ lam**2 - (p @ lam) ** 2
    every, label_mean, mu = h.reshape(-1, 2), y.mean(), h.mean(axis=(0, 1))
    covariance = (every - mu).T @ (y.reshape(-1) - label_mean) / y.size

    def smoothed(u, label):
        return logistic(u, mean * label + (1 - mean) * label_mean)

    expected = loop_approximation(smoothed, psi, phi, h, y, (lam, p), False)
    for i in range(len(h)):
        own = variance * (h[i] - mu) @ phi[i] * (y[i] - label_mean)
        partner = p @ (1 - lam) ** 2 * phi[i] @ covariance
        expected -= (own.sum() + len(own) * partner) / y.size
    found = program(theory.label_sharing_approximation)(*data, law)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("loss", "by_numpy", "curvature"),
    [
        (jax_bounded, bounded, lambda z: psi(z) * np.tanh(z / 2)),
        (theory.logistic, logistic, psi),
    ],
)
def test_lemma_2_equals_loops(laws, loss, by_numpy, curvature):
    law, points = laws
    phi, x, y, prototypes = uneven_data(3)
    data, heads = (phi[0], x, y, prototypes), np.tile(phi[0], (3, 1))
    relative = np.stack([x[i] - (c[0] + c[1]) / 2 for i, c in enumerate(prototypes)])
    np.testing.assert_allclose(
        program(theory.protonet_loss, loss=loss)(*data, law),
        loop_loss(by_numpy, heads, relative, y, points, True),
        rtol=1e-11,
    )
    np.testing.assert_allclose(
        program(theory.protonet_approximation, loss=loss)(*data, law),
        loop_approximation(by_numpy, curvature, heads, relative, y, points, True),
        rtol=1e-11,
    )


def test_lemma_2_with_the_logistic_loss_is_lemma_1():
    phi, x, y, prototypes = uneven_data(5)
    law, heads = theory.beta_law(2.0), np.tile(phi[0], (3, 1))
    relative = np.stack([x[i] - (c[0] + c[1]) / 2 for i, c in enumerate(prototypes)])
    for metric, gradient in (
        (theory.protonet_loss, theory.non_label_sharing_loss),
        (theory.protonet_approximation, theory.non_label_sharing_approximation),
    ):
        found = program(metric)(phi[0], x, y, prototypes, law)
        expected = program(gradient)(heads, relative, y, law)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_regression_is_exact_to_second_order():
    rng = np.random.default_rng(0)
    data = tuple(rng.normal(size=size) for size in ((3, 2), (3, 4, 2), (3, 4)))

    def squared(u, y):
        return (u - y) ** 2

    points = jacobi_points(0.5, 0.5, 5)
    expected = loop_loss(squared, *data, points, False, mixed_labels=True)
    law = theory.beta_law(0.5)
    for function in (theory.label_sharing_loss, theory.label_sharing_approximation):
        found = program(function, loss=squared)(*data, law)
        np.testing.assert_allclose(found, expected, rtol=1e-11)


# ------------------------------------------------------------ orders of the remainders


@jax.jit
def remainders_of_uneven_data(data, law):
    """Remainders for pairs of sizes, by features and by spread."""
    phi, h, y, prototypes = data
    features, spread = 2.0 ** -jnp.array([5, 6]), 2.0 ** -jnp.array([9, 10])

    def both_ways(loss, approximation):
        def remainder(size, t):
            return loss(size, t) - approximation(size, t)

        one = jnp.ones(2)
        return jax.vmap(remainder)(features, one), jax.vmap(remainder)(one, spread)

    def heads(function):
        return lambda size, t: function(phi, size * h, y, law, t)

    def proto(function, loss):
        return lambda size, t: function(
            phi[0], size * h, y, size * prototypes, law, t, loss=loss
        )

    pairs = {
        "1": (theory.non_label_sharing_loss, theory.non_label_sharing_approximation),
        "4": (theory.label_sharing_loss, theory.label_sharing_approximation),
    }
    found = {name: both_ways(*map(heads, pair)) for name, pair in pairs.items()}
    for name, loss in (("2, bounded", jax_bounded), ("2, logistic", theory.logistic)):
        pair = (theory.protonet_loss, theory.protonet_approximation)
        found[name] = both_ways(*[proto(f, loss) for f in pair])
    return found


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_orders_without_the_papers_assumptions(alpha, beta):
    data = tuple(map(jnp.asarray, uneven_data(6)))
    found = remainders_of_uneven_data(data, theory.beta_law(alpha, beta))
    for name, (by_features, by_spread) in found.items():
        order = 3 if name == "2, bounded" else 4
        assert slope(by_features) == pytest.approx(order, abs=0.1), name
        assert slope(by_spread) == pytest.approx(3, abs=0.1), name
