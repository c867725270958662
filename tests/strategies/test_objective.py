"""Strategies and what `meta_objective` makes of them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, interpolation, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.strategies import Strategy, chain
from mlti_jax.strategies._objective import check_layers, tasks_per_step
from mlti_jax.strategies._registry import STRATEGIES, parse
from tests.support.tasks import (
    embed,
    init,
    make_task,
    objective,
    stack_tasks,
    take,
    task_loss,
)

KEY = jax.random.key(0)
LS = {"setting": "label_sharing", "method": "mixup", "layers": (0,)}


@pytest.fixture(scope="module")
def maml():
    return learners.maml(backbones.mlp((6, 7)), 3, steps=2)


@pytest.fixture
def tasks():
    return stack_tasks([make_task(s) for s in range(4)])


def test_vanilla_is_the_mean_over_a_loop_of_tasks(maml, tasks):
    variables = init(maml, KEY, tasks.support.x[0])
    loss, aux = objective(maml, strategies.vanilla(), variables, tasks)
    alone = [task_loss(maml, variables, take(tasks, i), KEY, 0, True) for i in range(4)]
    np.testing.assert_allclose(loss, np.mean([a[0] for a in alone]), rtol=1e-5)
    assert aux.metric.shape == (4, 1)
    mean_state = jax.tree.map(lambda *s: np.mean(s, 0), *[a[1].state for a in alone])
    chex.assert_trees_all_close(aux.state, mean_state, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layer", [0, 1])
def test_mlti_equals_a_loop_of_pairs(maml, tasks, layer):
    strategy = strategies.mlti(**{**LS, "layers": (0, 1)}, alpha=0.7)
    variables = init(maml, KEY, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks, layer=layer)

    # The same by hand: features of each task, then pair by pair, with the same keys.
    _, key_embed, key_transform, key_loss, _ = jax.random.split(KEY, 5)
    mix = jax.jit(interpolation.label_sharing)
    hidden = [
        embed(maml, variables, take(tasks, i), key_embed, layer, True)[0]
        for i in range(4)
    ]
    key_partners, key_tasks = jax.random.split(key_transform)
    partners = interpolation.sample_partners(key_partners, tasks.domain)
    losses = []
    for i, key in enumerate(jax.random.split(key_tasks, 4)):
        key_lambda, key_mix, _ = jax.random.split(key, 3)
        lam = interpolation.sample_lambda(key_lambda, 0.7)
        mixed = mix(key_mix, hidden[i], hidden[int(partners[i])], lam)
        losses.append(task_loss(maml, variables, mixed, key_loss, layer, True)[0])
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)


@pytest.mark.parametrize("name", ["intra", "cross"])
def test_restrictions_reach_the_partners(name, tasks):
    # Every x of task i is 10^i, so that a mixed value tells who was mixed.
    scale = 10.0 ** jnp.arange(4)
    x = jnp.broadcast_to(scale[:, None, None], tasks.support.x.shape)
    tasks = tasks.replace(
        support=tasks.support.replace(x=x),
        query=tasks.query.replace(
            x=jnp.broadcast_to(scale[:, None, None], tasks.query.x.shape)
        ),
    )
    strategy = STRATEGIES[name](**LS)
    transform = jax.jit(lambda key: strategy.transform(tasks, key, 4))
    for seed in range(5):
        mixed = transform(jax.random.key(seed))
        values = np.asarray(mixed.support.x)[:, 0, 0, 0]
        same = np.isclose(values, np.asarray(scale), rtol=1e-5)
        assert same.all() if name == "intra" else not same.any()


def test_alpha_of_intra_pairs_is_its_own(tasks):
    # alpha 1e-3 makes lambda 0 or 1; 1e4 makes it one half.
    strategy = strategies.mlti(**LS, alpha=1e-3, alpha_intra=1e4)
    tasks = tasks.replace(
        support=tasks.support.replace(
            x=jnp.broadcast_to(jnp.arange(4.0)[:, None, None], tasks.support.x.shape)
        )
    )
    transform = jax.jit(lambda key: strategy.transform(tasks, key, 4))
    seen = {"intra": [], "cross": []}
    for seed in range(10):
        key = jax.random.key(seed)
        labels = np.asarray(transform(key).query.y)[:, 0]
        keys = jax.random.split(key)
        for i, j in enumerate(interpolation.sample_partners(keys[0], tasks.domain)):
            # Of samples whose two labels differ, the labels tell lambda.
            mixed = labels[i][labels[i].max(axis=1) < 0.999]
            seen["intra" if int(j) == i else "cross"] += mixed.max(axis=1).tolist()
    assert len(seen["intra"]) > 10
    np.testing.assert_allclose(seen["intra"], 0.5, atol=0.05)
    assert all(share > 0.9 for share in seen["cross"])


def test_query_only_where_partner_is_the_task_itself(tasks):
    strategy = strategies.mlti(
        setting="non_label_sharing", method="mixup", layers=(0,), within="query"
    )
    intra = strategies.intra(
        setting="non_label_sharing", method="mixup", layers=(0,), within="query"
    )
    transform = jax.jit(intra.transform, static_argnums=2)
    mixed = transform(tasks, KEY, 4)
    np.testing.assert_array_equal(mixed.support.x[:, 0], tasks.support.x)
    assert (np.asarray(mixed.query.y).max(-1) < 0.999).any()
    key = jax.random.key(3)
    transform = jax.jit(strategy.transform, static_argnums=2)
    mixed = transform(tasks, key, 4)
    partners = interpolation.sample_partners(jax.random.split(key)[0], tasks.domain)
    for i in range(4):
        unchanged = np.allclose(mixed.support.x[i, 0], tasks.support.x[i])
        assert unchanged == (int(partners[i]) == i)


@pytest.mark.parametrize("name", ["mlti", "cross", "intra"])
def test_boxes_of_support_and_query(name):
    tasks = stack_tasks([make_task(s, shape=(8, 8, 1)) for s in range(4)])
    # Pixels are their positions and those of the tasks differ: a box can be read off.
    position = jnp.arange(64.0).reshape(8, 8, 1)
    tasks = tasks.replace(
        support=tasks.support.replace(x=0 * tasks.support.x),
        query=tasks.query.replace(x=0 * tasks.query.x),
    )
    offsets = jnp.arange(4.0)[:, None, None, None, None]

    def marked(batch):
        samples = jnp.arange(batch.x.shape[1])[None, :, None, None, None]
        return batch.replace(x=batch.x + position + 100 * samples + 10_000 * offsets)

    tasks = tasks.replace(support=marked(tasks.support), query=marked(tasks.query))

    def boxes_of(boxes, key):
        strategy = STRATEGIES[name](
            setting="label_sharing", method="cutmix", layers=(0,), boxes=boxes
        )
        mixed = jax.jit(strategy.transform, static_argnums=2)(tasks, key, 4)
        # Where any sample of the set has changed.
        return [
            np.asarray((new.x[:, 0] != old.x).any(axis=(1, 4)))
            for new, old in ((mixed.support, tasks.support), (mixed.query, tasks.query))
        ]

    same = {"shared": [], "separate": []}
    for boxes in same:
        for seed in range(6):
            support, query = boxes_of(boxes, jax.random.key(seed))
            same[boxes] += (support == query).all(axis=(1, 2)).tolist()
    assert all(same["shared"])
    assert np.mean(same["separate"]) < 0.3


def test_boxes_are_for_cutmix():
    assert strategies.mlti(setting="label_sharing", method="cutmix", boxes="separate")
    with pytest.raises(InputError, match="is for cutmix, and interpolation.method is"):
        strategies.cross(**LS, boxes="separate")


@pytest.mark.parametrize(("name", "extra"), [("mlti", 1), ("cross", 1), ("intra", 0)])
def test_a_single_task_gets_a_partner(maml, name, extra):
    strategy = strategies.make(name, setting="label_sharing")
    assert tasks_per_step(strategy, 1) == 1 + extra
    assert tasks_per_step(strategy, 4) == 4
    tasks = stack_tasks([make_task(s) for s in range(1 + extra)])
    variables = init(maml, KEY, tasks.support.x[0])
    loss, aux = objective(maml, strategy, variables, tasks, size=1)
    assert np.isfinite(loss)
    assert aux.metric.shape == (1, 1)


# ------------------------------------------------------------------------- chain


def penalized(name, value):
    """A strategy with one parameter, which scales the weights and is the penalty."""
    return Strategy(
        name,
        init=lambda learner, variables, key, x: {"value": jnp.float32(value)},
        sample=lambda variables, key: variables.replace(
            params=jax.tree.map(
                lambda p: p * variables.strategy["value"], variables.params
            )
        ),
        penalty=lambda variables, aux: variables.strategy["value"],
    )


@pytest.mark.slow
def test_chain_adds_penalties_and_keeps_parameters_apart(maml, tasks):
    combined = chain(strategies.mlti(**LS), penalized("a", 2.0), penalized("b", 5.0))
    assert combined.name == "mlti+a+b"
    variables = strategies.init_variables(maml, combined, KEY, tasks.support.x[0])
    assert variables.strategy == ((), {"value": 2.0}, {"value": 5.0})
    # Both members sample in turn: weights are scaled by 2 and then by 5.
    scaled = variables.replace(params=jax.tree.map(lambda p: 10 * p, variables.params))
    alone, _ = objective(maml, strategies.mlti(**LS), scaled, tasks)
    loss, _ = objective(maml, combined, variables, tasks)
    np.testing.assert_allclose(loss, alone + 7.0, rtol=1e-5)
    unscaled, _ = objective(maml, strategies.mlti(**LS), variables, tasks)
    assert abs(float(alone - unscaled)) > 1e-3

    # Each member is trained: its penalty adds 1 to the gradient of its parameter.
    def gradient(strategy):
        def value(own):
            changed = variables.replace(strategy=own)
            return objective(maml, strategy, changed, tasks)[0]

        return jax.jit(jax.grad(value))(variables.strategy)

    with_penalty = gradient(combined)
    without = gradient(combined._replace(penalty=None))
    for index in (1, 2):
        change = with_penalty[index]["value"] - without[index]["value"]
        np.testing.assert_allclose(change, 1.0, atol=1e-4)


def test_two_transforms_cannot_be_combined():
    with pytest.raises(InputError, match="mlti and intra cannot be combined"):
        strategies.make("mlti+intra", setting="label_sharing")


def test_the_version_with_the_largest_loss_counts(maml, tasks):
    def twice(tasks, key, size):
        return jax.tree.map(lambda a: jnp.stack([a, a * 0.5], axis=1), tasks)

    variables = init(maml, KEY, tasks.support.x[0])
    loss, aux = objective(maml, Strategy("twice", transform=twice), variables, tasks)
    assert aux.metric.shape == (4, 2)
    losses = np.array(
        [
            [
                float(task_loss(maml, variables, version, KEY, 0, True)[0])
                for version in (task, jax.tree.map(lambda a: a * 0.5, task))
            ]
            for task in (take(tasks, i) for i in range(4))
        ]
    )
    assert (losses[:, 0] != losses[:, 1]).all()
    np.testing.assert_allclose(loss, losses.max(axis=1).mean(), rtol=1e-5)


# --------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setting": "both"}, "unknown setting"),
        ({"method": "blend"}, "mixing method"),
        ({"partners": "next"}, "choice of partners"),
        ({"within": "support"}, "augmentation within a task"),
        ({"boxes": "both"}, "choice of boxes"),
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"alpha_intra": -1.0}, "alpha_intra must be positive"),
        ({"method": "cutmix", "layers": (0, 1)}, "layer 0 only"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        strategies.mlti(**{**LS, **options})


@pytest.mark.parametrize("layers", [(2,), (-1,), ()])
def test_layers_that_are_not_shared(maml, layers):
    with pytest.raises(InputError, match="among 0..1"):
        check_layers(maml, strategies.mlti(**{**LS, "layers": layers}))


@pytest.mark.parametrize("names", ["mlt", "vanilla+nothing"])
def test_unknown_strategy(names):
    with pytest.raises(InputError, match="unknown strategy"):
        strategies.make(names, setting="label_sharing")


def test_a_member_without_a_name():
    with pytest.raises(InputError, match="has an empty member"):
        strategies.make("mlti+", setting="label_sharing")


def test_a_member_named_twice():
    with pytest.raises(InputError, match="twice"):
        parse("vanilla+vanilla")
