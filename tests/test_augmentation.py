"""Augmentation within a task, compared with NumPy loops."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import augmentation, interpolation
from mlti_jax.errors import InputError
from tests.support.tasks import make_task, stack_tasks, take

KEY = jax.random.key(0)
query_with_support = jax.jit(augmentation.query_with_support, static_argnums=3)
shuffle_channels = jax.jit(augmentation.shuffle_channels)


def rows_of(x, pool):
    """Returns the index in `pool` of each row of x, or -1."""
    found = np.isclose(np.asarray(x)[:, None], np.asarray(pool)[None]).all(-1)
    return np.where(found.any(1), found.argmax(1), -1)


# ------------------------------------------------------------- query with support


def test_query_with_support_equals_a_loop():
    task = make_task(1, shots=5, queries=5)
    lam = 0.3
    mixed = query_with_support(KEY, task, lam)
    chex.assert_trees_all_equal(mixed.support, task.support)
    # The part that was mixed in: h_s = (h - lam h_q) / (1 - lam).
    query = np.asarray(task.query.x, np.float64)
    added = (np.asarray(mixed.query.x) - lam * query) / (1 - lam)
    distance = np.abs(added[:, None] - np.asarray(task.support.x)[None]).max(-1)
    assert (distance.min(1) < 1e-4).all()
    partner = distance.argmin(1)
    for k, p in enumerate(partner):
        y = lam * np.asarray(task.query.y)[k] + 0.7 * np.asarray(task.support.y)[p]
        np.testing.assert_allclose(mixed.query.y[k], y, rtol=1e-5)


def test_query_with_support_pastes_boxes_of_support_images():
    task = make_task(2, shape=(8, 8, 1))
    mixed = query_with_support(KEY, task, jnp.float32(0.5), interpolation.cutmix)
    changed = np.asarray(mixed.query.x != task.query.x)[..., 0]
    box = changed.any(0)
    assert 0 < box.mean() < 1
    assert (changed == box).all()  # one box for all samples
    share = (np.asarray(mixed.query.y) * np.asarray(task.query.y)).sum(1)
    # If the partner has another class, the label keeps the area of the query image.
    different = share < 0.999
    assert different.any()
    np.testing.assert_allclose(share[different], 1 - box.mean(), rtol=1e-5)


def test_query_with_support_skips_padding():
    task = make_task(1, queries=30)
    weight = jnp.array([1.0, 0.0] * 3)
    task = task.replace(support=task.support.replace(weight=weight))
    mixed = query_with_support(KEY, task, jnp.float32(0.0))
    rows = rows_of(mixed.query.x, task.support.x)
    assert set(rows.tolist()) == {0, 2, 4}


def test_query_with_support_draws_uniformly():
    task = make_task(1, ways=2, shots=2, queries=2000)
    mixed = query_with_support(KEY, task, jnp.float32(0.0))
    rows = rows_of(mixed.query.x, task.support.x)
    counts = np.bincount(rows, minlength=4)
    np.testing.assert_allclose(counts, 1000, atol=4 * np.sqrt(1000))
    # Independent draws: neighbors agree in a quarter of all cases.
    np.testing.assert_allclose((rows[1:] == rows[:-1]).mean(), 0.25, atol=0.05)


# ---------------------------------------------------------------- channel shuffle


def test_channel_shuffle_replaces_channels_with_those_of_another_class():
    task = make_task(3, ways=3, shots=1, queries=2, shape=(2, 40))
    circles = set()
    for seed in range(6):
        out = shuffle_channels(jax.random.key(seed), task, jnp.float32(0.5))
        np.testing.assert_array_equal(out.support.y, task.support.y)
        np.testing.assert_array_equal(out.query.y, task.query.y)
        x, new = np.asarray(task.support.x), np.asarray(out.support.x)
        own = (new == x).all(axis=1)  # [N, channels]
        kept = own.all(axis=0)
        assert 5 < kept.sum() < 35
        partners = []
        for k in range(3):
            same = (new[k][:, ~kept] == x[:, :, ~kept]).all(axis=(1, 2))
            assert same.sum() == 1
            partners.append(int(same.argmax()))
        assert sorted(partners) == [0, 1, 2]
        assert all(k != partner for k, partner in enumerate(partners))
        circles.add(tuple(partners))
        # The query set: the same channels, from the same pairs of classes.
        q, new_q = np.asarray(task.query.x), np.asarray(out.query.x)
        np.testing.assert_array_equal(new_q[..., kept], q[..., kept])
        for k in range(6):
            pair = partners[k // 2]
            of_pair = q[2 * pair : 2 * pair + 2][..., ~kept]
            assert any((new_q[k][..., ~kept] == other).all() for other in of_pair)
    assert circles == {(1, 2, 0), (2, 0, 1)}


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_channel_shuffle_keeps_the_given_share(rate):
    task = make_task(3, ways=2, shots=1, queries=1, shape=(2000,))
    out = shuffle_channels(KEY, task, jnp.float32(rate))
    kept = np.asarray(out.support.x == task.support.x).mean()
    np.testing.assert_allclose(kept, rate, atol=0.04)


def test_channel_shuffle_needs_one_array():
    task = make_task(1)
    nested = task.replace(support=task.support.replace(x={"h": task.support.x}))
    with pytest.raises(InputError, match="channel shuffle needs features"):
        augmentation.shuffle_channels(KEY, nested, 0.5)


# ---------------------------------------------- under the transforms of the caller


@pytest.mark.parametrize("name", augmentation.__all__)
def test_jit_vmap_and_grad(name):
    function = getattr(augmentation, name)
    tasks = stack_tasks([make_task(s) for s in (1, 2)])
    keys, shares = jax.random.split(KEY, 2), jnp.array([0.3, 0.8])
    batched = jax.jit(jax.vmap(function))(keys, tasks, shares)
    for index in range(2):
        alone = function(keys[index], take(tasks, index), shares[index])
        chex.assert_trees_all_close(take(batched, index), alone, atol=1e-6)

    rng = np.random.default_rng(0)
    task = take(tasks, 0)
    weights = jnp.asarray(rng.normal(size=task.query.x.shape), jnp.float32)

    @jax.jit
    def total(x):
        """A fixed projection of the result, which is linear in x."""
        changed = task.replace(query=task.query.replace(x=x))
        return jnp.vdot(weights, function(keys[0], changed, shares[0]).query.x)

    x = task.query.x
    step = jnp.asarray(rng.normal(size=x.shape), jnp.float32)
    difference = total(x + step) - total(x)
    along = jnp.vdot(jax.grad(total)(x), step)
    np.testing.assert_allclose(along, difference, rtol=1e-3, atol=1e-3)
