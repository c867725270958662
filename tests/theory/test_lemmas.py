"""The lemmas: losses and approximations against NumPy, and what they leave over."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from experiments.theory import remainders as theory_remainders
from experiments.theory.remainders import PRINTED, RIGHT, RIGHT_MEAN
from mlti_jax import theory
from tests.support.theory_loops import (
    bounded,
    exchanged_points,
    jacobi_points,
    logistic,
    loop_approximation,
    loop_loss,
    loop_printed,
    psi,
    uneven_data,
)

PAIRS = [(2.0, 2.0), (0.5, 0.5), (0.1, 0.1), (3.0, 1.5), (0.4, 2.5)]


@functools.cache
def program(function, **static):
    """A function as one program, not as one for each operation."""
    return jax.jit(functools.partial(function, **static))


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


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
def test_parameters_of_no_law_are_refused(alpha):
    for function in (theory.beta_law, theory.printed_constants):
        with pytest.raises(ValueError, match="positive"):
            function(alpha)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_exchanged_law_is_the_papers_mixture(alpha, beta):
    law = theory.exchanged(program(theory.beta_law)(alpha, beta))
    points, probability = exchanged_points(alpha, beta)
    for function in (np.ones_like, np.square, np.exp, lambda lam: np.cos(3 * lam)):
        np.testing.assert_allclose(
            law.probability @ function(np.asarray(law.lam)),
            probability @ function(points),
            rtol=1e-11,
        )


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, None), (3.0, 1.5)])
def test_printed_constants_are_integrals_over_the_papers_law(alpha, beta):
    constants = theory.printed_constants(alpha, beta)
    beta = alpha if beta is None else beta
    share = alpha / (alpha + beta)
    laws = scipy.stats.beta(alpha + 1, beta), scipy.stats.beta(beta + 1, alpha)

    def expectation(function):
        def integrand(lam):
            density = share * laws[0].pdf(lam) + (1 - share) * laws[1].pdf(lam)
            return function(lam) * density

        return scipy.integrate.quad(integrand, 0, 1, epsabs=1e-10, limit=500)[0]

    mean, c = expectation(lambda lam: lam), expectation(lambda lam: (1 / lam - 1) ** 2)
    np.testing.assert_allclose(constants.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(constants.c, c, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_printed_constant_is_infinite_for_small_alphas(alpha):
    assert np.isinf(theory.printed_constants(alpha).c)
    assert np.isinf(theory.printed_constants(3.0, alpha).c)


# --------------------------------------------------- losses and formulas by NumPy loops

NODES = 10  # for losses too: sums over the same points agree to the last digits


@pytest.fixture
def laws():
    """Beta(3, 3/2) here and by SciPy, and what the paper prints for it."""
    law = theory.beta_law(3.0, 1.5, NODES)
    points = jacobi_points(3.0, 1.5, NODES)
    return law, points, theory.printed_constants(3.0, 1.5)


def test_lemma_1_equals_loops(laws):
    law, points, constants = laws
    data = phi, h, y = uneven_data()[:3]
    np.testing.assert_allclose(
        program(theory.non_label_sharing_loss)(*data, law),
        loop_loss(logistic, phi, h, y, points, True),
        rtol=1e-11,
    )
    np.testing.assert_allclose(
        program(theory.non_label_sharing_approximation)(*data, law),
        loop_approximation(logistic, psi, phi, h, y, points, True),
        rtol=1e-11,
    )
    np.testing.assert_allclose(
        program(theory.printed_non_label_sharing)(*data, constants),
        loop_printed(logistic, phi, h, y, constants, True),
        rtol=1e-11,
    )


def test_lemma_4_equals_loops(laws):
    law, points, constants = laws
    data = phi, h, y = uneven_data(1)[:3]
    np.testing.assert_allclose(
        program(theory.label_sharing_loss)(*data, law),
        loop_loss(logistic, phi, h, y, points, False, mixed_labels=True),
        rtol=1e-11,
    )
    many = theory.beta_law(3.0, 1.5)
    np.testing.assert_allclose(
        program(theory.exchanged_loss)(*data, many),
        loop_loss(logistic, phi, h, y, exchanged_points(3.0, 1.5), False),
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        program(theory.exchanged_approximation)(*data, law),
        loop_approximation(
            logistic, psi, phi, h, y, exchanged_points(3.0, 1.5, NODES), False
        ),
        rtol=1e-11,
    )
    np.testing.assert_allclose(
        program(theory.printed_label_sharing)(*data, constants),
        loop_printed(logistic, phi, h, y, constants, False),
        rtol=1e-11,
    )


def test_lemma_4_for_any_heads_has_the_terms_of_its_docstring(laws):
    law, (lam, p), _ = laws
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
        (theory.bounded, bounded, lambda z: psi(z) * np.tanh(z / 2)),
        (theory.logistic, logistic, psi),
    ],
)
def test_lemma_2_equals_loops(laws, loss, by_numpy, curvature):
    law, points, constants = laws
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
    np.testing.assert_allclose(
        program(theory.printed_protonet, loss=loss)(*data, constants),
        loop_printed(by_numpy, heads, relative, y, constants, True, raw=x),
        rtol=1e-11,
    )


# ------------------------------------------------------------ orders of the remainders


def slope(remainder):
    """Of the logarithm, from one size to half of it."""
    first, second = np.log(np.abs(np.asarray(remainder)))
    return (first - second) / np.log(2)


@pytest.mark.parametrize("seed", [0, 1])
def test_right_constants_leave_the_right_order_and_printed_ones_do_not(seed):
    data, sizes = theory_remainders.make_data(seed), np.array(theory_remainders.SIZES)
    assert sizes[6] == 2 * sizes[7]
    found = theory_remainders.remainders(data, sizes)
    assert set(found) == set(theory_remainders.ORDERS)
    for name, orders in theory_remainders.ORDERS.items():
        for by, order in zip(theory_remainders.BY, orders, strict=True):
            part = found[name][by]
            # Not at the smallest sizes, where the floating point is all that is left.
            right = slope(part[RIGHT][6:8] if by == "features" else part[RIGHT][8:10])
            assert right == pytest.approx(order, abs=0.1), (name, by)
            assert slope(part[PRINTED][-2:]) < 2.1, (name, by)
            if RIGHT_MEAN in part:
                corrected = slope(part[RIGHT_MEAN][-2:])
                assert corrected == pytest.approx(2, abs=0.05), (name, by)
            assert abs(part[RIGHT][0]) < abs(part[PRINTED][0]) / 20, (name, by)


@jax.jit
def remainders_of_uneven_data(data, law):
    """Of right approximations, in pairs of sizes and by way to shrink."""
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
        "4, exchanged": (theory.exchanged_loss, theory.exchanged_approximation),
    }
    found = {name: both_ways(*map(heads, pair)) for name, pair in pairs.items()}
    for loss in (theory.bounded, theory.logistic):
        pair = (theory.protonet_loss, theory.protonet_approximation)
        found[f"2, {loss.__name__}"] = both_ways(*[proto(f, loss) for f in pair])
    return found


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_right_order_without_the_papers_assumptions(alpha, beta):
    data = tuple(map(jnp.asarray, uneven_data(6)))
    found = remainders_of_uneven_data(data, theory.beta_law(alpha, beta))
    for name, (by_features, by_spread) in found.items():
        order = 3 if name == "2, bounded" else 4
        assert slope(by_features) == pytest.approx(order, abs=0.1), name
        assert slope(by_spread) == pytest.approx(3, abs=0.1), name


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_remainder_of_lemma_1_is_within_taylors_bound(alpha):
    """|R| <= max|psi'| E|deviation|^3 / 6, at full size; the printed one is not."""
    data = phi, h, _ = theory_remainders.make_data()[:3]
    law, points = theory.beta_law(alpha), jacobi_points(alpha, alpha)
    loss = program(theory.non_label_sharing_loss)(*data, law)
    own = np.einsum("id,ind->in", phi, h)
    scores = np.einsum("id,jnd->ijn", phi, h).reshape(len(h), -1)
    lam = points[0][:, None, None, None]
    deviation = (lam - 0.5) * own[:, :, None] + (1 - lam) * scores[:, None, :]
    third = points[1] @ np.mean(np.abs(deviation) ** 3, axis=(1, 2, 3))
    grid = np.linspace(-5, 5, 2001)
    bound = np.abs(np.gradient(psi(grid), grid)).max() * third / 6
    right = program(theory.non_label_sharing_approximation)(*data, law)
    assert 0 < abs(loss - right) < bound
    constants = theory.printed_constants(alpha)
    printed = program(theory.printed_non_label_sharing)(*data, constants)
    assert abs(loss - printed) > bound


# ------------------------------------------------------- what else the docstrings claim


def test_exchange_of_the_proof_needs_one_head():
    phi, h, y, _ = uneven_data()
    law, one = theory.beta_law(3.0, 1.5), np.tile(phi[0], (3, 1))
    mixed, exchanged = (
        program(f) for f in (theory.label_sharing_loss, theory.exchanged_loss)
    )
    np.testing.assert_allclose(
        mixed(one, h, y, law), exchanged(one, h, y, law), rtol=1e-12
    )
    assert abs(mixed(phi, h, y, law) - exchanged(phi, h, y, law)) > 0.01


def test_printed_form_has_a_right_constant_for_one_head_only():
    data, law = theory_remainders.make_data(), theory.beta_law(2.0)
    mean, variance, partner = theory.moments(law)

    def needed_constant(phi):
        """The c with which the printed form is right for small scores."""
        small = (phi, 1e-3 * data.h, data.y)
        without, with_one = (
            program(theory.printed_non_label_sharing)(
                *small, theory.PrintedConstants(mean, c)
            )
            for c in (0.0, 1.0)
        )
        loss = program(theory.non_label_sharing_loss)(*small, law)
        return (loss - without) / (with_one - without)

    for head in data.phi[:2]:
        one = jnp.broadcast_to(head, data.phi.shape)
        expected = (partner + variance) / 2
        np.testing.assert_allclose(needed_constant(one), expected, rtol=1e-5)
    of_other_tasks = data.phi[jnp.array([1, 2, 3, 0])]
    constants = [needed_constant(phi) for phi in (data.phi, of_other_tasks)]
    assert abs(constants[0] - constants[1]) > 0.01


def test_bounded_loss_is_not_regularised():
    """For samples of negative scores the correction is negative, the printed not."""
    law, constants = theory.beta_law(2.0), theory.printed_constants(2.0)
    x, y = np.array([[[-2.0], [-1.0]]]), np.array([[0, 1]])
    data = (np.ones(1), x, y, np.zeros((1, 2, 1)))
    for function, argument, sign in (
        (theory.protonet_approximation, law, -1),
        (theory.printed_protonet, constants, 1),
    ):
        correction = np.diff([program(function)(*data, argument, t) for t in (0.0, 1)])
        assert sign * correction > 0.001


def test_lemma_2_with_the_logistic_loss_is_lemma_1():
    phi, x, y, prototypes = uneven_data(5)
    law, heads = theory.beta_law(2.0), np.tile(phi[0], (3, 1))
    relative = theory.between_prototypes(x, prototypes)
    for metric, gradient in (
        (theory.protonet_loss, theory.non_label_sharing_loss),
        (theory.protonet_approximation, theory.non_label_sharing_approximation),
    ):
        found = program(metric, loss=theory.logistic)(phi[0], x, y, prototypes, law)
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
