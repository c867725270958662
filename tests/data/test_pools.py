"""Pools: the contents of tasks, and their distribution."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from mlti_jax import data
from mlti_jax.data import _pools as pools
from mlti_jax.data._pools import check_episode
from mlti_jax.errors import InputError


def numbered(size, shape=(2,)):
    """Samples whose values are their row number, so a task reveals its rows."""
    return np.broadcast_to(
        np.arange(size).reshape(-1, *[1] * len(shape)), (size, *shape)
    )


def domain_pool():
    """Three domains of two classes, with 4 to 9 samples each, rows shuffled."""
    counts = {(0, 0): 4, (0, 1): 7, (1, 0): 9, (1, 1): 5, (2, 0): 6, (2, 1): 4}
    pairs = [pair for pair, count in counts.items() for _ in range(count)]
    pairs = np.random.default_rng(0).permutation(np.array(pairs))
    x = numbered(len(pairs)).astype(np.float32)
    return data.DomainPool.from_arrays(x, pairs[:, 0], pairs[:, 1]), pairs


def class_pool():
    """Five classes with 3 to 7 samples each, rows shuffled."""
    labels = np.repeat(np.arange(5), np.arange(3, 8))
    labels = np.random.default_rng(1).permutation(labels)
    x = numbered(len(labels)).astype(np.float32)
    return data.ClassPool.from_arrays(x, labels), labels


def regression_pool():
    """Three objects with 5, 6 and 7 samples; the target is ten times the row."""
    domain = np.random.default_rng(2).permutation(np.repeat([0, 1, 2], [5, 6, 7]))
    x = numbered(len(domain)).astype(np.float32)
    y = 10.0 * np.arange(len(domain))[:, None]
    return data.RegressionPool.from_arrays(x, y, domain), domain


def sample_many(pool, number, seed=0, **sizes):
    keys = jax.random.split(jax.random.key(seed), number)
    sample = jax.jit(jax.vmap(functools.partial(data.sample_task, **sizes), (None, 0)))
    return jax.device_get(sample(pool, keys))


def rows_of(batch):
    return batch.x[..., 0].astype(int)


def assert_equally_likely(outcomes, possible):
    """Chi-square test against the uniform distribution over `possible`."""
    counts = collections.Counter(outcomes)
    assert set(counts) <= set(possible)
    statistic, _ = scipy.stats.chisquare([counts[outcome] for outcome in possible])
    # Keys are fixed, so this never fails by chance once it has passed.
    assert statistic < scipy.stats.chi2.ppf(0.999, len(possible) - 1)


def test_draw_is_a_fisher_yates_shuffle():
    rng = np.random.default_rng(0)
    for number in (1, 2, 5, 12):
        bits = rng.integers(0, 2**32, (40, number), dtype=np.uint32)
        counts = rng.integers(number, number + 9, 40)
        drawn = jax.jit(pools._draw)(bits, counts)
        for row, (count, words) in enumerate(zip(counts, bits, strict=True)):
            entries = list(range(count))
            for i, word in enumerate(words):
                j = i + int(word) % (int(count) - i)
                entries[i], entries[j] = entries[j], entries[i]
            assert np.asarray(drawn)[row].tolist() == entries[:number]


def test_draw_is_uniform_over_ordered_selections():
    counts = jnp.array([3, 5, 4])  # Groups of different sizes in one call.
    bits = jax.random.bits(jax.random.key(0), (40_000, 3, 3))
    drawn = np.asarray(
        jax.jit(pools._draw)(bits, jnp.broadcast_to(counts, (40_000, 3)))
    )
    for group, count in enumerate(counts.tolist()):
        outcomes = map(tuple, drawn[:, group].tolist())
        assert_equally_likely(outcomes, list(itertools.permutations(range(count), 3)))


def test_complement_lists_the_remaining_integers():
    drawn = np.array([[4, 0, 2], [7, 6, 5], [0, 1, 2]])
    left = pools._complement(jnp.asarray(drawn), 5)
    for row, used in zip(left.tolist(), drawn.tolist(), strict=True):
        assert row == [i for i in range(8) if i not in used]


def test_domain_tasks_hold_the_right_samples():
    pool, pairs = domain_pool()
    tasks = sample_many(pool, 300, ways=2, shots=1, queries=3)
    assert tasks.support.x.shape == (300, 2, 2)
    assert tasks.query.x.shape == (300, 6, 2)
    assert tasks.support.weight is None
    assert tasks.query.weight is None
    assert tasks.support.y.dtype == np.float32
    for support, query, domain in zip(
        rows_of(tasks.support), rows_of(tasks.query), tasks.domain, strict=True
    ):
        assert len({*support, *query}) == 8
        assert (pairs[support] == [(domain, 0), (domain, 1)]).all()
        assert (pairs[query] == np.repeat([(domain, 0), (domain, 1)], 3, axis=0)).all()
    assert (tasks.support.y == np.eye(2)).all()
    assert (tasks.query.y == np.repeat(np.eye(2), 3, axis=0)).all()
    assert_equally_likely(tasks.domain.tolist(), [0, 1, 2])


def test_domain_tasks_are_equally_likely():
    pool, pairs = domain_pool()
    tasks = sample_many(pool, 30_000, ways=2, shots=1, queries=1)
    rows = np.concatenate([rows_of(tasks.support), rows_of(tasks.query)], axis=1)
    for domain in range(3):
        for label in range(2):
            members = np.flatnonzero((pairs == (domain, label)).all(axis=1)).tolist()
            drawn = rows[tasks.domain == domain][:, [label, 2 + label]]
            assert_equally_likely(
                map(tuple, drawn.tolist()), list(itertools.permutations(members, 2))
            )


def test_class_tasks_hold_the_right_samples():
    pool, labels = class_pool()
    tasks = sample_many(pool, 20_000, ways=3, shots=2, queries=1)
    support, query = rows_of(tasks.support), rows_of(tasks.query)
    rows = np.sort(np.concatenate([support, query], axis=1), axis=1)
    assert (np.diff(rows, axis=1) > 0).all()
    drawn_classes = labels[query]
    assert (labels[support] == np.repeat(drawn_classes, 2, axis=1)).all()
    assert_equally_likely(
        map(tuple, drawn_classes.tolist()), list(itertools.permutations(range(5), 3))
    )
    assert (tasks.support.y == np.repeat(np.eye(3), 2, axis=0)).all()
    assert (tasks.query.y == np.eye(3)).all()
    # Domains of 31 bits: the birthday bound expects 0.1 equal pairs.
    assert len(set(tasks.domain.tolist())) >= 19_998
    assert tasks.domain.min() >= 0


def test_regression_tasks_hold_the_right_samples():
    pool, domain = regression_pool()
    tasks = sample_many(pool, 500, ways=1, shots=3, queries=2)
    support, query = rows_of(tasks.support), rows_of(tasks.query)
    assert (domain[support] == tasks.domain[:, None]).all()
    assert (domain[query] == tasks.domain[:, None]).all()
    rows = np.sort(np.concatenate([support, query], axis=1), axis=1)
    assert (np.diff(rows, axis=1) > 0).all()
    assert (tasks.support.y == 10.0 * support[..., None]).all()
    assert tasks.query.y.shape == (500, 2, 1)
    assert_equally_likely(tasks.domain.tolist(), [0, 1, 2])


def test_all_remaining_queries():
    pool, labels = class_pool()
    tasks = sample_many(pool, 50, ways=2, shots=2, queries=None)
    assert tasks.query.x.shape == (50, 2 * (7 - 2), 2)
    for support, query, weight, y in zip(
        rows_of(tasks.support),
        rows_of(tasks.query),
        tasks.query.weight,
        tasks.query.y,
        strict=True,
    ):
        assert set(weight.tolist()) <= {0.0, 1.0}
        for way in range(2):
            used = support[2 * way : 2 * way + 2]
            members = np.flatnonzero(labels == labels[used[0]])
            block = slice(5 * way, 5 * way + 5)
            counted = query[block][weight[block] == 1]
            assert sorted(counted) == sorted(set(members) - set(used))
            assert (y[block] == np.eye(2)[way]).all()


def test_all_remaining_queries_of_domains_and_objects():
    pool, pairs = domain_pool()
    tasks = sample_many(pool, 20, ways=2, shots=1, queries=None)
    sizes = [(pairs[:, 0] == domain).sum() - 2 for domain in tasks.domain]
    assert (tasks.query.weight.sum(axis=1) == sizes).all()
    pool, domain = regression_pool()
    tasks = sample_many(pool, 20, ways=1, shots=4, queries=None)
    assert (tasks.query.weight.sum(axis=1) == 1 + tasks.domain).all()


@pytest.mark.parametrize(
    ("make_pool", "queries"),
    [(domain_pool, 1), (class_pool, None), (regression_pool, 1)],
)
def test_same_key_same_task_with_and_without_jit(make_pool, queries):
    pool, _ = make_pool()
    ways = 1 if make_pool is regression_pool else 2
    sizes = {"ways": ways, "shots": 2, "queries": queries}
    key = jax.random.split(jax.random.key(5), 3)[1]
    alone = data.sample_task(pool, key, **sizes)
    batch = sample_many(pool, 3, seed=5, **sizes)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[1]), alone, batch)
    other = sample_many(pool, 3, seed=6, **sizes)
    assert (rows_of(other.support) != rows_of(batch.support)).any()


def test_cost_does_not_depend_on_class_size():
    def flops(size):
        labels = np.repeat(np.arange(4), size)
        x = numbered(len(labels)).astype(np.float32)
        pool = data.ClassPool.from_arrays(x, labels)
        sample = functools.partial(data.sample_task, ways=3, shots=2, queries=3)
        compiled = jax.jit(sample).lower(pool, jax.random.key(0)).compile()
        return compiled.cost_analysis()["flops"]

    assert flops(10) == flops(3000)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.uint8, np.arange(6) / np.float32(255)),
        (bool, np.arange(6) > 0),
        (np.float64, np.arange(6)),
        (np.int64, np.arange(6)),
    ],
)
def test_input_types(dtype, expected):
    pool = data.ClassPool.from_arrays(numbered(6).astype(dtype), np.zeros(6, int))
    task = sample_many(pool, 1, ways=1, shots=5, queries=1)
    values = np.sort(np.concatenate([task.support.x, task.query.x], axis=1)[0, :, 0])
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert values.dtype == (np.int32 if dtype is np.int64 else np.float32)


def test_inputs_may_be_a_pytree():
    x = {"tokens": numbered(8, (3,)), "mask": np.ones((8, 3), bool)}
    pool = data.ClassPool.from_arrays(x, np.repeat([0, 1], 4))
    task = sample_many(pool, 1, ways=2, shots=1, queries=2)
    assert task.query.x["tokens"].shape == task.query.x["mask"].shape == (1, 4, 3)


def test_batches_are_uniform_over_samples():
    key = jax.random.key(3)
    sample = jax.jit(pools.sample_batch, static_argnums=2)
    pool, pairs = domain_pool()
    batch = sample(pool, key, 20_000)
    rows = rows_of(batch)
    assert_equally_likely(rows.tolist(), range(len(pairs)))
    assert (batch.y == np.eye(2)[pairs[rows, 1]]).all()
    pool, labels = class_pool()
    batch = sample(pool, key, 20_000)
    assert_equally_likely(rows_of(batch).tolist(), range(len(labels)))
    assert (batch.y == np.eye(5)[labels[rows_of(batch)]]).all()
    pool, domain = regression_pool()
    batch = sample(pool, key, 20_000)
    assert_equally_likely(rows_of(batch).tolist(), range(len(domain)))
    assert (batch.y[:, 0] == 10 * batch.x[:, 0]).all()


def test_names_become_ids():
    label = np.array(["cat", "dog", "cat"])
    pool = data.ClassPool.from_arrays(numbered(3), label)
    assert pool.classes == ("cat", "dog")
    assert pool.count.tolist() == [2, 1]
    pool = data.ClassPool.from_arrays(numbered(3), label, classes=["ape", "cat", "dog"])
    assert pool.count.tolist() == [0, 2, 1]
    pool = data.ClassPool.from_arrays(numbered(3), [2, 0, 2], classes=["a", "b", "c"])
    assert pool.count.tolist() == [1, 0, 2]
    pool = data.DomainPool.from_arrays(numbered(3), ["u", "v", "v"], label)
    assert pool.domains == ("u", "v")
    assert pool.count.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("make_pool", "sizes", "message"),
    [
        (domain_pool, (2, 3, 2), "class '0' of domain '0' has 4 samples.*take 5"),
        (domain_pool, (3, 1, 1), "ways is 3.*share 2 classes.*ways=2"),
        (domain_pool, (1, 1, 1), "ways is 1"),
        (class_pool, (2, 3, 1), "class '0' has 3 samples.*shots=3 and queries=1"),
        (class_pool, (2, 3, None), "at least one query take 4; lower shots to 3"),
        (class_pool, (6, 1, 1), "ways is 6.*only 5 classes"),
        (class_pool, (0, 1, 1), "ways is 0; expected 1 or more"),
        (class_pool, (2, -1, 1), "shots is -1"),
        (class_pool, (2, 1, 0), "queries is 0"),
        (class_pool, (2, 1.5, 1), "shots is 1.5; expected an integer"),
        (regression_pool, (1, 4, 2), "domain '0' has 5 samples"),
        (regression_pool, (2, 1, 1), "regression has no classes; set ways=1"),
    ],
)
def test_impossible_episodes(make_pool, sizes, message):
    ways, shots, queries = sizes
    with pytest.raises(InputError, match=message):
        check_episode(make_pool()[0], ways=ways, shots=shots, queries=queries)


@pytest.mark.parametrize(
    ("make_pool", "sizes"),
    [
        (domain_pool, (2, 2, 2)),
        (class_pool, (5, 1, 2)),
        (class_pool, (5, 2, None)),
        (regression_pool, (1, 3, 2)),
    ],
)
def test_possible_episodes(make_pool, sizes):
    ways, shots, queries = sizes
    check_episode(make_pool()[0], ways=ways, shots=shots, queries=queries)


def test_sampling_raises_for_impossible_ways():
    for make_pool in (domain_pool, regression_pool, class_pool):
        with pytest.raises(InputError, match="ways is 7"):
            data.sample_task(
                make_pool()[0], jax.random.key(0), ways=7, shots=1, queries=1
            )


@pytest.mark.parametrize(
    ("x", "label", "classes", "message"),
    [
        (np.array([[1], [1, 2]], object), [0, 1], None, "x has dtype object"),
        (np.array(["a", "b"]), [0, 1], None, "x has dtype"),
        (np.array([[0.0], [np.nan]]), [0, 1], None, "NaN.*row 1"),
        (np.zeros((0, 2)), [], None, "x has shape.*at least one"),
        (np.float32(1), [0], None, "x has shape"),
        ([np.zeros(2), np.zeros(3)], [0, 1], None, "x has shape.*every array"),
        (np.zeros(2), [0, 1, 2], None, r"label has shape \[3\]; expected \[2\]"),
        (np.zeros(2), [0.0, 1.0], None, "label has dtype float64"),
        (np.zeros(2), [0, 2], ["a", "b"], "label of sample 1 is 2"),
        (np.zeros(2), [-1, 0], ["a", "b"], "label of sample 0 is -1"),
        (np.zeros(2), ["a", "c"], ["a", "b"], "label of sample 1 is 'c'"),
    ],
)
def test_unusable_arrays(x, label, classes, message):
    with pytest.raises(InputError, match=message):
        data.ClassPool.from_arrays(x, label, classes=classes)


def test_unusable_targets():
    with pytest.raises(InputError, match=r"y has shape \[3\]; expected \[3, Dy\]"):
        data.RegressionPool.from_arrays(np.zeros(3), np.zeros(3), [0, 0, 1])
    with pytest.raises(InputError, match="y has NaN"):
        data.RegressionPool.from_arrays(np.zeros(1), np.array([[np.inf]]), [0])


def test_a_sample_can_belong_to_several_domains():
    x = np.arange(5, dtype=np.float32)[:, None]
    pool = data.DomainPool.from_arrays(
        x,
        np.array([0, 0, 0, 1, 1, 1]),
        np.array([0, 0, 1, 1, 0, 0]),
        row=np.array([0, 1, 2, 1, 3, 4]),
    )
    assert pool.count.tolist() == [[2, 1], [2, 1]]
    assert pool.x[pool.index[0, 0, :2], 0].tolist() == [0, 1]
    assert pool.x[pool.index[1, 1, :1], 0].tolist() == [1]
    for row, message in (
        (np.array([0, 1, 2, 1, 3, 5]), "row 5 is 5; expected 0 to 4"),
        (np.array([0.0] * 6), "dtype float64; expected integers"),
    ):
        with pytest.raises(InputError, match=message):
            data.DomainPool.from_arrays(x, np.zeros(6, int), np.zeros(6, int), row=row)
