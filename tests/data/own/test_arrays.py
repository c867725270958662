"""`from_arrays`: settings, dtypes, errors and summaries."""

import datetime
import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlti_jax import data
from mlti_jax.data._own.inputs import feature_statistics
from mlti_jax.errors import InputError
from tests.support.property_settings import settings_of

RNG = np.random.default_rng(0)
FLOATS = (np.float32, np.float64)


def labeled(size=8, features=3, labels=("cold", "ill")):
    x = RNG.normal(size=(size, features))
    return x, np.array([labels[i % len(labels)] for i in range(size)])


def tasks(number=5, **options):
    return {f"ward_{i}": labeled(**options) for i in range(number)}


def rows_of(pool, domain, label):
    """The samples of one class of one domain, without the sampler."""
    d, c = pool.domains.index(domain), pool.classes.index(label)
    rows = pool.index[d, c, : pool.count[d, c]]
    return np.asarray(pool.x)[np.asarray(rows)]


def all_pools(splits):
    return [p for p in (splits.train, splits.validation, splits.test) if p is not None]


# ----------------------------------------------------------------- the three settings


def test_label_sharing():
    given = tasks()
    splits = data.from_arrays(given, validation=["ward_3"], test=["ward_1"])
    assert splits.setting == "label_sharing"
    assert splits.train.domains == ("ward_0", "ward_2", "ward_4")
    assert splits.validation.domains == ("ward_3",)
    assert splits.test.domains == ("ward_1",)
    assert splits.inputs.label_names == ("cold", "ill")
    for pool in all_pools(splits):
        for domain in pool.domains:
            x, y = given[domain]
            for label in ("cold", "ill"):
                expected = x[y == label].astype(np.float32)
                np.testing.assert_array_equal(rows_of(pool, domain, label), expected)


def test_non_label_sharing():
    given = {f"class_{i}": RNG.normal(size=(4 + i, 3)) for i in range(6)}
    splits = data.from_arrays(given, validation=0.3, test=0.3)
    assert splits.setting == "non_label_sharing"
    assert splits.inputs.label_names == ()
    names = [name for pool in all_pools(splits) for name in pool.classes]
    assert sorted(names) == sorted(given)
    for pool in all_pools(splits):
        for i, name in enumerate(pool.classes):
            x = np.asarray(pool.x)[np.asarray(pool.index[i, : pool.count[i]])]
            np.testing.assert_array_equal(x, given[name].astype(np.float32))


@pytest.mark.parametrize("width", [None, 2])
def test_regression(width):
    given = {}
    for i in range(4):
        y = RNG.normal(size=(6,) if width is None else (6, width))
        given[f"sensor_{i}"] = RNG.normal(size=(6, 2)), y
    splits = data.from_arrays(given, test=["sensor_2"])
    assert splits.setting == "regression"
    assert splits.test.y.shape == (6, width or 1)
    raw = data.from_arrays(given, test=["sensor_2"], standardise_targets=False)
    np.testing.assert_allclose(
        raw.test.y.ravel(), given["sensor_2"][1].ravel(), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("labels", "setting", "names"),
    [
        (["b", "a"], "label_sharing", ("a", "b")),
        ([True, False], "label_sharing", ("False", "True")),
        ([10, 9], "label_sharing", ("9", "10")),  # by number, not as text
        (np.array([1, 0], np.uint8), "label_sharing", ("0", "1")),
        ([1.0, 0.0], "label_sharing", ("0", "1")),
        ([0.5, 1.5], "regression", ()),
        (np.array(["b", "a"], object), "label_sharing", ("a", "b")),
        (np.array([b"b", b"a"]), "label_sharing", ("a", "b")),
        (["b ", "a"], "label_sharing", ("a", "b")),
    ],
)
def test_labels_decide_the_setting(labels, setting, names):
    given = {str(i): (np.ones((4, 2)) * i, np.tile(labels, 2)) for i in range(3)}
    splits = data.from_arrays(given)
    assert splits.setting == setting
    assert splits.inputs.label_names == names


def test_the_setting_can_be_chosen():
    given = {str(i): (RNG.normal(size=(4, 2)), [0, 1, 0, 1]) for i in range(5)}
    targets = data.from_arrays(given, setting="regression", standardise_targets=False)
    np.testing.assert_array_equal(np.unique(targets.train.y), [0, 1])
    classes = data.from_arrays(given, setting="non_label_sharing", test=["0/0", "3/1"])
    assert classes.test.classes == ("0/0", "3/1")
    assert len(classes.train.classes) == 8


def test_many_distinct_integers_as_floats_are_targets():
    y = np.arange(21.0)
    given = {str(i): (np.ones((42, 2)) * i, np.tile(y, 2)) for i in range(3)}
    assert data.from_arrays(given).setting == "regression"
    given = {name: (x[:40], np.tile(y[:20], 2)) for name, (x, _) in given.items()}
    assert data.from_arrays(given).setting == "label_sharing"


def test_the_order_of_tasks_does_not_matter():
    given = tasks(6)
    one = data.from_arrays(given, validation=0.2)
    other = data.from_arrays(dict(reversed(given.items())), validation=0.2)
    for a, b in zip(all_pools(one), all_pools(other), strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)
        assert a.domains == b.domains


# ----------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("shape", "dtype", "held", "factor"),
    [
        ((6, 3), np.float64, "float32", 1),
        ((6, 3), np.float16, "float32", 1),
        ((6, 3), np.int64, "float32", 1),
        ((6, 3), np.uint8, "float32", 1),  # counts, not pixels
        ((6, 3), bool, "bool", 1),
        ((6, 4, 4, 1), np.uint8, "uint8", 1 / 255),
        ((6, 4, 4, 3), np.float32, "float32", 1),
    ],
)
def test_dtypes(shape, dtype, held, factor):
    given = {str(i): RNG.integers(0, 2, shape).astype(dtype) for i in range(4)}
    splits = data.from_arrays(given, test=["0", "1"])
    assert str(splits.train.x.dtype) == splits.inputs.dtype == held
    task = data.sample_task(splits.test, jax.random.key(0), ways=2, shots=2, queries=4)
    drawn = np.concatenate([task.support.x, task.query.x])
    assert drawn.dtype == np.float32
    expected = np.concatenate([given["0"], given["1"]]) * factor
    np.testing.assert_allclose(drawn.sum(), expected.sum(), rtol=1e-5)


def test_pytrees_keep_integers():
    def text():
        ids = RNG.integers(0, 9, (5, 4))
        return {"ids": ids, "mask": ids > 2}

    splits = data.from_arrays({f"topic_{i}": text() for i in range(5)})
    held = {name: str(leaf.dtype) for name, leaf in splits.train.x.items()}
    assert held == {"ids": "int32", "mask": "bool"}
    leaves = [(leaf.path, leaf.shape) for leaf in splits.inputs.leaves]
    assert leaves == [("['ids']", (4,)), ("['mask']", (4,))]


def test_standardization_uses_the_training_tasks():
    given = {}
    for i in range(5):
        x, y = labeled(20)
        x = np.column_stack([1e9 + 10 * x[:, 0], 1e-4 * x[:, 1], x[:, 2] > 0])
        given[f"ward_{i}"] = x + 50 * (i == 4), y
    splits = data.from_arrays(given, test=["ward_4"], standardise=True)
    train = np.concatenate([given[f"ward_{i}"][0] for i in range(4)])
    held = np.asarray(splits.train.x)
    np.testing.assert_allclose(held[:, :2].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(held[:, :2].std(axis=0), 1, rtol=1e-5)
    np.testing.assert_array_equal(held[:, 2], train[:, 2])
    test = (given["ward_4"][0][:, 0] - train[:, 0].mean()) / train[:, 0].std()
    np.testing.assert_allclose(np.asarray(splits.test.x)[:, 0], test, rtol=1e-5)
    again = splits.inputs(given["ward_4"][0])
    np.testing.assert_array_equal(again, splits.test.x)


def test_statistics_of_constant_and_binary_features():
    x = np.column_stack([np.full(10, 0.1), np.arange(10) % 2, np.arange(10)])
    mean, scale = feature_statistics(x)
    np.testing.assert_allclose(mean, [0.1, 0, 4.5])
    np.testing.assert_allclose(scale, [1, 1, np.sqrt(8.25)])


@pytest.mark.slow
@settings_of(max_examples=25)
@given(
    classes=st.integers(2, 4),
    per_class=st.integers(2, 5),
    number=st.integers(2, 4),
    kind=st.sampled_from(["text", "int", "bool", "float"]),
    dtype=st.sampled_from([*FLOATS, np.int16, np.uint8, bool]),
    drawn=st.data(),
)
def test_every_sample_keeps_its_label(classes, per_class, number, kind, dtype, drawn):
    """Draws all samples of a task and compares them with the given arrays per class."""
    if kind == "bool":
        classes = 2
    size = classes * per_class
    ids = np.tile(np.arange(classes), per_class)
    labels = {
        "text": np.array([f"c{i}" for i in ids]),
        "int": ids - 1,
        "bool": ids.astype(bool),
        "float": ids.astype(np.float64),
    }[kind]
    names = np.unique(labels)
    given_tasks = {}
    for i in range(number):
        order = drawn.draw(st.permutations(range(size)))
        elements = st.floats(-1e3, 1e3, width=16) if dtype in FLOATS else None
        x = drawn.draw(hnp.arrays(dtype, (size, 2), elements=elements))
        given_tasks[f"t{i}"] = x, labels[list(order)]
    splits = data.from_arrays(given_tasks, test=["t0"])
    sample = functools.partial(
        data.sample_task, ways=classes, shots=per_class - 1, queries=1
    )
    task = sample(splits.test, jax.random.key(0))
    found = np.concatenate([task.support.x, task.query.x])
    label = np.concatenate([task.support.y, task.query.y]).argmax(axis=1)
    x, y = given_tasks["t0"]
    for i, name in enumerate(names):
        expected = sorted(map(tuple, x[y == name].astype(np.float32).tolist()))
        assert sorted(map(tuple, found[label == i].tolist())) == expected


# ----------------------------------------------------------------------------- errors


def changed(name, x=None, y=None, **options):
    given = tasks(**options)
    old = given[name]
    given[name] = (old[0] if x is None else x, old[1] if y is None else y)
    return given


NAN = np.ones((8, 3))
NAN[5, 1] = np.nan
SINGLE = {"a": np.ones((3, 2)), "b": np.ones((1, 2)), "c": np.ones((3, 2))}


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({}, {}, "tasks is empty; expected a dict"),
        ([1], {}, "tasks is a list; expected a dict"),
        (
            {1: SINGLE["a"], "1": SINGLE["a"]},
            {},
            "2 names, but only 1 are distinct as text",
        ),
        (SINGLE, {}, "class 'b' has 1 sample; expected at least 2"),
        (
            changed("ward_2", y=["cold"] * 7 + ["ill"]),
            {},
            "class 'ill' of task 'ward_2' has 1 sample; expected at least 2",
        ),
        (
            {"a": labeled(labels=[0.5, 1.5]), "b": (np.ones((1, 3)), [0.5])},
            {},
            "task 'b' has 1 sample",
        ),
        (
            changed("ward_1", y=["cold"] * 8),
            {},
            "task 'ward_1' has samples of a single class, 'cold'",
        ),
        (
            changed("ward_1", y=[0, 1] * 4, labels=[0, 1, 2, 3]),
            {},
            "task 'ward_1' has no sample of class '2', which task 'ward_0' has.*"
            "setting='non_label_sharing'.*targets: setting='regression'",
        ),
        (
            changed("ward_1", y=["cold", "", "ill", "ill"] * 2),
            {},
            "y of task 'ward_1' is empty, NaN or infinite in 2 of 8 rows, the first is"
            " row 1",
        ),
        (
            changed("ward_1", y=np.array(["cold", None] * 4, object)),
            {},
            "y of task 'ward_1' is empty.*4 of 8 rows, the first is row 1",
        ),
        (
            changed("ward_1", y=[0.5, np.nan] * 4, labels=[0.5, 1.5]),
            {},
            "y of task 'ward_1' is empty, NaN or infinite in 4 of 8",
        ),
        (
            changed("ward_1", y=np.array(["cold", 3] * 4, object)),
            {},
            r"mixes 'cold' \(str\) and 3 \(int\); expected only text, or only",
        ),
        (
            changed("ward_1", y=[0, 1] * 4),
            {},
            "y of task 'ward_1' has dtype int64, but",
        ),
        (
            changed("ward_1", y=np.array([datetime.date(2020, 1, 1)] * 8)),
            {},
            r"contains datetime.date\(2020, 1, 1\) \(date\); expected only text",
        ),
        (
            changed("ward_1", y=[]),
            {},
            r"y of task 'ward_1' is \[\]; expected one value",
        ),
        (changed("ward_1", y=["cold", "ill"]), {}, r"has shape \[2\], but x has 8"),
        (changed("ward_1", y="cold"), {}, "y of task 'ward_1' is cold; expected one"),
        (changed("ward_1", x=NAN), {}, "x of task 'ward_1' has NaN.*first in row 5"),
        (
            changed("ward_1", x=np.ones((8, 3)).astype(object)),
            {},
            "x of task 'ward_1' has dtype object; expected numbers",
        ),
        (
            changed("ward_1", x=[[1, 2], [1]] * 4),
            {},
            "x of task 'ward_1' can't be converted to an array.*pad rows of different",
        ),
        (changed("ward_1", x=np.ones(8)), {}, r"shape \[8\].*use x\[:, None\]"),
        (
            changed("ward_1", x=1e300 * np.ones((8, 3))),
            {},
            "x of task 'ward_1' has the value inf; expected at most 1e.15",
        ),
        (
            changed("ward_1", x=np.ones((8, 4))),
            {},
            r"x of task 'ward_1' is float32 \[4\], but that of 'ward_0' is float32 \[3",
        ),
        (
            {"a": np.ones((2, 4, 4, 1), np.uint8), "b": np.ones((2, 4, 4, 1))},
            {},
            r"'b' is float32 \[4, 4, 1\], but that of 'a' is uint8",
        ),
        (
            {"a": {"u": np.ones((2, 3)), "v": np.ones((3, 3))}},
            {},
            "x of class 'a' has arrays of 2, 3 samples",
        ),
        ({"a": {}}, {}, "x of class 'a' is empty"),
        (
            {"a": labeled(), "b": np.ones((4, 3))},
            {},
            r"'a' is a pair .* but 'b' is not",
        ),
        (tasks(), {"setting": "few_shot"}, "unknown setting 'few_shot'"),
        (
            tasks(),
            {"setting": "regression"},
            "setting is regression, but labels are text",
        ),
        (
            tasks(labels=[0.5, 1.5]),
            {"setting": "label_sharing"},
            "setting is label_sharing, but labels are real numbers such as 0.5",
        ),
        (SINGLE, {"setting": "regression"}, "but no tasks are given"),
        (
            {"a": (np.ones((2, 3)), np.eye(2, dtype=int)[[0, 1]])},
            {},
            r"use y.argmax\(axis=1\)",
        ),
        (
            {"a": np.ones((2, 4, 4, 1)), "b": np.ones((2, 4, 4, 1))},
            {"standardise": True, "test": None},
            r"standardise=True needs vectors \[M, D\]",
        ),
        (tasks(1), {}, "of 1 tasks, which leaves 0 for training"),
        (
            tasks(),
            {"test": ["ward_77"]},
            "test has the unknown task 'ward_77'.*did you mean 'ward_",
        ),
    ],
)
def test_errors(given, options, message):
    with pytest.raises(InputError, match=message):
        data.from_arrays(given, **options)


# ---------------------------------------------------------------------------- summary


def test_summary_has_counts():
    given = tasks(10, size=6)
    given["ward_0"] = labeled(9)
    splits = data.from_arrays(given, validation=0.1, test=["ward_0"])
    assert "ward_0         5         4" in splits.counts
    text = splits.summary
    assert "own_data (label-sharing): own arrays: 63 samples of 10 tasks" in text
    assert "2 classes (cold, ill)" in text
    assert "- inputs: float32 [3]" in text
    assert "- labels: text, interpreted as classes" in text
    assert "- split by task: 8 train, 1 validation, 1 test, drawn with seed 0" in text
    assert "train: 48 samples of 8 domains with 2 classes" in text
    assert "with 3 samples; shots + queries can be at most 3" in text


def test_summary_has_warnings():
    one = data.from_arrays(tasks(2)).summary
    assert "only one training task" in one
    assert "mixed within this task" in one
    assert "validation: none; a run reports its last checkpoint" in one
    two = data.from_arrays({c: RNG.normal(size=(3, 2)) for c in "abcd"}).summary
    assert "only two training classes" in two
    x = RNG.normal(size=(8, 3)) * [1, 1e3, 1e-3]
    wide = {f"t{i}": (x, 1000 * x[:, 0] / np.abs(x[:, 0]).max()) for i in range(3)}
    text = data.from_arrays(wide).summary
    assert "standard deviations of features differ by a factor of" in text
    assert "targets of the training tasks: from -" in text
    assert "; standardized for training, while metric and predictions" in text
    raw = data.from_arrays(wide, standardise_targets=False).summary
    assert "suit targets of about 1: use standardise_targets=True" in raw
    assert "standardized" not in raw
    images = {c: 255.0 * RNG.uniform(size=(2, 4, 4, 1)) for c in "abcd"}
    assert "images are floats up to 25" in data.from_arrays(images).summary
    images = {c: x / 255 for c, x in images.items()}
    assert "images are floats" not in data.from_arrays(images).summary
    assert "100.0% of the test samples also occur in the training" in text
    binary = {str(i): (RNG.normal(size=(4, 2)), [0.0, 1.0] * 2) for i in range(3)}
    assert "(for targets use setting='regression')" in data.from_arrays(binary).summary
    quiet = data.from_arrays(tasks()).summary
    for word in ("also occur", "deviations", "only", "learning rates", "floats"):
        assert word not in quiet


def test_summaries_are_short_and_counts_are_complete():
    many = data.from_arrays({f"class_{i:03}": np.ones((2, 2)) for i in range(400)})
    assert len(many.summary.splitlines()) < 15
    for i in range(400):
        assert f"class_{i:03} 2" in many.counts
    labels = [f"label {i}" for i in range(30)]
    wide = data.from_arrays(tasks(3, size=60, labels=labels)).counts
    assert "  ward_0 60  ward_1 60" in wide
    long = data.from_arrays(tasks(3, labels=["a" * 14, "b" * 12])).counts
    header, row = long.splitlines()[1:3]
    assert header.endswith(f"{'a' * 14} {'b' * 12}")
    assert len(row) == len(header)


def test_without_test_tasks():
    splits = data.from_arrays(tasks(2), test=None)
    assert splits.test is None
    assert splits.validation is None
    assert "test: none" in splits.summary


# ------------------------------------------------------------ masked and large values


def masked(values, row):
    values = np.ma.array(values)
    values[row] = np.ma.masked
    return values


X = np.arange(24.0).reshape(8, 3)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (masked(X, 5), None, "x of task 'ward_1' has masked values, .* row 5"),
        (list(masked(X, 5)), None, "x of task 'ward_1' has masked values, .* row 5"),
        (
            [[0, 1, 2]] * 3 + [[0, np.ma.masked, 2]] * 5,
            None,
            "x of task 'ward_1' has masked values, the first in row 3",
        ),
        (
            tuple({"a": masked(X, 2), "b": X}.values()),
            None,
            "x of task 'ward_1' has masked",
        ),
        (masked(X.astype(int), 5), None, "x of task 'ward_1' has masked"),
        (None, masked(["cold", "ill"] * 4, 6), "y of task 'ward_1' has masked.* row 6"),
        (None, ["cold"] * 7 + [np.ma.masked], "y of task 'ward_1' has masked.* row 7"),
        (
            None,
            np.array(["cold"] * 7 + [np.ma.masked], object),
            "y of task 'ward_1' has masked .* row 7",
        ),
    ],
)
def test_masked_values_raise(x, y, message):
    with pytest.raises(InputError, match=message):
        data.from_arrays(changed("ward_1", x=x, y=y))


def test_masked_arrays_without_masked_values():
    x, y = labeled()
    given = tasks()
    expected = data.from_arrays({**given, "ward_1": (x, y)}, test=["ward_1"])
    found = data.from_arrays(
        {**given, "ward_1": (np.ma.array(x), np.ma.array(y, mask=False))},
        test=["ward_1"],
    )
    np.testing.assert_array_equal(found.test.x, expected.test.x)


@pytest.mark.parametrize("values", [masked([0, 1, 0, 1], 2), [0, 1, np.ma.masked, 1]])
def test_masked_values_of_pools_raise(values):
    x, good = np.ones((4, 2)), np.array([0, 1, 0, 1])
    rows = "has masked values, the first in row 2"
    with pytest.raises(InputError, match=f"label {rows}"):
        data.ClassPool.from_arrays(x, values)
    with pytest.raises(InputError, match=f"domain {rows}"):
        data.DomainPool.from_arrays(x, values, good)
    with pytest.raises(InputError, match=f"x {rows}"):
        data.ClassPool.from_arrays(masked(x, 2), good)
    with pytest.raises(InputError, match=f"y {rows}"):
        data.RegressionPool.from_arrays(x, masked(x, 2), good)


@pytest.mark.parametrize("value", [1e16, -1e30, 1e300])
def test_large_values_raise(value):
    large = X.copy()
    large[4, 1] = value
    with pytest.raises(InputError, match="x of task 'ward_1' has the value .* at most"):
        data.from_arrays(changed("ward_1", x=large), test=["ward_1"])
    classes = {f"c{i}": X for i in range(4)} | {"c4": large}
    with pytest.raises(InputError, match="x of class 'c4' has the value"):
        data.from_arrays(classes)
    targets = {f"t{i}": (X, X[:, 0] / 7) for i in range(4)}
    targets["t3"] = X, large[:, 1]
    with pytest.raises(InputError, match="y of task 't3' has the value .* Scale"):
        data.from_arrays(targets, test=["t3"])
    pool = data.RegressionPool.from_arrays
    with pytest.raises(InputError, match="y of row 4 has the value"):
        pool(X, large[:, 1:2], np.zeros(8, int))
    with pytest.raises(InputError, match="x of row 4 has the value"):
        pool(large, X, np.zeros(8, int))


def test_large_integers_raise_instead_of_wrapping_around():
    ids = np.full((8, 3), 2**40)
    text = {f"c{i}": {"ids": ids, "mask": ids > 0} for i in range(5)}
    with pytest.raises(InputError, match="x of row 0 has the value 1.1e.12"):
        data.from_arrays(text)
    with pytest.raises(InputError, match="x of row 0 has the value 1.1e.12"):
        data.ClassPool.from_arrays(ids, np.arange(8) // 4)


def test_large_labels_stay_different():
    labels = [1e30, 2e30]  # Both overflow an integer.
    given = {str(i): (X, labels * 4) for i in range(3)}
    assert data.from_arrays(given).inputs.label_names == ("1e+30", "2e+30")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([10**30, 1] * 4, "y of task 'ward_1' has an integer of more than 64 bits"),
        (np.array([b"\xff", b"a"] * 4), "bytes that are not text in UTF-8"),
        (["\ud800", "a"] * 4, "y of task 'ward_1' has text that is not valid Unicode"),
        (np.full(8, 2**31, np.uint32).view("U1"), "text that is not valid Unicode"),
    ],
)
def test_labels_that_can_not_be_converted(y, message):
    with pytest.raises(InputError, match=message):
        data.from_arrays(changed("ward_1", y=y))
