"""Every learner with every strategy that applies to it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies._objective import check_layers
from mlti_jax.strategies._registry import STRATEGIES, applies_to, check_applicable
from mlti_jax.training import (
    Episode,
    Evaluator,
    init_state,
    make_run_steps,
)
from mlti_jax.training._checkpoints import Checkpoints

KEY = jax.random.key(0)
# Strategies treat all learners of a family alike, so one learner of each runs in every
# setting; the others run in one.
SETTINGS_OF = {
    "maml": ("label_sharing", "non_label_sharing", "regression"),
    "protonet": ("label_sharing", "non_label_sharing"),
}
# These run while working; the others follow the same code paths.
QUICK = {("maml", "label_sharing"), ("protonet", "label_sharing")}
OPTIONS = {"metareg": {"initial_rho": -3.0}, "metadropout": {"eval_samples": 2}}


def make_pool(setting):
    """A pool of two features in which tasks can be learned."""
    rng = np.random.default_rng(0)
    label = np.tile(np.repeat(np.arange(3), 12), 4)
    group = np.repeat(np.arange(4), 36)
    means = 2 * rng.normal(size=(4, 3, 4))
    x = (means[group, label] + rng.normal(size=(144, 4))).astype(np.float32)
    if setting == "label_sharing":
        return data.DomainPool.from_arrays(x, group, label)
    if setting == "non_label_sharing":
        return data.ClassPool.from_arrays(x, 3 * group + label)
    return data.RegressionPool.from_arrays(x, x[:, :1] * (1 + group[:, None]), group)


def make_strategy(names, learner, setting):
    options = dict(OPTIONS)
    if setting == "regression":
        options["taml"] = {"measure": "gini"}
    return strategies.make(
        names,
        setting=strategies.effective_setting(setting, learner),
        interpolation={"method": "mixup", "layers": (1,)},
        options=options,
    )


def combinations():
    for family, names in FAMILIES.items():
        if family == "supervised":
            continue
        for name in names:
            for strategy in STRATEGIES:
                for setting in SETTINGS_OF.get(name, ("label_sharing",)):
                    if family not in applies_to(strategy):
                        continue
                    marks = () if (name, setting) in QUICK else pytest.mark.slow
                    yield pytest.param(name, strategy, setting, marks=marks)
    for strategy in (
        "mlti+metareg",
        "metamix+taml",
        "maxup+metadropout+metaaug",
        "mlti+views",
        "views+metareg",
    ):
        yield pytest.param("maml", strategy, "label_sharing", marks=pytest.mark.slow)


@functools.cache
def tasks_of(setting):
    """A meta-batch of three tasks, with a fourth as partner."""
    episode = Episode(1 if setting == "regression" else 3, 2, 2)
    draw = functools.partial(data.sample_task, make_pool(setting), **episode._asdict())
    return jax.jit(jax.vmap(draw))(jax.random.split(KEY, 4))


def make_learner(name, setting):
    regression = setting == "regression"
    gradient_based = name in FAMILIES["gradient"]
    options = {"steps": 1, "inner_learning_rate": 0.1} if gradient_based else {}
    return learners.make(
        name,
        backbones.mlp((5, 5)),
        1 if regression else 3,
        objective=learners.REGRESSION if regression else learners.CLASSIFICATION,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy_name", "setting"), combinations())
def test_trains(name, strategy_name, setting):
    learner = make_learner(name, setting)
    strategy = make_strategy(strategy_name, learner, setting)
    check_layers(learner, strategy)
    check_applicable(strategy_name, name)
    tasks = tasks_of(setting)
    variables = strategies.init_variables(learner, strategy, KEY, tasks.support.x[0])
    layer = strategy.layers[-1]

    @jax.jit
    def step(trained, key):
        def loss_fn(trained):
            changed = variables.replace(params=trained[0], strategy=trained[1])
            return strategies.meta_objective(
                learner, strategy, changed, tasks, key, layer, 3
            )[0]

        loss, gradient = jax.value_and_grad(loss_fn)(trained)
        # The sign of the gradient, as Adam's first step: no scale to be tuned.
        trained = jax.tree.map(lambda p, g: p - 3e-3 * jnp.sign(g), trained, gradient)
        return trained, loss

    start = trained = (variables.params, variables.strategy)
    losses = []
    for key in jax.random.split(KEY, 150):
        trained, loss = step(trained, key)
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-50:]) < np.mean(losses[:50])
    for before, after in zip(*map(jax.tree.leaves, (start, trained)), strict=True):
        assert np.isfinite(after).all()
        assert (np.asarray(before) != np.asarray(after)).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy_name"),
    [("maml", "maxup+metadropout+metareg"), ("protonet", "mlti"), ("maml", "taml")],
)
def test_trains_evaluates_and_resumes_as_users_do(name, strategy_name, tmp_path):
    learner = make_learner(name, "label_sharing")
    strategy = make_strategy(strategy_name, learner, "label_sharing")
    pool, episode, optimiser = (
        make_pool("label_sharing"),
        Episode(3, 2, 2),
        optax.adam(1e-2),
    )
    run = make_run_steps(learner, strategy, optimiser, episode, 3)
    state = init_state(learner, strategy, optimiser, KEY, pool.x[:2])
    evaluator = Evaluator(learner, strategy, episode, 4)
    before = evaluator(state.variables, pool, KEY, 100)
    state, bad_step = run(state, pool, KEY, 200)
    assert bad_step == -1
    assert evaluator(state.variables, pool, KEY, 100).mean() > before.mean() + 0.02

    # Saved with the strategy's parameters, read again, and gone on with.
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(200, state)
    checkpoints.wait()
    template = init_state(learner, strategy, optimiser, KEY, pool.x[:2])
    _, restored = checkpoints.restore(template)
    checkpoints.close()
    chex.assert_trees_all_equal(restored, state)
    chex.assert_trees_all_equal(
        run(restored, pool, KEY, 203), run(state, pool, KEY, 203)
    )
