"""Strategies that change a task by itself: MetaMix, Meta-MaxUp and MetaAug."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import augmentation, backbones, interpolation, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.strategies._metaaug import permute_classes, shift_targets
from mlti_jax.strategies._mixing import METHODS
from mlti_jax.types import Batch
from tests.support.regulariser_cases import maml, tasks  # noqa: F401
from tests.support.tasks import embed, init, make_task, objective, take, task_loss

KEY = jax.random.key(0)
LS = {"setting": "label_sharing", "method": "mixup", "layers": (0,)}


# ------------------------------------------------------------------------- MetaMix


def test_channel_shuffle_needs_hidden_layers_and_classes():
    with pytest.raises(InputError, match="regression has no classes"):
        strategies.metamix(setting="regression", channel_shuffle=True)
    shuffled = {"setting": "label_sharing", "channel_shuffle": True}
    with pytest.raises(InputError, match="is for hidden layers"):
        strategies.metamix(**shuffled, layers=(0, 1))
    strategies.metamix(**shuffled, layers=(1,))


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1])
def test_metamix_objective_equals_a_loop_of_tasks(maml, tasks, layer):
    strategy = strategies.metamix(setting="label_sharing", layers=(0, 1), alpha=0.7)
    variables = init(maml, KEY, tasks.support.x[0])
    loss, aux = objective(maml, strategy, variables, tasks, layer=layer)
    assert aux.metric.shape == (4, 1)
    _, key_embed, key_transform, key_loss, _ = jax.random.split(KEY, 5)
    losses = []
    for i, key in enumerate(jax.random.split(key_transform, (4, 1))[:, 0]):
        hidden, _ = embed(maml, variables, take(tasks, i), key_embed, layer, True)
        key_lambda, key_mix, _, _ = jax.random.split(key, 4)
        lam = interpolation.sample_lambda(key_lambda, 0.7)
        mixed = augmentation.query_with_support(key_mix, hidden, lam)
        losses.append(task_loss(maml, variables, mixed, key_loss, layer, True)[0])
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)


# -------------------------------------------------------------------------- MaxUp


def test_maxup_takes_the_worst_of_its_versions(maml, tasks):
    strategy = strategies.maxup(**LS, versions=3)
    variables = init(maml, KEY, tasks.support.x[0])
    loss, aux = objective(maml, strategy, variables, tasks)
    assert aux.metric.shape == (4, 3)
    # By a loop: the same versions, each task's loss on its own.
    keys = jax.random.split(jax.random.split(KEY, 5)[2], (4, 3))
    worst, everything = [], []
    for i in range(4):
        own = []
        for m in range(3):
            key_lambda, key_mix = jax.random.split(keys[i, m])
            lam = interpolation.sample_lambda(key_lambda, 2.0)
            version = interpolation.query_only(key_mix, take(tasks, i), lam)
            own.append(float(task_loss(maml, variables, version, KEY, 0, True)[0]))
        worst.append(max(own))
        everything += own
    np.testing.assert_allclose(loss, np.mean(worst), rtol=1e-4)
    assert loss > np.mean(everything)


def test_maxup_of_one_version_is_one_augmentation(maml, tasks):
    variables = init(maml, KEY, tasks.support.x[0])
    one = strategies.maxup(**LS, versions=1)
    loss, _ = objective(maml, one, variables, tasks)
    keys = jax.random.split(jax.random.split(KEY, 5)[2], (4, 1))
    losses = []
    for i in range(4):
        key_lambda, key_mix = jax.random.split(keys[i, 0])
        lam = interpolation.sample_lambda(key_lambda, 2.0)
        version = interpolation.query_only(key_mix, take(tasks, i), lam)
        losses.append(float(task_loss(maml, variables, version, KEY, 0, True)[0]))
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_versions_with_one_support_set_equal_versions_apart(tasks, name):
    learner = learners.make(name, backbones.mlp((6, 7)), 3)
    variables = init(learner, KEY, tasks.support.x[0])
    strategy = strategies.maxup(**LS, versions=3)
    once, aux = objective(learner, strategy, variables, tasks)

    def repeated(tasks, key, size):
        out = strategy.transform(tasks, key, size)
        support = jax.tree.map(lambda a: jnp.stack([a] * 3, axis=1), out.support)
        return out.replace(support=support)

    apart, other = objective(
        learner, strategy._replace(transform=repeated), variables, tasks
    )
    np.testing.assert_allclose(once, apart, rtol=1e-5)
    chex.assert_trees_all_close(aux, other, rtol=1e-3, atol=1e-5)


def test_maxup_of_both_sets_mixes_the_support_too(tasks):
    both = strategies.maxup(**LS, sets="both").transform(tasks, KEY, 4)
    query = strategies.maxup(**LS, sets="query").transform(tasks, KEY, 4)
    assert both.support.x.shape == (4, 4, *tasks.support.x.shape[1:])
    chex.assert_trees_all_equal(query.support, tasks.support)
    for version in range(4):
        assert (np.asarray(both.support.x[:, version] != tasks.support.x)).any()


# ------------------------------------------------------------------------ MetaAug


def test_permuted_classes_are_alike_in_support_and_query():
    task = make_task(1, ways=4)
    changed = jax.jit(permute_classes)(task, jax.random.key(3))
    np.testing.assert_array_equal(changed.support.x, task.support.x)
    before = np.asarray(task.support.y).argmax(1), np.asarray(task.query.y).argmax(1)
    after = (
        np.asarray(changed.support.y).argmax(1),
        np.asarray(changed.query.y).argmax(1),
    )
    mapping = dict(zip(before[0].tolist(), after[0].tolist(), strict=True))
    assert sorted(mapping.values()) == [0, 1, 2, 3]
    assert [mapping[c] for c in before[1].tolist()] == after[1].tolist()


def test_tasks_get_permutations_of_their_own(tasks):
    strategy = strategies.metaaug(setting="label_sharing")
    orders = set()
    for seed in range(6):
        changed = strategy.relabel(tasks, jax.random.key(seed))
        for i in range(4):
            orders.add(tuple(np.asarray(changed.support.y[i]).argmax(1).tolist()))
    assert len(orders) > 3


def test_shifted_targets_by_hand():
    batch = Batch(x=jnp.zeros((3, 2)), y=jnp.array([[0.5], [4.0], [9.5]]))
    task = make_task(1).replace(support=batch, query=batch)
    shifted = shift_targets(task, 2.5, 10.0)
    for part in (shifted.support, shifted.query):
        np.testing.assert_allclose(part.y, [[3.0], [6.5], [2.0]])
    np.testing.assert_allclose(shift_targets(task, 2.5).query.y[2], 12.0)


def test_shifts_are_parts_of_the_period(tasks):
    targets = jax.tree.map(lambda y: 0.0 * y[..., :1], tasks.support.y)
    batch = Batch(tasks.support.x, targets)
    tasks = tasks.replace(support=batch, query=batch)
    strategy = strategies.metaaug(setting="regression", period=10.0)
    seen = set()
    for seed in range(10):
        changed = strategy.relabel(tasks, jax.random.key(seed))
        np.testing.assert_array_equal(changed.support.y, changed.query.y)
        assert (np.ptp(np.asarray(changed.support.y), axis=1) == 0).all()
        seen |= set(np.asarray(changed.support.y)[:, 0, 0].tolist())
    assert seen == {0.0, 2.5, 5.0, 7.5}


def test_metaaug_where_labels_are_as_drawn_is_vanilla_to_the_digit(tasks):
    protonet = learners.protonet(backbones.mlp((6, 7)), 3)
    variables = init(protonet, KEY, tasks.support.x[0])
    strategy = strategies.make("metaaug", setting="non_label_sharing")
    loss, _ = objective(protonet, strategy, variables, tasks)
    assert loss == objective(protonet, strategies.vanilla(), variables, tasks)[0]
    # A permutation would change no more than the order of sums.
    permuted = strategies.metaaug(setting="label_sharing")
    other, _ = objective(protonet, permuted, variables, tasks)
    np.testing.assert_allclose(other, loss, rtol=1e-5)


@pytest.mark.slow
def test_metaaug_changes_what_maml_learns_and_goes_with_mlti(maml, tasks):
    variables = init(maml, KEY, tasks.support.x[0])
    vanilla, _ = objective(maml, strategies.vanilla(), variables, tasks)
    alone, _ = objective(
        maml, strategies.metaaug(setting="label_sharing"), variables, tasks
    )
    assert abs(float(alone - vanilla)) > 1e-4
    both = strategies.make("mlti+metaaug", setting="label_sharing")
    assert both.relabel is not None
    mlti, _ = objective(maml, strategies.mlti(**LS), variables, tasks)
    combined, _ = objective(maml, both, variables.replace(strategy=((), ())), tasks)
    assert np.isfinite(combined)
    assert abs(float(combined - mlti)) > 1e-5


# ------------------------------------------------------- no strength, and MLTI's i = j


def whole(lam):
    """A mixing method that ignores lambda and keeps task i's sample."""
    return lambda key, _, x: interpolation.Mixing(jnp.float32(lam), jnp.float32(lam))


@pytest.mark.parametrize("name", ["mlti", "intra", "cross", "metamix", "maxup"])
def test_lambda_one_is_vanilla_exactly(maml, tasks, name, monkeypatch):
    monkeypatch.setitem(METHODS, "mixup", whole(1.0))
    strategy = strategies.make(name, setting="label_sharing")
    variables = init(maml, KEY, tasks.support.x[0])
    loss, _ = objective(maml, strategy, variables, tasks)
    vanilla, _ = objective(maml, strategies.vanilla(), variables, tasks)
    np.testing.assert_allclose(loss, vanilla, rtol=1e-6)


@pytest.mark.parametrize("within", ["metamix", "function"])
def test_mlti_takes_any_augmentation_where_the_partner_is_the_task(tasks, within):
    def zeros(key, task, lam, method):
        return jax.tree.map(jnp.zeros_like, task)

    strategy = strategies.mlti(**LS, within=zeros if within == "function" else within)
    key = jax.random.key(3)
    mixed = jax.jit(strategy.transform, static_argnums=2)(tasks, key, 4)
    partners = interpolation.sample_partners(jax.random.split(key)[0], tasks.domain)
    assert len({int(j) == i for i, j in enumerate(partners)}) == 2  # both cases occur
    for i, j in enumerate(partners):
        support = np.asarray(mixed.support.x[i, 0])
        if int(j) != i:
            assert (support != np.asarray(tasks.support.x[i])).any()
        elif within == "function":
            assert not support.any()
        else:
            np.testing.assert_array_equal(support, tasks.support.x[i])
            query = np.asarray(mixed.query.x[i, 0])
            assert (query != np.asarray(tasks.query.x[i])).all()


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("maxup", {"versions": 0}, "versions is 0"),
        ("maxup", {"sets": "support"}, "choice of sets"),
        ("maxup", {"alpha": -1.0}, "alpha must be positive"),
        ("metamix", {"alpha": 0.0}, "alpha must be positive"),
        ("metamix", {"lamda": 0.5}, "option of strategy metamix 'lamda'"),
        ("metaaug", {"shifts": ()}, "at least one shift"),
        ("metaaug", {"period": 0.0}, "positive period"),
        ("metaaug", {"setting": "shuffle"}, "unknown setting"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(InputError, match=message):
        strategies.make(name, setting="label_sharing", options={name: options})


def test_two_that_replace_samples_are_refused():
    for names in ("mlti+metamix", "metamix+maxup", "mlti+maxup"):
        with pytest.raises(InputError, match="both replace the tasks' samples"):
            strategies.make(names, setting="label_sharing")
