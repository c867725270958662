"""Interpolation against loops in NumPy and numbers worked by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import interpolation as itp
from mlti_jax.errors import InputError
from mlti_jax.types import Batch
from tests.support.tasks import make_task, stack_tasks, take

KEY = jax.random.key(0)
# As one program each; `test_jit_vmap_and_grad` compares these with eager ones.
label_sharing = jax.jit(itp.label_sharing, static_argnums=4)
non_label_sharing = jax.jit(itp.non_label_sharing, static_argnums=4)
cutmix = jax.jit(itp.cutmix)


def partner_rows(mixed, x_i, x_j, lam):
    """Solves lam x_i + (1 - lam) x_j[k'] = mixed for k', by looking at every row."""
    mixed, x_i, x_j = map(np.asarray, (mixed, x_i, x_j))
    rows = []
    for k in range(len(mixed)):
        wanted = (mixed[k] - lam * x_i[k]) / (1 - lam)
        errors = [np.abs(wanted - x).max() for x in x_j]
        rows.append(int(np.argmin(errors)))
        assert min(errors) < 1e-4
    return rows


# ------------------------------------------------------------------- Eq. 5


@pytest.mark.parametrize("lam", [0.3, 0.9])
def test_label_sharing_is_equation_5_with_a_random_pairing(lam):
    task_i, task_j = make_task(1), make_task(2)
    mixed = label_sharing(KEY, task_i, task_j, lam)
    for part in ("support", "query"):
        new, old, other = (getattr(t, part) for t in (mixed, task_i, task_j))
        rows = partner_rows(new.x, old.x, other.x, lam)
        assert sorted(rows) == list(range(len(rows)))
        for k, row in enumerate(rows):
            by_hand = lam * np.asarray(old.y[k]) + (1 - lam) * np.asarray(other.y[row])
            np.testing.assert_allclose(new.y[k], by_hand, atol=1e-6)
    assert mixed.domain == task_i.domain


def test_label_sharing_really_mixes_labels():
    # Both tasks list their samples by class, so a fixed pairing would mix none.
    mixed = label_sharing(KEY, make_task(1), make_task(2), 0.6)
    assert (np.asarray(mixed.query.y).max(axis=1) < 0.99).sum() >= 4


def test_label_sharing_pairs_differ_between_keys_and_sets():
    task_i, task_j = make_task(1, shots=4), make_task(2, shots=4)
    pairings = set()
    for seed in range(4):
        mixed = label_sharing(jax.random.key(seed), task_i, task_j, 0.5)
        for part in ("support", "query"):
            new, old, other = (getattr(t, part) for t in (mixed, task_i, task_j))
            pairings.add(tuple(partner_rows(new.x, old.x, other.x, 0.5)))
    assert len(pairings) == 8


def test_regression_targets_are_mixed_like_features():
    task_i, task_j = (
        make_task(s).replace(
            support=Batch(x=jnp.full((4, 2), v), y=jnp.full((4, 1), v)),
            query=Batch(x=jnp.full((4, 2), v), y=jnp.full((4, 1), v)),
        )
        for s, v in ((1, 1.0), (2, 3.0))
    )
    mixed = label_sharing(KEY, task_i, task_j, 0.25)
    np.testing.assert_allclose(mixed.support.x, 2.5)
    np.testing.assert_allclose(mixed.query.y, 2.5)


# ------------------------------------------------------------------- Eq. 6


@pytest.mark.parametrize("shuffled", [False, True])
def test_non_label_sharing_is_equation_6(shuffled):
    lam = 0.7
    task_i, task_j = make_task(1, shots=3), make_task(2, shots=3)
    if shuffled:
        order = np.random.default_rng(0).permutation(9)
        task_j = task_j.replace(
            support=jax.tree.map(lambda leaf: leaf[order], task_j.support)
        )
    mixed = non_label_sharing(KEY, task_i, task_j, lam)
    class_pairs = {}
    for part in ("support", "query"):
        new, old, other = (getattr(t, part) for t in (mixed, task_i, task_j))
        rows = partner_rows(new.x, old.x, other.x, lam)
        assert sorted(rows) == list(range(len(rows)))
        for k, row in enumerate(rows):
            r, r_other = int(old.y[k].argmax()), int(other.y[row].argmax())
            # One partner class for each class, the same in support and query.
            assert class_pairs.setdefault(r, r_other) == r_other
        np.testing.assert_array_equal(new.y, old.y)
    assert sorted(class_pairs.values()) == [0, 1, 2]  # without replacement


def test_class_pairs_with_unequal_class_sizes():
    y_i = np.eye(2)[[0, 0, 0, 1]]
    y_j = np.eye(2)[[1, 0, 1, 1]]
    x_i, x_j = np.zeros((4, 1)), np.arange(4.0)[:, None]
    mixed = itp.mix_classes(
        KEY,
        Batch(jnp.asarray(x_i), jnp.asarray(y_i)),
        Batch(jnp.asarray(x_j), jnp.asarray(y_j)),
        jnp.array([1, 0]),
        itp.mixup(KEY, 0.0, None),
    )
    assert sorted(np.asarray(mixed.x)[:3, 0].tolist()) == [0.0, 2.0, 3.0]
    assert mixed.x[3, 0] == 1.0


def test_padding_is_never_a_partner():
    y = jnp.asarray(np.eye(2)[[0, 0, 1, 1]], jnp.float32)
    weight = jnp.array([1.0, 0.0, 1.0, 0.0])
    batch_j = Batch(jnp.array([[1.0], [jnp.nan], [2.0], [jnp.nan]]), y, weight)
    batch_i = Batch(jnp.zeros((4, 1)), y, weight)
    mixed = itp.mix_classes(
        KEY, batch_i, batch_j, jnp.array([1, 0]), itp.mixup(KEY, 0.5, None)
    )
    np.testing.assert_allclose(mixed.x[jnp.array([0, 2]), 0], [1.0, 0.5])
    np.testing.assert_array_equal(mixed.weight, weight)


def test_intra_pairs_do_not_mix_a_sample_with_itself_only():
    task = make_task(3, shots=5)
    mixed = [non_label_sharing(jax.random.key(s), task, task, 0.5) for s in range(5)]
    changed = np.mean(
        [np.abs(np.asarray(m.support.x - task.support.x)).max(1) > 1e-6 for m in mixed]
    )
    assert changed > 0.8


# ------------------------------------------------------------- query only, i = j


def test_query_only_is_equation_5_inside_the_query_set():
    lam = 0.4
    task = make_task(5)
    mixed = itp.query_only(KEY, task, lam)
    np.testing.assert_array_equal(mixed.support.x, task.support.x)
    np.testing.assert_array_equal(mixed.support.y, task.support.y)
    rows = partner_rows(mixed.query.x, task.query.x, task.query.x, lam)
    by_hand = (
        lam * np.asarray(task.query.y) + (1 - lam) * np.asarray(task.query.y)[rows]
    )
    np.testing.assert_allclose(mixed.query.y, by_hand, atol=1e-6)


# ------------------------------------------------------------------------ CutMix


@pytest.mark.parametrize("seed", range(6))
def test_cutmix_pastes_one_box_and_weighs_by_its_real_area(seed):
    key = jax.random.key(seed)
    lam = 0.3 + 0.1 * seed
    coefficient, weight = cutmix(key, lam, jnp.zeros((1, 12, 20, 3)))
    mask = np.asarray(coefficient)[:, :, 0]
    assert set(np.unique(mask)) <= {0.0, 1.0}
    rows, columns = np.where((mask == 0).any(1))[0], np.where((mask == 0).any(0))[0]
    # A single box: the zeros fill the rectangle that they span.
    assert (
        mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] == 0
    ).all()
    assert len(rows) <= int(12 * np.sqrt(1 - lam))
    assert len(columns) <= int(20 * np.sqrt(1 - lam))
    # The share of task i, counted pixel by pixel.
    kept = sum(mask[r, c] for r in range(12) for c in range(20)) / (12 * 20)
    np.testing.assert_allclose(weight, kept, atol=1e-6)


def test_cutmix_label_weight_is_not_lambda_at_the_border():
    weights = [
        float(cutmix(jax.random.key(s), 0.2, jnp.zeros((1, 8, 8, 1)))[1])
        for s in range(30)
    ]
    # The whole box has 7 x 7 pixels; where it is cut off, more than 15 / 64 is kept.
    assert min(weights) >= 15 / 64
    assert max(weights) > 0.4


def test_cutmix_centres_reach_the_whole_image():
    masks = [
        np.asarray(cutmix(jax.random.key(s), 0.75, jnp.zeros((1, 6, 6, 1)))[0])
        for s in range(200)
    ]
    assert (np.mean(masks, axis=0) < 1).all()


def test_cutmix_uses_one_box_for_both_sets_and_moves_pixels():
    ones = make_task(1, shape=(8, 8, 1))
    task_i = jax.tree.map(jnp.zeros_like, ones)
    task_j = jax.tree.map(jnp.ones_like, ones)
    mixed = label_sharing(KEY, task_i, task_j, 0.5, itp.cutmix)
    boxes = np.concatenate([mixed.support.x, mixed.query.x])
    assert (boxes == boxes[0]).all()
    share_j = boxes[0].mean()
    np.testing.assert_allclose(mixed.query.y, share_j, atol=1e-6)


def test_cutmix_refuses_vectors():
    with pytest.raises(InputError, match="cutmix needs images"):
        itp.cutmix(KEY, 0.5, jnp.zeros((3, 7)))


def test_one_means_task_i_unchanged():
    task_i, task_j = make_task(1, shape=(6, 6, 1)), make_task(2, shape=(6, 6, 1))
    for form in (label_sharing, non_label_sharing):
        for method in (itp.mixup, itp.cutmix):
            mixed = form(KEY, task_i, task_j, 1.0, method)
            jax.tree.map(np.testing.assert_array_equal, mixed, task_i)


# ------------------------------------------------------------------- random draws


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, None), (0.5, None), (0.1, 0.3)])
def test_lambda_has_the_moments_of_beta(alpha, beta):
    draws = np.asarray(itp.sample_lambda(KEY, alpha, beta, (40_000,)), np.float64)
    b = alpha if beta is None else beta
    mean = alpha / (alpha + b)
    variance = alpha * b / ((alpha + b) ** 2 * (alpha + b + 1))
    assert ((draws >= 0) & (draws <= 1)).all()
    np.testing.assert_allclose(draws.mean(), mean, atol=0.01)
    np.testing.assert_allclose(draws.var(), variance, rtol=0.03)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_lambda_refuses_parameters_that_are_not_positive(alpha):
    with pytest.raises(InputError, match="must be positive"):
        itp.sample_lambda(KEY, alpha)


def test_partners_any_are_uniform_and_may_be_the_task_itself():
    keys = jax.random.split(KEY, 4000)
    partners = jax.vmap(lambda k: itp.sample_partners(k, jnp.arange(4)))(keys)
    share = np.stack([(np.asarray(partners) == j).mean(0) for j in range(4)])
    np.testing.assert_allclose(share, 0.25, atol=0.04)


def test_partners_intra_and_cross():
    domains = jnp.array([7, 7, 3, 5])
    assert itp.sample_partners(KEY, domains, "intra").tolist() == [0, 1, 2, 3]
    keys = jax.random.split(KEY, 2000)
    draw = jax.vmap(lambda k: itp.sample_partners(k, domains, "cross"))
    partners = np.asarray(draw(keys))
    allowed = [{2, 3}, {2, 3}, {0, 1, 3}, {0, 1, 2}]
    for task, others in enumerate(allowed):
        assert set(partners[:, task]) == others
        for j in others:
            share = (partners[:, task] == j).mean()
            np.testing.assert_allclose(share, 1 / len(others), atol=0.05)


def test_cross_in_a_meta_batch_of_one_source_takes_another_task():
    domains = jnp.array([4, 4, 4])
    keys = jax.random.split(KEY, 100)
    draw = jax.vmap(lambda k: itp.sample_partners(k, domains, "cross"))
    assert (np.asarray(draw(keys)) != np.arange(3)).all()


def test_partners_beyond_the_batch_are_partners_only():
    domains = jnp.array([0, 1])
    assert itp.sample_partners(KEY, domains, "cross", num_tasks=1).tolist() == [1]
    with pytest.raises(InputError, match="needs a second task"):
        itp.sample_partners(KEY, domains[:1], "cross")
    with pytest.raises(InputError, match="choose one of"):
        itp.sample_partners(KEY, domains, "both")


def test_layers_are_drawn_uniformly():
    keys = jax.random.split(KEY, 3000)
    draws = np.asarray(jax.vmap(lambda k: itp.sample_layer(k, (0, 1, 3)))(keys))
    np.testing.assert_allclose(np.bincount(draws) / 3000, 1 / 3, atol=0.04)


# -------------------------------------------------------- under the caller's transforms


@pytest.mark.parametrize("form", [itp.label_sharing, itp.non_label_sharing])
@pytest.mark.parametrize("method", [itp.mixup, itp.cutmix])
def test_jit_vmap_and_grad(form, method):
    shape = (6, 6, 1)
    tasks_i = stack_tasks([make_task(s, shape=shape) for s in (1, 2)])
    tasks_j = stack_tasks([make_task(s, shape=shape) for s in (3, 4)])
    keys, lams = jax.random.split(KEY, 2), jnp.array([0.3, 0.8])

    def one(key, task_i, task_j, lam):
        return form(key, task_i, task_j, lam, method)

    batched = jax.jit(jax.vmap(one))(keys, tasks_i, tasks_j, lams)
    for index in range(2):
        i, j, together = (take(t, index) for t in (tasks_i, tasks_j, batched))
        alone = one(keys[index], i, j, lams[index])
        chex.assert_trees_all_close(together, alone, atol=1e-6)

    def total(x):
        task, other = take(tasks_i, 0), take(tasks_j, 0)
        task = task.replace(support=task.support.replace(x=x))
        return one(keys[0], task, other, lams[0]).support.x.sum()

    x = tasks_i.support.x[0]
    coefficient = method(
        jax.random.split(keys[0], 3 if form is itp.label_sharing else 4)[0], lams[0], x
    ).coefficient
    # d/dx of the sum of c x + (1 - c) x_j is c.
    by_hand = np.broadcast_to(coefficient, x.shape)
    np.testing.assert_allclose(jax.grad(total)(x), by_hand, atol=1e-6)


def test_pytrees_are_mixed_leaf_by_leaf():
    task_i, task_j = make_task(1), make_task(2)

    def double(t):
        return t.replace(
            support=t.support.replace(x={"a": t.support.x, "b": t.support.x[:, :2]}),
            query=t.query.replace(x={"a": t.query.x, "b": t.query.x[:, :2]}),
        )

    mixed = label_sharing(KEY, double(task_i), double(task_j), 0.2)
    np.testing.assert_array_equal(mixed.query.x["a"][:, :2], mixed.query.x["b"])


def test_tasks_of_different_shapes_are_refused():
    for form in (itp.label_sharing, itp.non_label_sharing):
        with pytest.raises(InputError, match="shapes are equal"):
            form(KEY, make_task(1, shots=2), make_task(2, shots=3), 0.5)
