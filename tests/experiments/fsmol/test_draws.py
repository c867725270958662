"""Stratified draws, against scikit-learn's and by their properties."""

import numpy as np
import pytest

from experiments.fsmol.draws import draw_all, stratified
from mlti_jax import data

model_selection = pytest.importorskip("sklearn.model_selection")


@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("actives", [7, 78, 100, 149])
def test_class_sizes_are_those_of_scikit_learn(size, actives):
    y = np.random.default_rng(0).permutation(np.arange(157) < actives).astype(int)
    splitter = model_selection.StratifiedShuffleSplit(
        n_splits=5, train_size=size, test_size=157 - size, random_state=0
    )
    chosen = stratified(y, size, np.random.default_rng(1))
    if chosen is None:  # FS-Mol skips a split whose sets lack a class.
        train, test = next(splitter.split(y, y))
        assert min(len(set(y[train])), len(set(y[test]))) == 1
        return
    assert chosen.sum() == size
    assert {int(y[train].sum()) for train, _ in splitter.split(y, y)} == {
        int(y[chosen].sum())
    }


def test_ties_are_drawn():
    y = np.array([0, 1] * 20)
    actives = {
        int(y[stratified(y, 5, np.random.default_rng(seed))].sum())
        for seed in range(20)
    }
    assert actives == {2, 3}


def test_every_sample_is_drawn_equally_often():
    y = np.array([0] * 20 + [1] * 10)
    times = np.zeros(30)
    for seed in range(2000):
        times += stratified(y, 15, np.random.default_rng(seed))
    np.testing.assert_allclose(times / 2000, 0.5, atol=0.05)


@pytest.mark.parametrize(
    ("y", "size"),
    [
        ([0, 1] * 8, 16),  # no query is left
        ([0, 1] * 8 + [0], 16),  # one is left
        ([0] * 38 + [1] * 2, 10),  # one active molecule at most, here none
        ([0] * 99 + [1], 16),
        ([0] * 20, 4),
    ],
)
def test_assays_that_are_too_small_are_skipped(y, size):
    found = stratified(np.array(y), size, np.random.default_rng(0))
    if found is not None:  # of a tie
        drawn, left = np.array(y)[found], np.array(y)[~found]
        assert set(drawn) == set(left) == {0, 1}
    else:
        exact = size * np.bincount(y, minlength=2) / len(y)
        assert len(y) - size < 2 or exact.min() <= 0.5


def test_draws_from_a_pool():
    rng = np.random.default_rng(0)
    sizes = (40, 12, 90)
    domain = np.repeat([0, 1, 2], sizes)
    label = (np.arange(len(domain)) % 3 == 0).astype(int)
    x = rng.normal(size=(len(domain), 2))
    names = ["a", "b", "c"]
    pool = data.DomainPool.from_arrays(x, domain, label, domains=names)
    draws = draw_all(pool, 16, 4, seed=0)
    assert [(d.assay, d.number) for d in draws] == [
        (assay, number) for assay in (0, 2) for number in range(4)
    ]
    for draw in draws:
        own = np.flatnonzero(domain == draw.assay)
        together = np.concatenate([draw.support, draw.query])
        assert sorted(together) == own.tolist()
        np.testing.assert_array_equal(label[draw.support], draw.support_y)
        np.testing.assert_array_equal(label[draw.query], draw.query_y)
    assert len({tuple(draw.support) for draw in draws}) == len(draws)
    again = draw_all(pool, 16, 4, seed=0)
    other = draw_all(pool, 16, 4, seed=1)
    for one, two, three in zip(draws, again, other, strict=True):
        np.testing.assert_array_equal(one.support, two.support)
        assert (one.support != three.support).any()
    # The draws of an assay do not depend on the other assays.
    alone = data.DomainPool.from_arrays(
        x[domain == 2], domain[domain == 2] * 0, label[domain == 2], domains=["c"]
    )
    for one, two in zip(draws[4:], draw_all(alone, 16, 4, seed=0), strict=True):
        np.testing.assert_array_equal(one.support - sum(sizes[:2]), two.support)
