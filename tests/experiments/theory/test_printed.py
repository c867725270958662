"""The lemmas as printed, against NumPy loops and against the corrected ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from experiments.theory import printed, remainders
from experiments.theory.remainders import PRINTED, RIGHT, RIGHT_MEAN
from mlti_jax import theory
from tests.support.theory_loops import (
    PAIRS,
    bounded,
    exchanged_points,
    jacobi_points,
    logistic,
    loop_approximation,
    loop_loss,
    loop_printed,
    program,
    psi,
    slope,
    uneven_data,
)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


# --------------------------------------------------------------------------- constants


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_exchanged_law_is_the_papers_mixture(alpha, beta):
    law = printed.exchanged_law(program(theory.beta_law)(alpha, beta))
    points, probability = exchanged_points(alpha, beta)
    for function in (np.ones_like, np.square, np.exp, lambda lam: np.cos(3 * lam)):
        np.testing.assert_allclose(
            law.probability @ function(np.asarray(law.lam)),
            probability @ function(points),
            rtol=1e-11,
        )


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, None), (3.0, 1.5)])
def test_constants_are_integrals_over_the_papers_law(alpha, beta):
    constants = printed.lemma_constants(alpha, beta)
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
def test_constant_is_infinite_for_small_alphas(alpha):
    assert np.isinf(printed.lemma_constants(alpha).c)
    assert np.isinf(printed.lemma_constants(3.0, alpha).c)


# ------------------------------------------------------------- formulas by NumPy loops


def test_lemmas_1_and_4_equal_loops():
    constants = printed.lemma_constants(3.0, 1.5)
    data = phi, h, y = uneven_data()[:3]
    for function, by_class in (
        (printed.non_label_sharing, True),
        (printed.label_sharing, False),
    ):
        np.testing.assert_allclose(
            program(function)(*data, constants),
            loop_printed(logistic, phi, h, y, constants, by_class),
            rtol=1e-11,
        )


@pytest.mark.parametrize(
    ("loss", "by_numpy"), [(printed.bounded, bounded), (theory.logistic, logistic)]
)
def test_lemma_2_equals_loops(loss, by_numpy):
    constants = printed.lemma_constants(3.0, 1.5)
    phi, x, y, prototypes = uneven_data(3)
    heads = np.tile(phi[0], (3, 1))
    relative = np.stack([x[i] - (c[0] + c[1]) / 2 for i, c in enumerate(prototypes)])
    np.testing.assert_allclose(
        program(printed.protonet, loss=loss)(phi[0], x, y, prototypes, constants),
        loop_printed(by_numpy, heads, relative, y, constants, True, raw=x),
        rtol=1e-11,
    )


def test_exchanged_lemma_4_equals_loops():
    data = phi, h, y = uneven_data(1)[:3]
    np.testing.assert_allclose(
        program(printed.exchanged_loss)(*data, theory.beta_law(3.0, 1.5)),
        loop_loss(logistic, phi, h, y, exchanged_points(3.0, 1.5), False),
        rtol=1e-10,
    )
    nodes = 10
    np.testing.assert_allclose(
        program(printed.exchanged_approximation)(
            *data, theory.beta_law(3.0, 1.5, nodes)
        ),
        loop_approximation(
            logistic, psi, phi, h, y, exchanged_points(3.0, 1.5, nodes), False
        ),
        rtol=1e-11,
    )


# ------------------------------------------------------------------------- comparisons


@pytest.mark.parametrize("seed", [0, 1])
def test_only_the_corrected_lemmas_have_remainders_of_third_order(seed):
    data, sizes = remainders.make_data(seed), np.array(remainders.SIZES)
    assert sizes[6] == 2 * sizes[7]
    found = remainders.remainders(data, sizes)
    assert set(found) == set(remainders.ORDERS)
    for name, orders in remainders.ORDERS.items():
        for by, order in zip(remainders.BY, orders, strict=True):
            part = found[name][by]
            # Not at the smallest sizes, where rounding errors dominate.
            right = slope(part[RIGHT][6:8] if by == "features" else part[RIGHT][8:10])
            assert right == pytest.approx(order, abs=0.1), (name, by)
            assert slope(part[PRINTED][-2:]) < 2.1, (name, by)
            if RIGHT_MEAN in part:
                corrected = slope(part[RIGHT_MEAN][-2:])
                assert corrected == pytest.approx(2, abs=0.05), (name, by)
            assert abs(part[RIGHT][0]) < abs(part[PRINTED][0]) / 20, (name, by)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_only_the_corrected_lemma_1_is_within_taylors_bound(alpha):
    """|R| <= max|psi'| E|deviation|^3 / 6, at full size."""
    data = phi, h, _ = remainders.make_data()[:3]
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
    constants = printed.lemma_constants(alpha)
    approximation = program(printed.non_label_sharing)(*data, constants)
    assert abs(loss - approximation) > bound


def test_exchange_of_the_proof_needs_one_head():
    phi, h, y, _ = uneven_data()
    law, one = theory.beta_law(3.0, 1.5), np.tile(phi[0], (3, 1))
    mixed, exchanged = (
        program(f) for f in (theory.label_sharing_loss, printed.exchanged_loss)
    )
    np.testing.assert_allclose(
        mixed(one, h, y, law), exchanged(one, h, y, law), rtol=1e-12
    )
    assert abs(mixed(phi, h, y, law) - exchanged(phi, h, y, law)) > 0.01


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_order_of_the_exchanged_approximation(alpha, beta):
    phi, h, y, _ = map(jnp.asarray, uneven_data(6))
    law = theory.beta_law(alpha, beta)

    @jax.jit
    def remainder(size, t):
        loss = printed.exchanged_loss(phi, size * h, y, law, t)
        return loss - printed.exchanged_approximation(phi, size * h, y, law, t)

    by_features = [remainder(2.0**-n, 1.0) for n in (5, 6)]
    by_spread = [remainder(1.0, 2.0**-n) for n in (9, 10)]
    assert slope(by_features) == pytest.approx(4, abs=0.1)
    assert slope(by_spread) == pytest.approx(3, abs=0.1)


def test_printed_form_has_a_correct_constant_for_one_head_only():
    data, law = remainders.make_data(), theory.beta_law(2.0)
    mean, variance, partner = theory.moments(law)

    def needed_constant(phi):
        """The c with which the printed form is correct for small scores."""
        small = (phi, 1e-3 * data.h, data.y)
        without, with_one = (
            program(printed.non_label_sharing)(*small, printed.Constants(mean, c))
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


def test_bounded_loss_is_not_regularized():
    """For negative scores the correct correction is negative, the printed positive."""
    law, constants = theory.beta_law(2.0), printed.lemma_constants(2.0)
    x, y = np.array([[[-2.0], [-1.0]]]), np.array([[0, 1]])
    data = (np.ones(1), x, y, np.zeros((1, 2, 1)))
    for function, argument, sign in (
        (theory.protonet_approximation, law, -1),
        (printed.protonet, constants, 1),
    ):
        run = program(function, loss=printed.bounded)
        correction = np.diff([run(*data, argument, t) for t in (0.0, 1)])
        assert sign * correction > 0.001
