"""The Flax example learns, with and without interpolation."""

import inspect

import jax
import numpy as np
import pytest

from experiments.examples import flax_loop


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_accuracy_on_unseen_orientations_improves(alpha):
    before = flax_loop.train(steps=1, alpha=alpha)
    after = flax_loop.train(steps=150, alpha=alpha)
    assert before.shape == after.shape == (flax_loop.TEST_EPISODES,)
    difference = after - before
    assert difference.mean() > 0.04
    assert difference.mean() > 3 * difference.std() / np.sqrt(len(difference))


def test_interpolated_episodes_lie_between_two_classes():
    rng = np.random.default_rng(0)
    episodes = flax_loop.draw(rng, flax_loop.TRAIN, flax_loop.EPISODES)
    mixed = flax_loop.interpolated(jax.random.key(0), episodes, 2.0)
    for (x, y), (mixed_x, mixed_y) in zip(episodes, mixed, strict=True):
        np.testing.assert_array_equal(mixed_y, y)
        # Every mixture is lam * (a sample) + (1 - lam) * (some sample of the step).
        samples = np.asarray(x).reshape(-1, 64)
        for task in range(flax_loop.EPISODES):
            first, new = np.asarray(x[task, 0]), np.asarray(mixed_x[task, 0])
            step = new - first  # (1 - lam) * (partner - first)
            ways = samples - first
            along = (ways @ step) / np.maximum((ways**2).sum(axis=1), 1e-12)
            rest = np.abs(step - along[:, None] * ways).max(axis=1)
            fits = (rest < 1e-4) & (along > -1e-4) & (along < 1 + 1e-4)
            assert fits.any()


def test_about_ten_lines_are_added():
    lines = inspect.getsource(flax_loop).splitlines()
    assert 8 <= sum(line.endswith("# MLTI") for line in lines) <= 14
