"""Interpolation, compared with NumPy loops and numbers computed by hand."""

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
# Compiled once; `test_jit_and_vmap_equal_eager_calls` compares with eager calls.
label_sharing = jax.jit(itp.label_sharing, static_argnums=4)
non_label_sharing = jax.jit(itp.non_label_sharing, static_argnums=4)
query_only = jax.jit(itp.query_only, static_argnums=3)
mix_classes = jax.jit(itp.mix_classes)
cutmix = jax.jit(itp.cutmix)


def partner_rows(mixed, x_i, x_j, lam):
    """Solves lam x_i + (1 - lam) x_j[k'] = mixed for k' with a search of all rows."""
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
    # Equal sizes: exchanged sets must not be detected only from their shapes.
    task_i, task_j = (make_task(s, shots=4, queries=4) for s in (1, 2))
    mixed = label_sharing(KEY, task_i, task_j, lam)
    for part in ("support", "query"):
        new, old, other = (getattr(t, part) for t in (mixed, task_i, task_j))
        rows = partner_rows(new.x, old.x, other.x, lam)
        assert sorted(rows) == list(range(len(rows)))
        for k, row in enumerate(rows):
            by_hand = lam * np.asarray(old.y[k]) + (1 - lam) * np.asarray(other.y[row])
            np.testing.assert_allclose(new.y[k], by_hand, atol=1e-6)
    assert mixed.domain == task_i.domain


def test_label_sharing_mixes_different_labels():
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
    task_i, task_j = (make_task(s, shots=4, queries=4) for s in (1, 2))
    if shuffled:
        order = np.random.default_rng(0).permutation(12)
        task_j = task_j.replace(
            support=jax.tree.map(lambda leaf: leaf[order], task_j.support)
        )
    pairings = set()
    for seed in range(6):
        mixed = non_label_sharing(jax.random.key(seed), task_i, task_j, lam)
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
        assert mixed.domain == task_i.domain
        pairings.add(tuple(class_pairs[r] for r in range(3)))
    assert len(pairings) > 2  # a random permutation, not a fixed one


def test_class_pairs_are_drawn_uniformly():
    task_i, task_j = make_task(1, shots=1), make_task(2, shots=1)
    keys = jax.random.split(KEY, 3000)
    draw = jax.jit(jax.vmap(itp.non_label_sharing, (0, None, None, None)))
    mixed = np.asarray(draw(keys, task_i, task_j, 0.0).support.x)
    for r in range(3):
        partner = (mixed[:, r, None] == np.asarray(task_j.support.x)).all(-1)
        np.testing.assert_allclose(partner.mean(axis=0), 1 / 3, atol=0.04)


@pytest.mark.parametrize("seed", range(4))
def test_class_pairs_with_unequal_class_sizes(seed):
    batch_i = Batch(jnp.zeros((4, 1)), jnp.eye(2)[jnp.array([0, 0, 0, 1])])
    batch_j = Batch(jnp.arange(4.0)[:, None], jnp.eye(2)[jnp.array([1, 0, 1, 1])])

    def partners(classes):
        mixing = itp.mixup(KEY, 0.0, None)
        key, classes = jax.random.key(seed), jnp.array(classes)
        return np.asarray(mix_classes(key, batch_i, batch_j, classes, mixing).x)[:, 0]

    exchanged = partners([1, 0])
    assert sorted(exchanged[:3].tolist()) == [0.0, 2.0, 3.0]
    assert exchanged[3] == 1.0
    same = partners([0, 1])
    assert same[:3].tolist() == [1.0, 1.0, 1.0]  # the only sample, three times
    assert same[3] in (0.0, 2.0, 3.0)


@pytest.mark.parametrize("seed", range(6))
def test_class_pairs_skip_padding(seed):
    y = jnp.eye(2)[jnp.array([0, 0, 1, 1])]
    weight = jnp.array([1.0, 0.0, 1.0, 0.0])
    batch_j = Batch(jnp.array([[1.0], [jnp.nan], [2.0], [jnp.nan]]), y, weight)
    batch_i = Batch(jnp.zeros((4, 1)), y, weight)
    mixing = itp.mixup(KEY, 0.5, None)
    key = jax.random.key(seed)
    mixed = mix_classes(key, batch_i, batch_j, jnp.array([1, 0]), mixing)
    np.testing.assert_allclose(mixed.x[jnp.array([0, 2]), 0], [1.0, 0.5])
    np.testing.assert_array_equal(mixed.weight, weight)


def test_a_mixed_sample_counts_if_both_parts_count():
    weights = np.array([1.0, 0.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    x_j = jnp.arange(5.0)[:, None]
    batch_i = Batch(jnp.zeros((5, 1)), jnp.zeros((5, 1)), jnp.asarray(weights[0]))
    batch_j = Batch(x_j, jnp.zeros((5, 1)), jnp.asarray(weights[1]))
    one = itp.mixup(KEY, 0.0, None)
    for seed in range(3):
        key = jax.random.key(seed)
        mixed = itp.mix_samples(key, batch_i, batch_j, one)
        rows = np.asarray(mixed.x)[:, 0].astype(int)  # lambda = 0: the partner itself
        np.testing.assert_array_equal(mixed.weight, weights[0] * weights[1][rows])
    with pytest.raises(InputError, match="shapes are equal"):
        itp.mix_samples(KEY, batch_i, batch_j.replace(weight=None), one)


def test_intra_pairs_mix_different_samples():
    task = make_task(3, shots=5)
    mixed = [non_label_sharing(jax.random.key(s), task, task, 0.5) for s in range(5)]
    changed = np.mean(
        [np.abs(np.asarray(m.support.x - task.support.x)).max(1) > 1e-6 for m in mixed]
    )
    assert changed > 0.8


# ------------------------------------------------------------- query only, i = j


def test_query_only_is_equation_5_inside_the_query_set():
    lam = 0.4
    task = make_task(5, shots=4, queries=4)
    mixed = query_only(KEY, task, lam)
    np.testing.assert_array_equal(mixed.support.x, task.support.x)
    np.testing.assert_array_equal(mixed.support.y, task.support.y)
    rows = partner_rows(mixed.query.x, task.query.x, task.query.x, lam)
    assert sorted(rows) == list(range(12))
    assert rows != list(range(12))
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
    # The full box has 7 x 7 pixels; if it is clipped, more than 15 / 64 is kept.
    assert min(weights) >= 15 / 64
    assert max(weights) > 0.4


def test_cutmix_boxes_are_centered_uniformly():
    keys = jax.random.split(KEY, 4000)
    boxes = jax.jit(jax.vmap(itp.cutmix, (0, None, None)))
    coefficient, _ = boxes(keys, 0.75, jnp.zeros((1, 6, 8, 1)))
    # Sides of 3 and 4 pixels around a uniform center, clipped at the borders.
    rows = np.zeros(6)
    for center in range(6):
        rows[max(center - 1, 0) : center + 2] += 1 / 6
    columns = np.zeros(8)
    for center in range(8):
        columns[max(center - 2, 0) : center + 2] += 1 / 8
    share = 1 - np.asarray(coefficient)[..., 0].mean(axis=0)
    np.testing.assert_allclose(share, np.outer(rows, columns), atol=0.035)


@pytest.mark.parametrize("form", [label_sharing, non_label_sharing])
def test_cutmix_uses_one_box_for_both_sets(form):
    task = make_task(1, shape=(8, 8, 1))
    zeros, ones = (
        jax.tree.map(lambda batch, v=v: jnp.full_like(batch, v), task) for v in (0, 1)
    )
    task_i, task_j = (
        filled.replace(
            support=filled.support.replace(y=task.support.y),
            query=filled.query.replace(y=task.query.y),
        )
        for filled in (zeros, ones)
    )
    masks = []
    for seed in range(4):
        mixed = form(jax.random.key(seed), task_i, task_j, 0.5, itp.cutmix)
        boxes = np.concatenate([mixed.support.x, mixed.query.x])
        assert (boxes == boxes[0]).all()
        assert set(np.unique(boxes)) == {0.0, 1.0}
        masks.append(boxes[0].tobytes())
        if form is label_sharing:
            labels = np.concatenate([mixed.support.y, mixed.query.y])
            own = np.concatenate([task.support.y, task.query.y])
            share = (labels * own).sum(axis=1)
            # The label of i keeps the area of i, unless the partner has the same class.
            different = share < 1 - 1e-6
            assert different.any()
            kept = 1 - boxes[0].mean()
            np.testing.assert_allclose(share[different], kept, atol=1e-6)
    assert len(set(masks)) > 1  # a box per task, not one for all


@pytest.mark.parametrize("form", [itp.label_sharing, itp.non_label_sharing])
def test_cutmix_can_use_a_box_for_each_set(form):
    lam, size = 0.6, 12
    task_i, task_j = (make_task(s, shape=(size, size, 1)) for s in (1, 2))
    # Pixels of i are 0 and those of j are 1, so the mixed image is the box.
    task_i, task_j = (
        task.replace(
            support=task.support.replace(x=jnp.full_like(task.support.x, value)),
            query=task.query.replace(x=jnp.full_like(task.query.x, value)),
        )
        for task, value in ((task_i, 0.0), (task_j, 1.0))
    )
    both = {
        boxes: jax.jit(
            lambda key, boxes=boxes: form(key, task_i, task_j, lam, itp.cutmix, boxes)
        )
        for boxes in ("shared", "separate")
    }
    differ = weighted = 0
    for seed in range(20):
        key = jax.random.key(seed)
        shared, mixed = both["shared"](key), both["separate"](key)
        chex.assert_trees_all_equal(mixed.support, shared.support)
        side = int(np.floor(np.sqrt(1 - lam) * size))
        for batch, drawn in (
            (mixed.support, task_i.support),
            (mixed.query, task_i.query),
        ):
            box = np.asarray(batch.x[0, :, :, 0])
            np.testing.assert_array_equal(
                batch.x[..., 0], np.stack([box] * len(batch.y))
            )
            rows, columns = box.any(axis=1).nonzero()[0], box.any(axis=0).nonzero()[0]
            assert box.sum() == len(rows) * len(columns)  # one rectangle
            assert max(len(rows), len(columns)) <= side
            if form is itp.non_label_sharing:
                np.testing.assert_array_equal(batch.y, drawn.y)
                continue
            # Labels are weighted with the area of the set's own box.
            share = 1 - box.mean()
            mixed_labels = np.asarray(batch.y)[np.asarray(batch.y).max(axis=1) < 0.999]
            for label in mixed_labels:
                expected = sorted([0.0, share, 1 - share])
                np.testing.assert_allclose(np.sort(label), expected, atol=1e-6)
            weighted += len(mixed_labels)
        differ += bool((mixed.query.x[0] != mixed.support.x[0]).any())
        assert (shared.query.x[0] == shared.support.x[0]).all()
    assert differ > 15
    assert (weighted > 100) == (form is itp.label_sharing)


def test_unknown_boxes_raise():
    with pytest.raises(InputError, match="unknown choice of boxes 'two'"):
        itp.label_sharing(KEY, make_task(0), make_task(1), 0.5, boxes="two")


def test_query_only_pastes_one_box():
    task = make_task(1, shape=(8, 8, 1))
    mixed = query_only(KEY, task, 0.5, itp.cutmix)
    changed = np.asarray(mixed.query.x != task.query.x)[..., 0]
    box = changed.any(axis=0)
    assert 0 < box.mean() < 1
    for k in range(12):
        assert (changed[k] == box).all() or not changed[k].any()
    share = (np.asarray(mixed.query.y) * np.asarray(task.query.y)).sum(axis=1)
    different = share < 1 - 1e-6
    assert different.any()
    np.testing.assert_allclose(share[different], 1 - box.mean(), atol=1e-6)


def test_cutmix_of_vectors_raises():
    with pytest.raises(InputError, match="cutmix needs images"):
        itp.cutmix(KEY, 0.5, jnp.zeros((3, 7)))


def test_lambda_one_keeps_task_i():
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
def test_lambda_parameters_must_be_positive(alpha):
    with pytest.raises(InputError, match="alpha must be positive"):
        itp.sample_lambda(KEY, alpha)
    with pytest.raises(InputError, match="beta must be positive"):
        itp.sample_lambda(KEY, 1.0, alpha)


@pytest.mark.parametrize("num_tasks", [4, 2])
def test_partners_any_are_uniform_and_may_be_the_task_itself(num_tasks):
    keys = jax.random.split(KEY, 4000)
    partners = jax.vmap(
        lambda k: itp.sample_partners(k, jnp.arange(4), num_tasks=num_tasks)
    )(keys)
    assert partners.shape == (4000, num_tasks)
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


# ---------------------------------------------- under the transforms of the caller

METHODS = {"mixup": itp.mixup, "cutmix": itp.cutmix}


def samples(key, task_i, task_j, lam, method):
    mixing = method(key, lam, task_i.support.x)
    support = itp.mix_samples(key, task_i.support, task_j.support, mixing)
    return task_i.replace(support=support)


def classes(key, task_i, task_j, lam, method):
    mixing = method(key, lam, task_i.support.x)
    order = jnp.array([2, 0, 1])
    support = itp.mix_classes(key, task_i.support, task_j.support, order, mixing)
    return task_i.replace(support=support)


def within(key, task_i, task_j, lam, method):
    return itp.query_only(key, task_i, lam, method)


TRANSFORMS = {
    "label_sharing": itp.label_sharing,
    "non_label_sharing": itp.non_label_sharing,
    "query_only": within,
    "mix_samples": samples,
    "mix_classes": classes,
}
every_transform = pytest.mark.parametrize("name", TRANSFORMS)
every_method = pytest.mark.parametrize("method", METHODS)


def two_pairs():
    tasks = [make_task(s, shape=(6, 6, 1)) for s in (1, 2, 3, 4)]
    return stack_tasks(tasks[:2]), stack_tasks(tasks[2:])


@every_method
@every_transform
def test_jit_and_vmap_equal_eager_calls(name, method):
    tasks_i, tasks_j = two_pairs()
    keys, lams = jax.random.split(KEY, 2), jnp.array([0.3, 0.8])

    def one(key, task_i, task_j, lam):
        return TRANSFORMS[name](key, task_i, task_j, lam, METHODS[method])

    batched = jax.jit(jax.vmap(one))(keys, tasks_i, tasks_j, lams)
    for index in range(2):
        i, j, together = (take(t, index) for t in (tasks_i, tasks_j, batched))
        alone = one(keys[index], i, j, lams[index])
        chex.assert_trees_all_close(together, alone, atol=1e-6)


@every_method
@every_transform
def test_gradients_equal_differences(name, method):
    task_i, task_j = (take(tasks, 0) for tasks in two_pairs())
    rng = np.random.default_rng(0)

    def total(x_i, x_j, lam):
        """A fixed projection of the result; linear in x_i and x_j."""
        i, j = (
            task.replace(
                support=task.support.replace(x=x[0]), query=task.query.replace(x=x[1])
            )
            for task, x in ((task_i, x_i), (task_j, x_j))
        )
        mixed = TRANSFORMS[name](KEY, i, j, lam, METHODS[method])
        return jnp.vdot(weights[0], mixed.support.x) + jnp.vdot(
            weights[1], mixed.query.x
        )

    def like(tree):
        return jax.tree.map(
            lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), tree
        )

    x_i, x_j = ((t.support.x, t.query.x) for t in (task_i, task_j))
    weights = like(x_i)
    total = jax.jit(total)
    gradients = jax.grad(total, (0, 1, 2))(x_i, x_j, 0.6)
    for index, gradient in enumerate(gradients[:2]):
        step = like((x_i, x_j)[index])
        moved = [x_i, x_j]
        moved[index] = jax.tree.map(jnp.add, moved[index], step)
        difference = total(*moved, 0.6) - total(x_i, x_j, 0.6)
        along = sum(map(jnp.vdot, gradient, step))
        np.testing.assert_allclose(along, difference, rtol=1e-3, atol=1e-2)
    # Mixup is linear in lambda; the box of CutMix is piecewise constant.
    difference = (total(x_i, x_j, 0.9) - total(x_i, x_j, 0.4)) / 0.5
    expected = difference if method == "mixup" else 0.0
    np.testing.assert_allclose(gradients[2], expected, rtol=1e-3, atol=1e-2)


@pytest.mark.slow
def test_draws_under_jit_and_vmap_equal_eager_draws():
    keys = jax.random.split(KEY, 3)
    domains = jnp.array([0, 0, 1, 2])
    draws = {
        "lambda": lambda key: itp.sample_lambda(key, 0.5, 2.0, (2,)),
        "any": lambda key: itp.sample_partners(key, domains),
        "cross": lambda key: itp.sample_partners(key, domains, "cross"),
        "layer": lambda key: itp.sample_layer(key, (0, 1, 3)),
    }
    for name, draw in draws.items():
        together = jax.jit(jax.vmap(draw))(keys)
        alone = np.stack([draw(key) for key in keys])
        np.testing.assert_allclose(together, alone, rtol=1e-6, err_msg=name)
    # A traced alpha is accepted. The mean a / (a + b) has the derivative b / (a + b)^2.
    slope = jax.grad(lambda a: itp.sample_lambda(KEY, a, 1.0, (20_000,)).mean())
    np.testing.assert_allclose(jax.jit(slope)(2.0), 1 / 9, rtol=0.05)


def test_pytrees_are_mixed_leaf_by_leaf():
    task_i, task_j = make_task(1), make_task(2)

    def double(t):
        return t.replace(
            support=t.support.replace(x={"a": t.support.x, "b": t.support.x[:, :2]}),
            query=t.query.replace(x={"a": t.query.x, "b": t.query.x[:, :2]}),
        )

    mixed = label_sharing(KEY, double(task_i), double(task_j), 0.2)
    np.testing.assert_array_equal(mixed.query.x["a"][:, :2], mixed.query.x["b"])


def test_tasks_of_different_shapes_raise():
    for form in (itp.label_sharing, itp.non_label_sharing):
        with pytest.raises(InputError, match="shapes are equal"):
            form(KEY, make_task(1, shots=2), make_task(2, shots=3), 0.5)
