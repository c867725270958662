"""Sheets of mixed samples: pairs, images, vectors, and what has no sheet."""

import numpy as np

from experiments.configs import huffpost
from experiments.figures import sheets
from mlti_jax.data import RegressionPool, Splits
from mlti_jax.training import build
from tests.support.figure_cases import (
    assert_drawn,
    small_config,
    use_data,
    vector_config,
    vectors,
)


def test_pairs_are_mixed_by_the_method():
    experiment = build(small_config())
    lambdas = (0.2, 0.5, 0.9)
    x, y, share = sheets.mixed_pairs(experiment, lambdas)
    assert x.shape == (3, 3, 28, 28, 3)
    assert y.shape == (2, 3, 10)
    first, second, mixed = x
    for number in range(3):
        of_first = (mixed[number] == first[number]).all(axis=-1)
        of_second = (mixed[number] == second[number]).all(axis=-1)
        assert (of_first | of_second).all()
        assert of_first.mean() >= share[number] - 1e-6
        # The box may be cut off by the border, never grow.
        assert share[number] >= lambdas[number] - 1e-6
    config = small_config()
    config.interpolation.method = "mixup"
    x, _, share = sheets.mixed_pairs(build(config), lambdas)
    expected = np.array(lambdas)[:, None, None, None]
    np.testing.assert_allclose(x[2], expected * x[0] + (1 - expected) * x[1], atol=1e-6)
    np.testing.assert_allclose(share, lambdas)


def test_features_of_a_strip():
    x_i = np.array([0, 1, 0, 1, 0, 1.0])
    x_j = np.array([0, 0, 1, 1, 0, 0.0])
    assert sheets.features_shown(x_i, x_j).tolist() == [1, 5, 3, 2]
    many = np.arange(500.0)
    shown = sheets.features_shown(many, np.zeros(500))
    assert shown.tolist() == list(range(499, 499 - sheets.MAX_FEATURES, -1))


def grey_regression():
    """Grey images of four objects, as Pose has them; targets are their numbers."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (4 * 31, 128, 128, 1), dtype=np.uint8)
    objects = np.repeat(np.arange(4), 31)
    pool = RegressionPool.from_arrays(x, objects[:, None].astype(float), objects)
    return Splits("grey", "regression", pool, None, pool, "grey images")


def test_sheet_of_grey_images(tmp_path, monkeypatch):
    use_data(monkeypatch, grey_regression())
    experiment = sheets.dataset_experiment("pose")
    assert sheets.reason_to_skip(experiment) is None
    _, (first, second), _ = sheets.mixed_pairs(experiment, (0.5,) * 8)
    assert (first != second).all()  # They are of two sources.
    assert len(np.unique(first)) > 1
    sheets.sheet(experiment, tmp_path / "sheet.png")
    assert_drawn(tmp_path / "sheet.png")


def test_sheet_of_vectors(tmp_path, monkeypatch):
    use_data(monkeypatch, vectors())
    sheets.sheet(build(vector_config()), tmp_path / "sheet.png")
    assert_drawn(tmp_path / "sheet.png")


def test_text_has_no_sheet():
    class Text:
        config = huffpost.get_config()

    assert "hidden layers only (1)" in sheets.reason_to_skip(Text)
