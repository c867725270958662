"""Adapted models behave like fitted estimators of scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

from mlti_jax.api._scikit_learn import r_squared
from mlti_jax.errors import InputError
from tests.support.api_cases import FEATURES, fit_small, fitted, regression_splits, task


@pytest.fixture(scope="module")
def classifier():
    """A model of three classes, and labeled queries."""
    (x, y), query = task("abc", 3, queries=20)
    return fitted("protonet").adapt(x, y), *query


def test_metrics_take_labels_and_probabilities(classifier):
    model, x, y = classifier
    predicted, probabilities = model.predict(x), model.predict_proba(x)
    assert predicted.shape == (60,)
    assert probabilities.shape == (60, 3)
    assert model.score(x, y) == metrics.accuracy_score(y, predicted)
    # Columns are in sorted order, which scikit-learn expects.
    assert model.classes_.tolist() == ["a", "b", "c"]
    auc = metrics.roc_auc_score(y, probabilities, multi_class="ovr")
    assert auc == pytest.approx(
        np.mean([_auc(y == c, probabilities[:, i]) for i, c in enumerate("abc")])
    )
    assert metrics.log_loss(y, probabilities) == pytest.approx(
        -np.log(
            [p["abc".index(c)] for p, c in zip(probabilities, y, strict=True)]
        ).mean(),
        rel=1e-4,
    )
    assert "macro avg" in metrics.classification_report(y, predicted)
    share, confidence = calibration_curve(y == "a", probabilities[:, 0], n_bins=4)
    assert share.shape == confidence.shape


def _auc(truth, score):
    """The share of pairs in the right order, of all pairs."""
    pairs = score[truth][:, None] - score[~truth][None]
    return np.mean((pairs > 0) + 0.5 * (pairs == 0))


def test_sorted_classes_if_training_had_another_order():
    fit = fitted("anil_domains")
    assert fit.classes == ("inactive", "active")
    x = np.concatenate([[np.full(FEATURES, v)] * 4 for v in (-1.0, 1.0)])
    x = (x + np.arange(8)[:, None] / 10).astype(np.float32)
    y = np.repeat(["active", "inactive"], 4)
    model = fit.adapt(x, y)
    assert model.classes_.tolist() == ["active", "inactive"]
    # The support set is given class by class as in training, each with its output.
    np.testing.assert_array_equal(model.support.x, np.concatenate([x[4:], x[:4]]))
    np.testing.assert_array_equal(model.support.y, np.eye(2)[[0] * 4 + [1] * 4])
    np.testing.assert_array_equal(
        model.predict(x), model.classes_[model.predict_proba(x).argmax(axis=1)]
    )


def test_number_of_features(classifier):
    assert classifier[0].n_features_in_ == FEATURES


@pytest.mark.slow
def test_images_have_no_number_of_features():
    rng = np.random.default_rng(0)
    images = {str(i): rng.integers(0, 256, (6, 8, 8, 1), np.uint8) for i in range(6)}
    fit = fit_small(images, ways=2, shots=2, steps=1, **{"backbone.conv4.filters": 2})
    model = fit.adapt(np.concatenate([images["0"], images["1"]]), [0] * 6 + [1] * 6)
    assert not hasattr(model, "n_features_in_")


def test_regression_has_values_only():
    fit = fitted("regression")
    rng = np.random.default_rng(0)
    x, query = rng.normal(size=(2, 8, FEATURES)).astype(np.float32)
    model, truth = fit.adapt(x, x.sum(axis=1)), query.sum(axis=1)
    for name in ("predict_proba", "classes_"):
        assert not hasattr(model, name)
    with pytest.raises(AttributeError, match="has no predict_proba; use predict"):
        model.predict_proba(query)
    values = model.predict(query)
    assert values.dtype == np.float64
    assert model.score(query, truth) == pytest.approx(metrics.r2_score(truth, values))
    with pytest.raises(InputError, match="at least two samples"):
        model.score(query[:1], truth[:1])


@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_r_squared_is_that_of_scikit_learn(constant):
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(9, 3)) * [1, 50, 0] + [0, 7, constant]
    predicted = targets + rng.normal(size=(9, 3))
    expected = metrics.r2_score(targets, predicted)
    assert r_squared(predicted, targets) == pytest.approx(expected)
    predicted[:, 2] = constant
    expected = metrics.r2_score(targets, predicted)
    assert r_squared(predicted, targets) == pytest.approx(expected)


@pytest.mark.slow
def test_several_outputs():
    fit = fit_small(regression_splits(targets=2), shots=5, steps=2)
    rng = np.random.default_rng(0)
    x, query = rng.normal(size=(2, 8, FEATURES)).astype(np.float32)
    model, truth = fit.adapt(x, x[:, :2]), query[:, :2]
    expected = metrics.r2_score(truth, model.predict(query))
    assert model.score(query, truth) == pytest.approx(expected)
