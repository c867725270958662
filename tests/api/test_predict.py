"""Adapting to new tasks: any labels, classes and shots that a learner can take."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax.api import _model
from mlti_jax.data import sample_task
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.training._experiment import TEST
from mlti_jax.types import Batch
from tests.support.api_cases import (
    FEATURES,
    class_splits,
    domain_splits,
    fit_small,
    fitted,
    samples,
    task,
)

KEY = jax.random.key(0)
CLASSIFIERS = ["protonet", "matchingnet", "maml", "maml_running"]


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------------- parity


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_predict_is_the_learners_own(name):
    fit = fitted(name)
    (x, y), (query, _) = task("abc", 3)
    support = Batch(jnp.asarray(x), jnp.eye(3)[np.repeat(np.arange(3), 3)])
    logits = fit.learner.predict(
        fit.variables, support, jnp.asarray(query), TaskContext(KEY)
    )
    model = fit.adapt(x, y)
    labels, probabilities = model.predict(query), model.predict_proba(query)
    np.testing.assert_allclose(
        probabilities, softmax(np.asarray(logits) / fit.temperature), atol=2e-5
    )
    assert labels.tolist() == [
        "abc"[i] for i in np.argmax(np.asarray(logits), axis=1).tolist()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CLASSIFIERS, "anil_domains", "protonet_domains"])
def test_accuracy_is_that_of_the_evaluator_on_the_same_tasks(name):
    fit = fitted(name)
    number = 4
    values = fit.evaluate(num_tasks=number).per_task
    key = jax.random.fold_in(jax.random.key(fit.config.eval.seed), TEST)
    for index in range(number):
        drawn = sample_task(
            fit.splits.test,
            jax.random.split(jax.random.fold_in(key, index))[0],
            ways=fit.config.task.ways,
            shots=fit.config.task.shots,
            queries=fit.result["queries"],
        )
        # Any names, unless each output belongs to a class.
        names = np.array(fit.classes[: fit.config.task.ways])
        support, query = (
            (np.asarray(part.x), names[np.argmax(part.y, axis=1)])
            for part in (drawn.support, drawn.query)
        )
        assert fit.adapt(*support).score(*query) == pytest.approx(values[index])


@pytest.mark.slow
def test_regression_predicts_values():
    fit = fitted("regression")
    rng = np.random.default_rng(0)
    x, query = rng.normal(size=(2, 8, FEATURES)).astype(np.float32)
    y = x.sum(axis=1)
    model = fit.adapt(x, y)
    values = model.predict(query)
    assert model.classes is None
    assert values.shape == (8,)
    support = Batch(jnp.asarray(x), jnp.asarray(y)[:, None])
    expected = fit.learner.predict(fit.variables, support, query, TaskContext(KEY))
    np.testing.assert_allclose(values, expected[:, 0], atol=1e-5)
    wide = fit.adapt(x, y[:, None]).predict(query)
    np.testing.assert_array_equal(wide, values[:, None])


# ------------------------------------------------------- labels, classes and shots


@pytest.mark.parametrize(
    "names",
    [
        ["zebra", "ant", "cow"],
        [7, -3, 0],
        [np.uint8(200), np.uint8(3)],
        [True, False],
        [2.0, 1.0],
        ["é", "日本"],
    ],
    ids=["text", "ints", "uint8", "bools", "whole floats", "unicode"],
)
def test_labels_come_back_as_they_were_given(names):
    names = np.array(names)
    x = np.concatenate([samples(str(name), 4) for name in names])
    y = np.repeat(names, 4)
    model = fitted("protonet").adapt(x, y)
    labels, probabilities = model.predict(x), model.predict_proba(x)
    assert labels.dtype == names.dtype
    assert model.classes.tolist() == sorted(names.tolist())
    assert probabilities.shape == (len(x), len(names))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(
        labels, model.classes[np.argmax(probabilities, axis=1)]
    )
    assert np.mean(labels == y) > 0.8  # the classes are far apart
    assert model.score(x, y) == np.mean(labels == y)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_order_of_samples_and_names_does_not_matter(name):
    (x, y), (query, _) = task("abc", 3)
    fit = fitted(name)
    first = fit.adapt(x, y).predict_proba(query)
    order = np.random.default_rng(0).permutation(len(x))
    shuffled = fit.adapt(x[order], y[order]).predict_proba(query)
    np.testing.assert_allclose(shuffled, first, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["protonet", "matchingnet"])
@pytest.mark.parametrize("ways", [2, 5, 9])
def test_metric_learners_accept_any_number_of_classes(name, ways):
    (x, y), (query, truth) = task("abcdefghi"[:ways], 2)
    probabilities = fitted(name).adapt(x, y).predict_proba(query)
    labels = np.array(list("abcdefghi"))[probabilities.argmax(axis=1)]
    assert probabilities.shape == (len(query), ways)
    if name == "protonet":
        assert np.mean(labels == truth) > 1.5 / ways


@pytest.mark.parametrize("name", ["matchingnet", "maml_running", "protonet"])
def test_classes_count_equally_with_unequal_shots(name):
    """Giving all samples of one class twice brings nothing new."""
    fit = fitted(name)
    (x, y), (query, _) = task("abc", 3)
    twice = np.concatenate([x, x[y == "b"]])
    labels = np.concatenate([y, y[y == "b"]])
    once = fit.adapt(x, y).predict_proba(query)
    np.testing.assert_allclose(
        fit.adapt(twice, labels).predict_proba(query), once, atol=1e-4
    )


def test_unequal_shots_are_prototypes_of_unequal_means():
    """ProtoNet, worked out in NumPy on embeddings of single samples."""
    fit = fitted("protonet")
    sizes = {"a": 1, "b": 4, "c": 2}
    x = np.concatenate([samples(name, size) for name, size in sizes.items()])
    y = np.repeat(list(sizes), list(sizes.values()))
    query = samples("a", 6)

    def embed(x):
        h = np.asarray(x, np.float64)
        model, state = fit.variables.params["model"], fit.variables.state
        for params, averages in zip(model, state, strict=True):
            norm, averages = params["norm"], averages["norm"]
            h = h @ np.asarray(params["kernel"], np.float64)
            h = (h - averages["mean"]) / np.sqrt(averages["var"] + 1e-5)
            h = h * norm["scale"] + norm["offset"]
            h = np.where(h > 0, h, 0.01 * h)
        return h

    centres = np.stack([embed(x[y == name]).mean(axis=0) for name in sizes])
    distance = ((embed(query)[:, None] - centres[None]) ** 2).sum(axis=-1)
    found = fit.adapt(x, y).predict_proba(query)
    np.testing.assert_allclose(found, softmax(-distance / fit.temperature), atol=1e-4)


def test_probabilities_are_conditional_on_the_given_classes():
    """Two of three: the three-way network's probabilities, given that it is one."""
    fit = fitted("maml_running")
    (x, y), (query, truth) = task("ab", 3)
    model = fit.adapt(x, y)
    support = Batch(jnp.asarray(x), jnp.eye(3)[np.repeat([0, 1], 3)])
    logits = np.asarray(
        fit.learner.predict(fit.variables, support, query, TaskContext(KEY))
    )
    three = softmax(logits / fit.temperature)
    found = model.predict_proba(query)
    np.testing.assert_allclose(
        found, three[:, :2] / three[:, :2].sum(axis=1, keepdims=True), atol=1e-4
    )
    assert found.shape == (len(query), 2)


@pytest.mark.slow
def test_a_shared_label_is_its_own_output():
    """Where tasks share classes, names and not their order choose the outputs."""
    fit = fitted("anil_domains")
    assert fit.classes == ("inactive", "active")  # not sorted
    x = np.concatenate([samples("inactive", 3), samples("active", 3)])
    y = np.repeat(["inactive", "active"], 3)
    model = fit.adapt(x, y)
    assert model.classes.tolist() == ["active", "inactive"]  # as in scikit-learn
    assert model.columns.tolist() == [1, 0]
    support = Batch(jnp.asarray(x), jnp.eye(2)[np.repeat([0, 1], 3)])
    logits = fit.learner.predict(
        fit.variables, support, jnp.asarray(x), TaskContext(KEY)
    )
    np.testing.assert_allclose(
        model.predict_proba(x)[:, ::-1], softmax(np.asarray(logits)), atol=1e-5
    )


def test_bools_are_known_by_number_where_training_had_numbers():
    fit = dataclasses.replace(fitted("anil_domains"), classes=("1", "0"))
    x = np.concatenate([samples("inactive", 3), samples("active", 3)])
    model = fit.adapt(x, [True] * 3 + [False] * 3)
    assert model.classes.tolist() == [False, True]
    assert model.columns.tolist() == [1, 0]
    assert fit.adapt(x, [1.0] * 3 + [0.0] * 3).columns.tolist() == [1, 0]


# ----------------------------------------------------------------- many queries


@pytest.mark.parametrize("name", ["protonet", "maml_running"])
def test_a_prediction_does_not_depend_on_the_other_queries(name):
    fit = fitted(name)
    assert not fit.queries_interact
    (x, y), (query, _) = task("abc", 3)
    model = fit.adapt(x, y)
    all_at_once = model.predict_proba(query)
    changed = query.copy()
    changed[1:] = 100.0
    np.testing.assert_array_equal(model.predict_proba(changed)[0], all_at_once[0])
    alone = [model.predict_proba(row[None])[0] for row in query]
    np.testing.assert_allclose(alone, all_at_once, atol=1e-5)


def test_queries_interact_if_batch_norm_uses_their_statistics():
    fit = fitted("maml")
    assert fit.queries_interact
    (x, y), (query, _) = task("abc", 3)
    model = fit.adapt(x, y)
    some = model.predict_proba(query[:6])
    assert np.abs(some - model.predict_proba(query)[:6]).max() > 1e-4
    with pytest.raises(InputError, match="a single query.*learner.maml.norm"):
        model.predict(query[:1])


@pytest.mark.parametrize("number", [1, 5, 8, 11])
def test_passes_make_no_difference(number, monkeypatch):
    (x, y), (query, _) = task("abc", 3)
    model = fitted("protonet").adapt(x, y)
    whole = model.predict_proba(query[:number])
    monkeypatch.setattr(_model, "QUERIES_PER_PASS", 4)
    parts = model.predict_proba(query[:number])
    assert parts.shape == (number, 3)
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_adapting_twice_compiles_once():
    fit = fitted("protonet")
    (x, y), (query, _) = task("abc", 3)
    fit.adapt(x, y).predict(query)
    before = _model.query_outputs._cache_size()
    fit.adapt(x + 1, y[::-1]).predict(query)  # other samples and labels
    fit.adapt(x, np.repeat([5, 6, 7], 3)).predict(query[:9])  # filled up to 16 alike
    assert _model.query_outputs._cache_size() == before
    fit.adapt(x, y).predict(query[:2])
    assert _model.query_outputs._cache_size() == before + 1


@pytest.mark.slow
def test_images_are_scaled_as_in_training():
    rng = np.random.default_rng(0)
    classes = {
        f"class{i}": rng.integers(0, 256, (8, 12, 12, 1), np.uint8) for i in range(8)
    }
    fit = fit_small(classes, ways=2, shots=2, **{"backbone.conv4.filters": 4})
    assert fit.config.backbone.name == "conv4"
    assert fit.config.interpolation.method == "cutmix"
    x = np.concatenate(list(classes.values())[:2])[:, :, :, :]
    y = np.repeat(["a", "b"], 8)
    model = fit.adapt(x, y)
    support = Batch(jnp.asarray(x / np.float32(255)), jnp.eye(2)[np.repeat([0, 1], 8)])
    logits = fit.learner.predict(fit.variables, support, support.x, TaskContext(KEY))
    np.testing.assert_allclose(
        model.predict_proba(x), softmax(np.asarray(logits)), atol=1e-4
    )
    with pytest.raises(InputError, match="expected uint8"):
        fit.adapt(x / 255.0, y)


# ------------------------------------------------------------------- wrong input


def support_with(change):
    (x, y), _ = task("abc", 3)
    return change(x, y)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "protonet",
            lambda x, y: (x[:, :5], y),
            r"support set: x has shape \[9, 5\]; expected \[N, 6\]",
        ),
        ("protonet", lambda x, y: (x[0], y[:1]), r"x\[None\]"),
        ("protonet", lambda x, y: (x[:0], y[:0]), "support set"),
        ("protonet", lambda x, y: (x, y[:4]), r"y has shape \[4\]; expected \[9\]"),
        ("protonet", lambda x, y: (x, np.repeat("a", 9)), "only one class, 'a'"),
        ("protonet", lambda x, y: (np.where(x > 0, x, np.nan), y), "NaN"),
        ("protonet", lambda x, y: (x.astype(object), y), "object"),
        ("protonet", lambda x, y: (x.astype(str), y), "dtype"),
        ("protonet", lambda x, y: ([[1, 2], [3]], y), "support set: x"),
        (
            "protonet",
            lambda x, y: (x, [None, *y[1:]]),
            "support set: y is empty, NaN",
        ),
        (
            "protonet",
            lambda x, y: (x, np.array([3, *y[1:]], object)),
            "expected only text",
        ),
        ("protonet", lambda x, y: (x, np.linspace(0, 1, 9)), "text, integers"),
        ("protonet", lambda x, y: (x, np.eye(3)[[0] * 9]), r"shape \[9, 3\]"),
        (
            "maml",
            lambda x, y: (x, np.repeat(list("abcd"), [3, 2, 2, 2])),
            "y has 4 classes, but maml was trained on tasks of 3.*protonet",
        ),
        (
            "anil_domains",
            lambda x, y: (x[:6], y[:6]),
            "classes a, b, but anil has an output.*inactive, active",
        ),
        ("regression", lambda x, y: (x, y), "expected numbers"),
        ("regression", lambda x, y: (x, np.ones((9, 2))), r"expected numbers \[9, 1\]"),
        ("regression", lambda x, y: (x, [np.nan] * 9), "NaN"),
        ("regression", lambda x, y: (x[:0], []), "support set"),
    ],
)
def test_wrong_support_sets_get_one_clear_error(name, change, message):
    with pytest.raises(InputError, match=message):
        fitted(name).adapt(*support_with(change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: q[:, :4], r"queries: x has shape \[12, 4\]; expected \[N, 6\]"),
        (lambda q: q[:0], "queries"),
        (lambda q: np.full_like(q, np.inf), "infinite"),
        (lambda q: q[0], r"x\[None\]"),
    ],
)
def test_wrong_queries_get_one_clear_error(change, message):
    (x, y), (query, _) = task("abc", 3)
    with pytest.raises(InputError, match=message):
        fitted("protonet").adapt(x, y).predict(change(query))


def test_unknown_labels_of_queries_are_named():
    (x, y), (query, truth) = task("abc", 3)
    model = fitted("protonet").adapt(x, y)
    truth = np.where(np.arange(len(truth)) == 5, "dog", truth.astype("U3"))
    with pytest.raises(InputError, match=r"label 'dog' in row 5.*it has: a, b, c"):
        model.score(query, truth)


@pytest.mark.slow
def test_new_domains_are_accepted():
    """Metric-based learners take other labels than those that training shared."""
    (x, y), (query, truth) = task(["left", "right", "middle"], 3)
    assert fitted("protonet_domains").adapt(x, y).score(query, truth) > 0.5


@pytest.mark.slow
def test_meta_dropout_perturbs_at_test_too():
    """Strategies that change what is done at test time are asked."""
    fit = fit_small(
        class_splits(False),
        "maml",
        "metadropout",
        ways=3,
        steps=3,
        **{"strategy.metadropout.eval_samples": 2, "eval.num_tasks": 4},
    )
    (x, y), (query, _) = task("abc", 3)
    model = fit.adapt(x, y)
    np.testing.assert_array_equal(*(model.predict_proba(query) for _ in range(2)))


def test_domain_names_are_kept():
    fit = fitted("protonet_domains")
    assert repr(fit).startswith("FittedLearner(protonet, mlti, label_sharing, 2-way")
    x = np.concatenate([samples("inactive", 2), samples("active", 2)])
    model = fit.adapt(x, np.repeat(["inactive", "active"], 2))
    assert "classes=['active', 'inactive'], 4 support samples" in repr(model)
    assert fit.splits.setting == domain_splits().setting
