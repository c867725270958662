"""Strategies that regularise the model: Meta-Reg, TAML and Meta-Dropout."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import init, make_task, objective, stack_tasks, take, task_loss

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.strategies import chain, inequality
from mlti_jax.strategies.metareg import kl_to_standard_normal
from mlti_jax.strategies.taml import entropy
from mlti_jax.training import Episode, Evaluator

KEY = jax.random.key(0)
LS = {"form": "label_sharing", "method": "mixup", "layers": (0, 1)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def start(learner, strategy, x):
    return strategies.init_variables(learner, strategy, KEY, x)


@pytest.fixture(scope="module")
def maml():
    return learners.maml(backbones.mlp((6, 7)), 3, steps=2)


@pytest.fixture(scope="module")
def tasks():
    return stack_tasks([make_task(s) for s in range(4)])


# ----------------------------------------------------------------------- Meta-Reg


def test_kl_equals_the_closed_form_and_a_monte_carlo_estimate():
    rng = np.random.default_rng(0)
    mean, spread = rng.normal(size=5), rng.uniform(0.2, 1.5, size=5)
    kl = float(kl_to_standard_normal(jnp.asarray(mean), jnp.asarray(spread)))
    by_hand = sum(
        0.5 * (s * s + m * m - 1 - np.log(s * s))
        for m, s in zip(mean, spread, strict=True)
    )
    np.testing.assert_allclose(kl, by_hand, rtol=1e-5)
    w = mean + spread * rng.normal(size=(400_000, 5))
    log_q = -0.5 * ((w - mean) / spread) ** 2 - np.log(spread)
    estimate = (log_q + 0.5 * w**2).sum(1)
    error = 4 * estimate.std() / np.sqrt(len(estimate))
    assert abs(estimate.mean() - kl) < error
    assert kl_to_standard_normal(jnp.zeros(3), jnp.ones(3)) == 0


def test_metareg_draws_one_set_of_shared_weights(maml, tasks):
    strategy = strategies.metareg(initial_rho=-1.0)
    variables = start(maml, strategy, tasks.support.x[0])
    drawn = strategy.sample(variables, KEY)
    before, after = variables.params["model"], drawn.params["model"]
    # Only the kernel of the one layer that is not adapted.
    assert (np.asarray(after[0]["kernel"] != before[0]["kernel"])).all()
    chex.assert_trees_all_equal(after[0]["norm"], before[0]["norm"])
    chex.assert_trees_all_equal(after[1:], before[1:])
    draws = jax.vmap(lambda k: strategy.sample(variables, k).params["model"][0])(
        jax.random.split(KEY, 4000)
    )["kernel"]
    sigma = np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(draws.mean(0), before[0]["kernel"], atol=5 * sigma / 63)
    np.testing.assert_allclose(np.std(draws, axis=0), sigma, rtol=0.06)


def test_metareg_adds_the_kl_of_the_means_not_of_the_draw(maml, tasks):
    strategy = strategies.metareg(beta=0.01, initial_rho=-1.0)
    variables = start(maml, strategy, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks)
    without, _ = objective(maml, strategy._replace(penalty=None), variables, tasks)
    mean = np.asarray(variables.params["model"][0]["kernel"], np.float64)
    sigma = np.log1p(np.exp(-1.0))
    kl = 0.5 * (sigma**2 + mean**2 - 1 - 2 * np.log(sigma)).sum()
    np.testing.assert_allclose(loss - without, 0.01 * kl, rtol=1e-4)


def test_metareg_without_strength_is_vanilla_exactly(maml, tasks):
    strategy = strategies.metareg(beta=0.0, initial_rho=-80.0)
    variables = start(maml, strategy, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks)
    plain = variables.replace(strategy=())
    vanilla, _ = objective(maml, strategies.vanilla(), plain, tasks)
    assert loss == vanilla


def test_metareg_learns_its_spreads(maml, tasks):
    strategy = strategies.metareg(initial_rho=-1.0)
    variables = start(maml, strategy, tasks.support.x[0])

    @jax.jit
    @jax.grad
    def gradient(own):
        return objective(maml, strategy, variables.replace(strategy=own), tasks)[0]

    grads = jax.tree.leaves(gradient(variables.strategy))
    assert len(grads) == 1
    assert np.abs(np.asarray(grads[0])).min() > 0


def test_metareg_evaluates_with_the_means(maml, tasks):
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(3), 10)
    x = rng.normal(size=(30, 5)).astype(np.float32) + label[:, None]
    pool = data.DomainPool.from_arrays(x, np.zeros(30, int), label)
    strategy = strategies.metareg(initial_rho=1.0)  # noise that would be seen
    variables = start(maml, strategy, tasks.support.x[0])
    values = [
        Evaluator(maml, s, Episode(3, 2, 4))(v, pool, KEY, 8)
        for s, v in (
            (strategy, variables),
            (strategies.vanilla(), variables.replace(strategy=())),
        )
    ]
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("rho", [-80.0, -20.0, 3.0])
def test_metareg_is_finite_wherever_rho_begins(maml, tasks, rho):
    strategy = strategies.metareg(initial_rho=rho)
    variables = start(maml, strategy, tasks.support.x[0])
    penalty = lambda own: strategy.penalty(  # noqa: E731
        variables.replace(strategy=own), None, None
    )
    value, gradient = jax.value_and_grad(penalty)(variables.strategy)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    "options", [{"beta": -1.0}, {"beta": np.inf}, {"initial_rho": -81.0}]
)
def test_metareg_refuses_wrong_options(options):
    with pytest.raises(InputError, match="metareg needs"):
        strategies.metareg(**options)


def test_metareg_refuses_a_learner_that_shares_nothing(tasks):
    everything = learners.maml(backbones.mlp((6, 7)), 3, adapted_layers=(0, 1, 2))
    with pytest.raises(InputError, match="here there are none"):
        strategies.init_variables(
            everything, strategies.metareg(), KEY, tasks.support.x[0]
        )


# --------------------------------------------------------------------------- TAML


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
        strategy = strategies.taml(measure=name, weight=1.0, **options)
        penalty = strategy.penalty(None, losses, aux)
        np.testing.assert_allclose(penalty, expected, rtol=1e-5)


@pytest.mark.parametrize("measure", ["entropy", "theil", "gini"])
def test_taml_penalty_equals_a_loop_of_tasks(maml, tasks, measure):
    strategy = strategies.taml(measure=measure, weight=0.5)
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
    loss, _ = objective(maml, strategies.taml(weight=0.0), variables, tasks)
    assert loss == objective(maml, strategies.vanilla(), variables, tasks)[0]


def test_taml_refusals(maml, tasks):
    with pytest.raises(InputError, match="this is regression.*theil"):
        strategies.taml(labels="shift")
    with pytest.raises(InputError, match="unknown measure of taml 'hoover'"):
        strategies.taml(measure="hoover")
    with pytest.raises(InputError, match="weight >= 0"):
        strategies.taml(weight=-1.0)
    variables = init(maml, KEY, tasks.support.x[0])
    single = jax.tree.map(lambda a: a[:1], tasks)
    with pytest.raises(InputError, match=r"raise train.meta_batch_size"):
        objective(maml, strategies.taml(measure="gini"), variables, single, size=1)


# ------------------------------------------------------------------- Meta-Dropout


def numpy_forward(model, own, x, epsilon):
    """Two blocks with gates and the head, in float64; `epsilon` for each block."""
    h = np.asarray(x, np.float64)
    for layer, gate, e in zip(model[:-1], own, epsilon, strict=False):
        alpha = h @ np.asarray(gate["kernel"], np.float64) + np.asarray(gate["bias"])
        h = (h @ np.asarray(layer["kernel"], np.float64)) * np.log1p(np.exp(alpha + e))
        h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
        h = np.where(h > 0, h, 0.01 * h)
    return h @ np.asarray(model[-1]["kernel"]) + np.asarray(model[-1]["bias"])


@pytest.fixture(scope="module")
def gated(maml, tasks):
    strategy = strategies.metadropout(eval_samples=3)
    variables = start(maml, strategy, tasks.support.x[0])
    larger = jax.tree.map(lambda a: a + 0.3, variables.strategy)
    return strategy, variables.replace(strategy=larger)


def test_the_query_keeps_the_gate_without_noise(maml, tasks, gated):
    strategy, variables = gated
    task = take(tasks, 0)
    perturbation = strategies.perturbation(strategy, variables)
    unadapted = learners.maml(backbones.mlp((6, 7)), 3, steps=0)
    _, aux = unadapted.loss(variables, task, KEY, 0, True, **perturbation)
    model, own = variables.params["model"], variables.strategy
    expected = numpy_forward(model, own, task.query.x, (0.0, 0.0))
    np.testing.assert_allclose(aux.outputs, expected, rtol=1e-3, atol=1e-4)
    assert own[2] == {}  # the head has no gate


def test_the_inner_loop_sees_fresh_noise_averaged_over_draws(maml, tasks, gated):
    strategy, variables = gated
    task = take(tasks, 1)
    head = learners.maml(backbones.mlp((6, 7)), 3, steps=2, adapted_layers=(-1,))
    perturbation = strategy.perturb(variables)
    phi = head.adapt(variables, task.support, KEY, perturbation=perturbation)
    # By hand: gradient descent on the head's weights with the same draws.
    model, own = variables.params["model"], variables.strategy
    w = np.asarray(model[2]["kernel"], np.float64)
    b = np.asarray(model[2]["bias"], np.float64)
    y = np.asarray(task.support.y)
    for keys in jax.random.split(KEY, (2, 3)):
        gradient_w, gradient_b = np.zeros_like(w), np.zeros_like(b)
        for key in keys:
            epsilon = [
                np.asarray(jax.random.normal(jax.random.fold_in(key, layer), (6, size)))
                for layer, size in ((0, 6), (1, 7))
            ]
            identity = [
                *model[:2],
                {"kernel": np.eye(7), "bias": np.zeros(7)},
            ]
            h = numpy_forward(identity, own, task.support.x, epsilon)
            logits = h @ w + b
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            gradient_w += h.T @ (p - y) / len(y) / 3
            gradient_b += (p - y).mean(0) / 3
        w, b = w - 0.01 * gradient_w, b - 0.01 * gradient_b
    np.testing.assert_allclose(phi[2]["kernel"], w, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(phi[2]["bias"], b, rtol=1e-3, atol=1e-5)


def test_noise_acts_at_test_time_through_the_support_only(maml, tasks, gated):
    strategy, variables = gated
    task = take(tasks, 0)
    perturbation = strategies.perturbation(strategy, variables)
    loss = jax.jit(
        lambda key: maml.loss(variables, task, key, 0, False, **perturbation)[1]
    )
    first, second = loss(jax.random.key(1)), loss(jax.random.key(2))
    assert np.abs(np.asarray(first.outputs - second.outputs)).max() > 1e-6
    # Before adaptation there is no support set, so no noise.
    np.testing.assert_array_equal(first.outputs_before, second.outputs_before)
    same = maml.predict(variables, task.support, task.query.x, KEY, **perturbation)
    assert same.shape == first.outputs.shape


def test_gates_at_one_without_noise_are_vanilla(maml, tasks):
    strategy = strategies.metadropout(noise=0.0)
    variables = start(maml, strategy, tasks.support.x[0])
    one = np.log(np.e - 1)  # softplus of it is 1
    own = tuple(
        {"kernel": 0 * g["kernel"], "bias": 0 * g["bias"] + one} if g else {}
        for g in variables.strategy
    )
    for layer in (0, 1):
        loss, aux = objective(
            maml, strategy, variables.replace(strategy=own), tasks, layer=layer
        )
        vanilla, expected = objective(
            maml, strategies.vanilla(), variables, tasks, layer=layer
        )
        np.testing.assert_allclose(loss, vanilla, rtol=1e-5)
        np.testing.assert_allclose(aux.outputs, expected.outputs, atol=1e-4)


def test_noise_networks_are_learned(maml, tasks, gated):
    strategy, variables = gated

    @jax.jit
    @jax.grad
    def gradient(own):
        return objective(maml, strategy, variables.replace(strategy=own), tasks)[0]

    for leaf in jax.tree.leaves(gradient(variables.strategy)):
        assert np.abs(np.asarray(leaf)).max() > 0


@pytest.mark.parametrize("unroll", [True, False])
def test_unrolled_and_scanned_loops_draw_the_same_noise(tasks, gated, unroll):
    strategy, variables = gated
    learner = learners.maml(backbones.mlp((6, 7)), 3, steps=2, unroll=unroll)
    loss, _ = objective(learner, strategy, variables, tasks)
    plain = learners.maml(backbones.mlp((6, 7)), 3, steps=2, remat=True)
    np.testing.assert_allclose(
        loss, objective(plain, strategy, variables, tasks)[0], rtol=1e-5
    )


def test_metadropout_on_convolutions_gates_every_block():
    learner = learners.maml(backbones.conv4(3, blocks=2), 3, steps=1)
    strategy = strategies.metadropout()
    variables = start(learner, strategy, jnp.zeros((4, 8, 8, 1)))
    shapes = [jax.tree.map(np.shape, g) for g in variables.strategy]
    assert shapes[0] == {"kernel": (3, 3, 1, 3), "bias": (3,)}
    assert shapes[1] == {"kernel": (3, 3, 3, 3), "bias": (3,)}
    images = stack_tasks([make_task(s, shape=(8, 8, 1)) for s in range(2)])
    loss, _ = objective(learner, strategy, variables, images, size=2)
    assert np.isfinite(loss)


def test_metadropout_refusals():
    with pytest.raises(InputError, match="eval_samples is 0"):
        strategies.metadropout(eval_samples=0)
    with pytest.raises(InputError, match="noise >= 0"):
        strategies.metadropout(noise=-0.1)


# -------------------------------------------------------------------------- chains


def test_regularisers_go_with_mlti_and_with_each_other(maml, tasks):
    names = "mlti+metareg+taml+metadropout"
    combined = strategies.make(
        names, interpolation=LS, options={"metareg": {"initial_rho": -2.0}}
    )
    assert combined.name == names
    variables = start(maml, combined, tasks.support.x[0])
    assert [bool(jax.tree.leaves(own)) for own in variables.strategy] == [
        False,
        True,
        False,
        True,
    ]
    for layer in (0, 1):
        value = jax.jit(
            jax.value_and_grad(
                lambda own, layer=layer: objective(
                    maml, combined, variables.replace(strategy=own), tasks, layer=layer
                )[0]
            )
        )
        loss, grads = value(variables.strategy)
        assert np.isfinite(loss)
        for leaf in jax.tree.leaves(grads):
            assert np.isfinite(leaf).all()


def test_two_that_perturb_are_refused():
    gate = strategies.metadropout()
    with pytest.raises(InputError, match="both perturb hidden outputs"):
        chain(gate, gate._replace(name="other"))


@pytest.mark.parametrize(
    ("strategy", "learner", "reason"),
    [
        ("metareg", "protonet", "inner loop does not adapt"),
        ("taml", "matchingnet", "before and after adaptation"),
        ("metadropout", "protonet", "in an inner loop"),
        ("mlti", "sl", "this learner does not adapt"),
    ],
)
def test_what_does_not_apply_is_refused_with_the_reason(strategy, learner, reason):
    family = next(f for f, names in learners.FAMILIES.items() if learner in names)
    with pytest.raises(InputError, match=reason):
        strategies.check_applicable((strategy,), learner, family)


def test_every_strategy_says_what_it_applies_to():
    assert set(strategies.APPLIES) == set(strategies.STRATEGIES)
    for families in strategies.APPLIES.values():
        assert families <= set(learners.FAMILIES)
