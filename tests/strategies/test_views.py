"""Task views: random changes of the inputs that a task's two sets share."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, interpolation, learners, strategies
from mlti_jax.data._pools import take_inputs
from mlti_jax.errors import InputError
from mlti_jax.parallel import Plan
from mlti_jax.strategies import Strategy, chain, each_task
from mlti_jax.strategies._views import change_image, drop_words, keep_features
from mlti_jax.training import Episode, Evaluator, build
from mlti_jax.types import Batch, Task
from tests.support.learner_table import sentences
from tests.support.pool_kinds import small_config, splits
from tests.support.tasks import (
    embed,
    image_pool,
    init,
    make_task,
    objective,
    stack_tasks,
    take,
    task_loss,
)

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 200)


@pytest.fixture(scope="module")
def maml():
    return learners.maml(backbones.mlp((6, 7)), 3, steps=2)


@pytest.fixture(scope="module")
def tasks():
    return stack_tasks([make_task(s) for s in range(4)])


def ones(*shape):
    """A task whose inputs are all one, with 6 samples in each set."""
    batch = Batch(x=jnp.ones((6, *shape)), y=jnp.eye(3).repeat(2, axis=0))
    return Task(support=batch, query=batch, domain=jnp.int32(0))


def see(task, **options):
    """The task in the views of 200 keys."""
    augment = strategies.views(**options).augment
    return jax.jit(jax.vmap(augment, (0, None)))(KEYS, task)


# ------------------------------------------------------------------------ vectors


def test_one_mask_for_all_samples_of_a_task():
    seen = see(ones(50), low=0.4)
    for x in (seen.support.x, seen.query.x):
        np.testing.assert_array_equal(x, np.broadcast_to(x[:, :1], x.shape))
    np.testing.assert_array_equal(seen.support.x, seen.query.x)
    np.testing.assert_array_equal(seen.support.y, jnp.stack([ones(1).support.y] * 200))
    mask = np.asarray(seen.support.x[:, 0])
    scale = mask.max(axis=1)
    assert set((mask / scale[:, None]).ravel().tolist()) == {0.0, 1.0}
    # The share of kept features is that of the scale, and the rate is uniform.
    np.testing.assert_allclose((mask > 0).mean(1), 1 / scale, atol=0.3)
    assert (scale >= 1).all()
    assert (1 / scale > 0.4).all()
    np.testing.assert_allclose(np.mean(1 / scale), 0.7, atol=0.05)


def test_the_expectation_of_every_feature_is_unchanged():
    x = jnp.array([1.0, -2.0, 0.5])
    keys = jax.random.split(KEY, 20_000)
    seen = jax.jit(jax.vmap(lambda key: keep_features(key, x, 0.3)))(keys)
    np.testing.assert_allclose(seen.mean(0), x, atol=0.05)
    # E[(m/p)^2] = E[1/p] = ln(1/low) / (1 - low)
    second = -np.log(0.3) / 0.7
    np.testing.assert_allclose((seen**2).mean(0), x**2 * second, rtol=0.05)


def test_a_view_is_linear_in_the_features():
    x = jnp.arange(1.0, 9.0)
    slope = jax.jacobian(lambda x: keep_features(KEY, x, 0.3))(x)
    seen = np.asarray(keep_features(KEY, x, 0.3))
    np.testing.assert_allclose(slope, np.diag(seen / np.asarray(x)), rtol=1e-6)


def test_each_sample_can_have_a_mask_of_its_own():
    seen = see(ones(50), level="sample")
    masks = np.concatenate([seen.support.x, seen.query.x], axis=1)  # [200, 12, 50]
    scale = masks.max(axis=2)
    assert (np.diff(np.sort(scale, axis=1), axis=1) > 0).all()  # rates of their own
    np.testing.assert_allclose(masks.mean(), 1.0, atol=0.02)
    a, b = masks[:, 0] > 0, masks[:, 1] > 0
    assert (a != b).any(axis=1).all()


def test_to_keep_all_features_is_vanilla(maml, tasks):
    chex.assert_trees_all_equal(take(see(make_task(0), low=1.0), 3), make_task(0))
    variables = init(maml, KEY, tasks.support.x[0])
    loss, _ = objective(maml, strategies.views(low=1.0), variables, tasks)
    vanilla, _ = objective(maml, strategies.vanilla(), variables, tasks)
    np.testing.assert_allclose(loss, vanilla, rtol=1e-6)


# ------------------------------------------------------------------------- images


def image_task(height=6, width=6, channels=3):
    return make_task(0, shape=(height, width, channels))


ONLY = {
    "permute_channels": False,
    "jitter": 0.0,
    "flip": False,
    "rotate": False,
    "shift": 0.0,
}


def symmetries(x, turns):
    """Every order of channels, flip and rotation of images, in NumPy."""
    orders = itertools.permutations(range(x.shape[-1]))
    for order, flip, k in itertools.product(orders, (False, True), turns):
        changed = x[..., list(order)]
        changed = changed[:, :, ::-1] if flip else changed
        yield (order, flip, k), np.rot90(changed, k, axes=(1, 2))


@pytest.mark.parametrize(("height", "turns"), [(6, (0, 1, 2, 3)), (4, (0, 2))])
def test_support_and_query_get_the_same_symmetry(height, turns):
    task = image_task(height)
    options = {**ONLY, "permute_channels": True, "flip": True, "rotate": True}
    seen = see(task, **options)
    queries = dict(symmetries(np.asarray(task.query.x), turns))
    used = set()
    for support, query in zip(seen.support.x, seen.query.x, strict=True):
        matching = [
            name
            for name, changed in symmetries(np.asarray(task.support.x), turns)
            if np.array_equal(changed, support)
        ]
        assert len(matching) == 1
        np.testing.assert_array_equal(query, queries[matching[0]])
        used.add(matching[0])
    assert len({order for order, _, _ in used}) == 6
    assert {flip for _, flip, _ in used} == {False, True}
    assert {k for _, _, k in used} == set(turns)
    np.testing.assert_array_equal(seen.support.y[7], task.support.y)


def test_jitter_scales_the_channels_of_all_samples():
    task = image_task()
    seen = see(task, **{**ONLY, "jitter": 0.3})
    factors = np.asarray(seen.support.x / task.support.x)[:, 0, 0, 0]  # [200, 3]
    for batch, drawn in ((seen.support, task.support), (seen.query, task.query)):
        expected = np.asarray(drawn.x) * factors[:, None, None, None]
        np.testing.assert_allclose(batch.x, expected, rtol=1e-4)
    assert (factors > 0.699).all()
    assert (factors < 1.301).all()
    np.testing.assert_allclose(factors.mean(), 1.0, atol=0.03)
    assert (np.diff(np.sort(factors, axis=1), axis=1) > 0).all()  # each channel its own


def test_shifts_repeat_the_border():
    x = np.asarray(image_task(8, 5).support.x[0])
    options = {**ONLY, "shift": 0.25}  # two rows and one column
    padded = np.pad(x, ((2, 2), (1, 1), (0, 0)), mode="edge")
    expected = {
        (i, j): padded[i : i + 8, j : j + 5]
        for i, j in itertools.product(range(5), range(3))
    }
    shifted = jax.vmap(lambda key: change_image(key, x, **options))(KEYS)
    used = set()
    for image in np.asarray(shifted):
        used |= {at for at, known in expected.items() if np.array_equal(image, known)}
    assert used == set(expected)


def test_no_change_of_images():
    task = image_task()
    assert see(task, **ONLY).support.x.shape == (200, *task.support.x.shape)
    chex.assert_trees_all_equal(take(see(task, **ONLY), 3), task)


def test_each_image_can_be_changed_alone():
    batch = image_task().support
    same = batch.replace(x=jnp.broadcast_to(batch.x[:1], batch.x.shape))
    task = Task(support=same, query=same, domain=jnp.int32(0))
    seen = see(task, **{**ONLY, "flip": True}, level="sample")
    flips = np.asarray((seen.support.x != same.x).any(axis=(2, 3, 4)))
    np.testing.assert_allclose(flips.mean(), 0.5, atol=0.1)
    assert (flips.any(axis=1) & ~flips.all(axis=1)).mean() > 0.5


# --------------------------------------------------------------------------- text


def test_dropped_words_are_the_same_in_a_task():
    task = sentences(0, 30)
    seen = see(task, low=0.5)
    shares = []
    for i in range(200):
        fate = {}
        for batch, drawn in ((seen.support, task.support), (seen.query, task.query)):
            np.testing.assert_array_equal(batch.x["ids"][i], drawn.x["ids"])
            mask, before = np.asarray(batch.x["mask"][i]), np.asarray(drawn.x["mask"])
            assert (mask <= before).all()
            np.testing.assert_array_equal(mask[:, 0], before[:, 0])  # first tokens
            later = (before > 0) & (np.arange(4) > 0)
            for word, kept in zip(drawn.x["ids"][later], mask[later], strict=True):
                assert fate.setdefault(int(word), kept) == kept
        shares.append(np.mean(list(fate.values())))
    np.testing.assert_allclose(np.mean(shares), 0.75, atol=0.05)


def test_each_text_can_lose_words_of_its_own():
    x = {"ids": jnp.tile(jnp.arange(8), (6, 1)), "mask": jnp.ones((6, 8))}
    batch = Batch(x=x, y=jnp.eye(3).repeat(2, axis=0))
    task = Task(support=batch, query=batch, domain=jnp.int32(0))
    masks = np.asarray(see(task, level="sample").support.x["mask"])
    assert (masks[:, 0] != masks[:, 1]).any(axis=1).mean() > 0.5
    masks = np.asarray(see(task).support.x["mask"])
    np.testing.assert_array_equal(masks[:, 0], masks[:, 1])


def test_a_kept_vocabulary_keeps_all_words():
    x = {"ids": jnp.arange(9), "mask": jnp.ones(9)}
    chex.assert_trees_all_equal(drop_words(KEY, x, 1.0), x)


# ------------------------------------------------------- in the objective, combined


def views_of(tasks, augment, key=KEY):
    """The tasks of a step in their views, one after the other."""
    keys = jax.random.split(jax.random.fold_in(key, 5), 4)
    return [augment(k, take(tasks, i)) for i, k in enumerate(keys)]


@pytest.mark.parametrize("layer", [0, 1])
def test_partners_bring_their_own_views(maml, tasks, layer):
    options = {"layers": (0, 1)}
    both = strategies.make("mlti+views", setting="label_sharing", interpolation=options)
    variables = init(maml, KEY, tasks.support.x[0])
    stated = variables.replace(strategy=((), ()))
    loss, _ = objective(maml, both, stated, tasks, layer=layer)
    # By a loop of pairs, as in the test of MLTI alone.
    _, key_embed, key_transform, key_loss, _ = jax.random.split(KEY, 5)
    hidden = [
        embed(maml, variables, task, key_embed, layer, True)[0]
        for task in views_of(tasks, both.augment)
    ]
    key_partners, key_tasks = jax.random.split(key_transform)
    partners = interpolation.sample_partners(key_partners, tasks.domain)
    losses = []
    for i, key in enumerate(jax.random.split(key_tasks, 4)):
        key_lambda, key_mix, _ = jax.random.split(key, 3)
        lam = interpolation.sample_lambda(key_lambda, 2.0)
        pair = hidden[i], hidden[int(partners[i])]
        mixed = interpolation.label_sharing(key_mix, *pair, lam)
        losses.append(task_loss(maml, variables, mixed, key_loss, layer, True)[0])
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", ["views", "metamix+views", "views+metareg", "maxup+views", "views+metaaug"]
)
def test_views_come_before_all_else(maml, tasks, names):
    """The objective is that of the other strategy on tasks in their views."""
    both = strategies.make(names, setting="label_sharing")
    others = both._replace(augment=None)
    variables = strategies.init_variables(maml, both, KEY, tasks.support.x[0])
    loss, aux = objective(maml, both, variables, tasks)
    if both.relabel is not None:
        relabeled = both.relabel(tasks, jax.random.split(KEY, 5)[4])
        others = others._replace(relabel=None)
    else:
        relabeled = tasks
    seen = stack_tasks(views_of(relabeled, both.augment))
    expected = objective(maml, others, variables, seen)
    chex.assert_trees_all_close((loss, aux), expected, rtol=1e-4, atol=1e-5)


def test_chain_augments_in_order():
    def scaled(key, task):
        return jax.tree.map(lambda leaf: 10 * leaf, task)

    def shifted(key, task):
        return jax.tree.map(lambda leaf: leaf + 1, task)

    both = chain(Strategy("a", augment=scaled), Strategy("b", augment=shifted))
    assert both.augment(KEY, jnp.float32(2.0)) == 21.0
    assert chain(strategies.vanilla(), strategies.metareg()).augment is None


PLANS = {
    "one device": Plan(),
    "passes of 1": Plan(tasks_per_pass=1),
    "2 devices": Plan(tuple(jax.devices()[:2])),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("by_rows", [False, True], ids=["samples", "rows"])
@pytest.mark.parametrize("names", ["views", "mlti+views", "any+views"])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_same_views_on_every_path(maml, tasks, plan, by_rows, names, layer):
    """With samples or their row numbers, on one device or two, in passes or not."""
    own = strategies.views()
    if names == "any+views":  # a transform that may look at all tasks
        move = each_task(lambda key, task: jax.tree.map(lambda a: a + 1, task))
        other = Strategy("any", transform=lambda *arguments: move(*arguments))
    else:
        other = strategies.mlti(setting="label_sharing", layers=(0, 1))
    strategy = own if names == "views" else chain(other, own)
    variables = init(maml, KEY, tasks.support.x[0])
    variables = variables.replace(strategy=() if names == "views" else ((), ()))
    expected, _ = objective(maml, strategy, variables, tasks, layer=layer)
    samples = None
    if by_rows:
        parts = [b.x.reshape(-1, 5) for b in (tasks.support, tasks.query)]
        samples = jnp.concatenate(parts)
        rows = jnp.arange(len(samples))
        first = len(parts[0])
        drawn = tasks.replace(
            support=tasks.support.replace(x=rows[:first].reshape(4, -1)),
            query=tasks.query.replace(x=rows[first:].reshape(4, -1)),
        )
        chex.assert_trees_all_equal(take_inputs(samples, drawn.query.x), tasks.query.x)
    loss, _ = jax.jit(
        lambda tasks: strategies.meta_objective(
            maml, strategy, variables, tasks, KEY, layer, 4, plan, samples
        )
    )(drawn if by_rows else tasks)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.slow
def test_evaluation_sees_tasks_as_they_are():
    learner = learners.protonet(backbones.conv4(4, blocks=2), 2)
    pool, episode = image_pool(), Episode(2, 1, 2)
    variables = init(learner, KEY, pool.x[:2])
    values = [
        Evaluator(learner, strategy, episode, 4)(variables, pool, KEY, 8)
        for strategy in (strategies.vanilla(), strategies.views())
    ]
    np.testing.assert_array_equal(*values)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "pixel"}, "level of views"),
        ({"low": 0.0}, r"views.low must be above 0, up to 1, got 0.0"),
        ({"low": 1.5}, "views.low must be above 0"),
        ({"low": float("nan")}, "views.low must be above 0"),
        ({"jitter": 1.0}, r"views.jitter must be in \[0, 1\)"),
        ({"shift": -0.1}, r"views.shift must be in \[0, 1\)"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        strategies.views(**options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (jnp.ones((6, 3, 4)), r"got \(6, 3, 4\)"),
        (jnp.ones((6, 3), jnp.int32), "these are integers"),
        ({"ids": jnp.ones((6, 3), jnp.int32)}, "got dict"),
    ],
)
def test_inputs_that_have_no_views(x, message):
    task = ones(1)
    task = task.replace(
        support=task.support.replace(x=x), query=task.query.replace(x=x)
    )
    with pytest.raises(InputError, match=message):
        strategies.views().augment(KEY, task)


def test_build_checks_that_the_inputs_have_views(tmp_path, monkeypatch):
    def refuse(key, task):
        raise InputError("no views of these")

    build(small_config(strategy="views"), splits=splits("device", tmp_path))
    monkeypatch.setattr("mlti_jax.strategies._views._view_of", lambda *_: refuse)
    with pytest.raises(InputError, match="no views of these"):
        build(small_config(strategy="views"), splits=splits("device", tmp_path))
