"""TAML: entropy, measures of inequality, and the penalty that is made of them."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.strategies import _inequality as inequality
from mlti_jax.strategies._objective import tasks_per_step
from mlti_jax.strategies._taml import entropy
from tests.support.regulariser_cases import maml, tasks  # noqa: F401
from tests.support.tasks import KEY, init, objective, take, task_loss


def test_entropy_equals_numpy_and_its_extremes():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 4))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    by_hand = -(p * np.log(p)).sum(-1).mean(-1)
    np.testing.assert_allclose(entropy(jnp.asarray(logits)), by_hand, rtol=1e-5)
    np.testing.assert_allclose(entropy(jnp.zeros((3, 4))), np.log(4), rtol=1e-6)
    sure = 1e3 * jnp.eye(4)
    np.testing.assert_allclose(entropy(sure), 0.0, atol=1e-6)
    assert np.isfinite(jax.grad(lambda z: entropy(z))(sure)).all()


def test_entropy_leaves_padding_out():
    logits = jnp.array([[2.0, 0.0], [0.0, 1.0], [9.0, 0.0]])
    padded = entropy(logits, jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(padded, entropy(logits[:2]), rtol=1e-6)


def numpy_measures(values):
    m, mean = len(values), np.mean(values)
    share = values / mean
    pairs = sum(abs(a - b) for a in values for b in values)
    geometric = np.prod(values) ** (1 / m)
    return {
        "theil": np.mean([s * np.log(s) for s in share]),
        "generalised_entropy": sum(s**2 - 1 for s in share) / (m * 2 * 1),
        "gini": pairs / (2 * m * m * mean),
        "atkinson": 1 - (sum(v**0.5 for v in values) / m) ** 2 / mean,
        "variance_of_logarithms": np.mean(
            [(np.log(v) - np.log(geometric)) ** 2 for v in values]
        ),
    }


@pytest.mark.parametrize("name", inequality.MEASURES)
def test_measures_of_inequality_equal_numpy(name):
    measure = jax.jit(inequality.MEASURES[name])
    values = np.random.default_rng(0).uniform(0.1, 3.0, size=6)
    expected = numpy_measures(values)[name]
    np.testing.assert_allclose(measure(jnp.asarray(values)), expected, rtol=1e-5)
    # Equal losses: 0. The unit does not matter. More unequal: more.
    np.testing.assert_allclose(measure(jnp.full(6, 0.7)), 0.0, atol=1e-6)
    np.testing.assert_allclose(measure(jnp.asarray(7 * values)), expected, rtol=1e-4)
    wider = np.where(values > values.mean(), values * 2, values / 2)
    assert measure(jnp.asarray(wider)) > expected
    # A task without loss, and tasks with the same: no NaN ends a run.
    for special in (jnp.array([0.0, 1.0, 2.0]), jnp.full(3, 0.7)):
        value, gradient = jax.value_and_grad(inequality.MEASURES[name])(special)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_limits_of_the_families_of_measures():
    values = jnp.array([0.3, 1.0, 2.2])
    near = 1e-3
    for at in (0, 1):
        np.testing.assert_allclose(
            inequality.generalised_entropy(values, at),
            inequality.generalised_entropy(values, at + near),
            rtol=2e-2,
        )
    np.testing.assert_allclose(
        inequality.atkinson(values, 1), inequality.atkinson(values, 1 + near), rtol=1e-2
    )
    # By hand: [1, 3] has a Gini of 1/4, and [0, 1] of 1/2.
    np.testing.assert_allclose(inequality.gini(jnp.array([1.0, 3.0])), 0.25)
    np.testing.assert_allclose(inequality.gini(jnp.array([0.0, 1.0])), 0.5)


def test_taml_hands_over_the_parameters_of_its_measures():
    losses = jnp.array([[0.5], [1.0], [2.0], [0.1]])
    aux = learners.Aux((), losses, losses, losses, losses)
    values = np.asarray(losses)[:, 0]
    for name, options, expected in (
        ("generalised_entropy", {"alpha": 3.0}, np.mean((values / 0.9) ** 3 - 1) / 6),
        ("atkinson", {"epsilon": 2.0}, 1 - 1 / np.mean(1 / values) / 0.9),
    ):
        strategy = strategies.taml(
            setting="label_sharing", measure=name, weight=1.0, **options
        )
        penalty = strategy.penalty(None, aux)
        np.testing.assert_allclose(penalty, expected, rtol=1e-5)


@pytest.mark.parametrize("measure", ["entropy", "theil", "gini"])
def test_taml_penalty_equals_a_loop_of_tasks(maml, tasks, measure):
    strategy = strategies.taml(setting="label_sharing", measure=measure, weight=0.5)
    variables = init(maml, KEY, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks)
    alone = [task_loss(maml, variables, take(tasks, i), KEY, 0, True) for i in range(4)]
    mean = np.mean([float(a[0]) for a in alone])
    if measure == "entropy":
        terms = []
        for _, aux in alone:
            h = []
            for logits in (aux.outputs_before, aux.outputs):
                p = np.asarray(jax.nn.softmax(logits), np.float64)
                h.append(-(p * np.log(p)).sum(1).mean())
            terms.append(h[1] - h[0])
        penalty = np.mean(terms)
    else:
        initial = np.array([float(aux.loss_before) for _, aux in alone])
        penalty = numpy_measures(initial)[measure]
    np.testing.assert_allclose(loss, mean + 0.5 * penalty, rtol=1e-4)


def test_taml_without_weight_is_vanilla(maml, tasks):
    variables = init(maml, KEY, tasks.support.x[0])
    loss, _ = objective(
        maml, strategies.taml(setting="label_sharing", weight=0.0), variables, tasks
    )
    assert loss == objective(maml, strategies.vanilla(), variables, tasks)[0]


def test_taml_refusals(maml, tasks):
    with pytest.raises(InputError, match="this is regression.*theil"):
        strategies.taml(setting="regression")
    with pytest.raises(InputError, match="unknown measure of taml 'hoover'"):
        strategies.taml(setting="label_sharing", measure="hoover")
    with pytest.raises(InputError, match="weight >= 0"):
        strategies.taml(setting="label_sharing", weight=-1.0)
    variables = init(maml, KEY, tasks.support.x[0])
    single = jax.tree.map(lambda a: a[:1], tasks)
    gini = strategies.taml(setting="label_sharing", measure="gini")
    with pytest.raises(InputError, match=r"set train.meta_batch_size to at least 2"):
        objective(maml, gini, variables, single, size=1)
    with pytest.raises(InputError, match=r"train.meta_batch_size is 1; .*least 2"):
        tasks_per_step(gini, 1)
