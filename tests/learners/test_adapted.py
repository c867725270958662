"""Adapting parameters by their paths, against masked steps by hand."""

import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, learners, strategies
from mlti_jax.backbones import Context, wrap
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext, adapted_paths
from tests.support.tasks import KEY, make_task

TASK = make_task(0, ways=2, shots=2, queries=2, shape=(6,))
X = TASK.support.x
CONTEXT = TaskContext(KEY, train=True)
RULES = ("maml", "metasgd", "meta_curvature")


class Body(nn.Module):
    """Two layers and a norm as one module."""

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm(name="norm")(nn.Dense(5, name="first")(x))
        return nn.tanh(nn.Dense(4, name="second")(nn.relu(x)))


def norm_or_head(path):
    return path[0] == "head" or "norm" in path


def adapted_leaves(learner, variables):
    """Names of the parameters that adaptation changes."""
    after = learner.adapt(variables, TASK.support, CONTEXT)
    changed = jax.tree.map(
        lambda a, b: bool((a != b).any()), after, variables.params["model"]
    )
    names = [str(i) for i in range(len(learner.stack) - 1)] + ["head"]
    return {
        "/".join([names[path[0].idx], *(part.key for part in path[1:])])
        for path, leaf in jax.tree_util.tree_leaves_with_path(changed)
        if leaf
    }


def test_paths_of_a_predicate_and_of_patterns():
    stack = wrap([Body(), nn.relu])
    paths = adapted_paths(stack, X, norm_or_head)
    assert paths == ("0/norm/bias", "0/norm/scale", "head/bias", "head/kernel")
    assert adapted_paths(stack, X, ("*/norm/*", "head/*")) == paths
    assert adapted_paths(stack, X, paths) == paths
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert adapted_paths(stack, shape, norm_or_head) == paths
    assert learners.maml(stack, 2, adapted=paths).shared_layers == 0
    assert learners.maml(stack, 2, adapted=("head/*",)).shared_layers == 2


@pytest.mark.parametrize("name", RULES)
def test_one_step_by_hand_changes_the_selected_parameters_alone(name):
    stack = wrap(Body())
    paths = adapted_paths(stack, X, norm_or_head)
    learner = learners.make(
        name, stack, 2, adapted=paths, steps=1, inner_learning_rate=0.1
    )
    variables = learner.init(KEY, X)
    model = variables.params["model"]

    def loss(model):
        h, _ = learner.stack.apply(model, variables.state, X, context=Context())
        return -jnp.mean(jnp.sum(TASK.support.y * jax.nn.log_softmax(h), axis=1))

    # All rules start as a step of the inner learning rate.
    grads = jax.grad(loss)(model)
    expected = jax.tree.map(lambda p: p, model)
    for layer, entry in ((0, "norm"), (1, None)):
        place = expected[layer] if entry is None else expected[layer][entry]
        of = grads[layer] if entry is None else grads[layer][entry]
        place.update({k: place[k] - 0.1 * of[k] for k in place})
    got = learner.adapt(variables, TASK.support, CONTEXT)
    chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-6)
    assert adapted_leaves(learner, variables) == set(paths)
    if name != "maml":  # the rule has parameters for these only
        shapes = [leaf.shape for leaf in jax.tree.leaves(variables.params["rule"])]
        square = [(5, 5), (5, 5), (2, 2), (4, 4), (2, 2)]
        assert shapes == ([(5,), (5,), (2,), (4, 2)] if name == "metasgd" else square)


@pytest.mark.parametrize("name", RULES)
def test_all_parameters_of_layers_equal_these_layers(name):
    stack = backbones.mlp((5, 5))
    by_layer = learners.make(name, stack, 2, steps=2)
    by_path = learners.make(name, stack, 2, steps=2, adapted=("1/*", "head/*"))
    variables = by_layer.init(KEY, X)
    chex.assert_trees_all_equal(variables, by_path.init(KEY, X))

    def derivatives(learner):
        return jax.grad(
            lambda p: learner.loss(variables.replace(params=p), TASK, CONTEXT)[0]
        )(variables.params)

    chex.assert_trees_all_close(
        derivatives(by_path), derivatives(by_layer), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("paths", [("1/kernel", "head/*"), ("1/norm/*", "head/bias")])
def test_low_rank_updates_are_exact_or_not_used(name, paths):
    learner = learners.make(
        name, backbones.mlp((5, 5)), 2, adapted=paths, steps=2, inner_learning_rate=0.1
    )
    assert learner.shared_layers == 1
    with jax.enable_x64(True):
        task = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), TASK)
        start = learner.init(KEY, task.support.x)
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), start)

        def gradient(**options):
            other = dataclasses.replace(learner, **options)
            return jax.grad(
                lambda p: other.loss(
                    params.replace(params=p, state=start.state), task, CONTEXT
                )[0]
            )(params.params)

        expected = gradient(low_rank=False)
        chex.assert_trees_all_close(gradient(), expected, rtol=1e-9, atol=1e-12)
        chex.assert_trees_all_close(
            gradient(remat=True), expected, rtol=1e-9, atol=1e-12
        )
    variables = learner.init(KEY, X)
    selected = adapted_paths(backbones.mlp((5, 5)), X, paths)
    assert adapted_leaves(learner, variables) == set(selected)


def test_perturbed_inner_loop_changes_the_selected_parameters_alone():
    paths = ("1/norm/scale", "head/kernel")
    learner = learners.maml(backbones.mlp((5, 5)), 2, adapted=paths, steps=2)
    strategy = strategies.metadropout(eval_samples=2)
    variables = strategies.init_variables(learner, strategy, KEY, X)
    noise = strategy.perturb(variables)
    for train in (True, False):
        context = TaskContext(KEY, train, noise)
        after = learner.adapt(variables, TASK.support, context)
        before = variables.params["model"]
        chex.assert_trees_all_equal(after[0], before[0])
        np.testing.assert_array_equal(after[1]["kernel"], before[1]["kernel"])
        np.testing.assert_array_equal(after[2]["bias"], before[2]["bias"])
        assert (after[1]["norm"]["scale"] != before[1]["norm"]["scale"]).any()


def test_frozen_layers_are_not_adapted():
    stack = wrap([wrap(Body(), frozen=True), nn.Dense(3)])
    assert learners.maml(stack, 2).adapted_layers == (1, 2)
    assert learners.maml(wrap(Body(), frozen=True), 2).adapted_layers == (1,)
    with pytest.raises(InputError, match="layer 0 should be adapted and is frozen"):
        learners.maml(stack, 2, adapted_layers=(0, 1, 2))
    with pytest.raises(InputError, match="selects 0/norm/bias, a frozen parameter"):
        adapted_paths(stack, X, norm_or_head)
    with pytest.raises(InputError, match="layer 0 should be adapted and is frozen"):
        learners.maml(stack, 2, adapted=("0/norm/*",))


def test_functions_are_not_blocks():
    stack = wrap([nn.Dense(4), nn.relu, nn.Dense(3), nn.relu])
    assert learners.maml(stack, 2).adapted_layers == (2, 4)


@pytest.mark.parametrize(
    ("adapted", "message"),
    [
        (norm_or_head, "adapted=learners.adapted_paths"),
        ("head/*", "a sequence of paths"),
        ((), "adapted is empty"),
        (("norm/scale",), "does not start with a layer; expected 0 to 0, or head"),
        (("0/norms/*",), "'0/norms/.*' *, which selects no parameter"),
        (("?/kernel", "head/*"), "'[?]/kernel', which selects no parameter"),
    ],
)
def test_selections_that_cannot_be_used(adapted, message):
    with pytest.raises(InputError, match=message):
        learners.maml(wrap(Body()), 2, adapted=adapted).init(KEY, X)


def test_a_pattern_of_all_layers_needs_the_first_to_be_adapted():
    stack = wrap([nn.relu, nn.Dense(4)])
    with pytest.raises(InputError, match="layer 0 has no such parameter"):
        learners.maml(stack, 2, adapted=("*/bias",)).init(KEY, X)
    paths = adapted_paths(stack, X, ("*/bias",))
    assert learners.maml(stack, 2, adapted=paths).shared_layers == 1


def test_selections_that_find_nothing():
    with pytest.raises(InputError, match="selects no parameter; expected at least one"):
        adapted_paths(wrap(Body()), X, lambda path: False)
    with pytest.raises(InputError, match="'0/b' *, which selects no parameter"):
        adapted_paths(wrap(Body()), X, ("head/*", "0/b"))


@pytest.mark.parametrize("options", [{"adapted_layers": (0, 1)}, {}])
def test_adapted_and_layers_together(options):
    make = learners.maml if options else learners.anil
    with pytest.raises(InputError, match="both adapted and adapted_layers"):
        make(wrap(Body()), 2, adapted=("head/*",), **options)
