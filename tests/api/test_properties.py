"""Properties of adaptation, for tasks of any size, label type and dtype."""

import numpy as np
import pytest

from tests.support.api_cases import FEATURES, fitted

pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

# Sizes are few, since each pair of support and query sizes is compiled.
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True)
NAMES = {
    "text": np.array(["b", "a", "longer name", "Ω"]),
    "ints": np.array([5, -1, 0, 2**40]),
    "small ints": np.array([3, 1, 200, 0], np.uint8),
    "bools": np.array([True, False]),
    "floats": np.array([2.0, -1.0, 0.0, 7.0]),
    "objects": np.array(["x", "y", "zz", "w"], object),
}
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int8]


@st.composite
def tasks(draw):
    """Samples, labels and queries; every class has one to three samples."""
    kind = draw(st.sampled_from(sorted(NAMES)))
    names = NAMES[kind]
    ways = draw(st.integers(2, min(3, len(names))))
    shots = draw(st.lists(st.integers(1, 3), min_size=ways, max_size=ways))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    dtype = draw(st.sampled_from(DTYPES))
    labels = np.repeat(names[:ways], shots)
    size = sum(shots)
    x = (10 * rng.normal(size=(size, FEATURES))).astype(dtype)
    query = 10 * rng.normal(size=(draw(st.sampled_from([1, 3])), FEATURES))
    order = rng.permutation(size)
    return x[order], labels[order], query.astype(dtype), names[:ways]


@pytest.mark.slow
@SETTINGS
@given(tasks())
def test_any_task_gives_probabilities_of_its_own_classes(given_task):
    x, y, query, names = given_task
    model = fitted("protonet").adapt(x, y)
    labels, probabilities = model.predict(query), model.predict_proba(query)
    assert sorted(model.classes.tolist()) == sorted(names.tolist())
    assert probabilities.shape == (len(query), len(names))
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(labels, model.classes[probabilities.argmax(axis=1)])
    assert 0 <= model.score(query, labels) <= 1
    assert model.score(query, labels) == 1


@SETTINGS
@given(tasks(), st.integers(0, 10**6))
def test_order_and_names_only_permute(given_task, seed):
    """Renamed classes and shuffled samples: the same numbers under other names."""
    x, y, query, names = given_task
    fit = fitted("protonet")
    first = fit.adapt(x, y).predict_proba(query)
    order = np.random.default_rng(seed).permutation(len(x))
    renamed = {
        name: f"class {rank}" for rank, name in enumerate(reversed(names.tolist()))
    }
    other = fit.adapt(x[order], [renamed[name] for name in y[order].tolist()])
    columns = [
        other.classes.tolist().index(renamed[name])
        for name in fit.adapt(x, y).classes.tolist()
    ]
    np.testing.assert_allclose(
        other.predict_proba(query)[:, columns],
        first,
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.slow
@SETTINGS
@given(tasks())
def test_adapting_by_gradients_gives_finite_probabilities(given_task):
    x, y, query, names = given_task
    model = fitted("maml_running").adapt(x, y)
    labels, probabilities = model.predict(query), model.predict_proba(query)
    assert probabilities.shape == (len(query), len(names))
    assert np.isfinite(probabilities).all()
    assert set(labels.tolist()) <= set(names.tolist())
