"""`Inputs`: serialization, and conversion of new data as in training."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlti_jax import data
from mlti_jax.data import Inputs
from mlti_jax.data._own.inputs import COLUMNS, IMAGES, SMILES, Leaf, Smiles
from mlti_jax.errors import InputError
from tests.support.property_settings import settings_of

VECTORS = Inputs("arrays", (Leaf("", (3,), "float32"),), label_names=("1", "2"))
BITS = Inputs("arrays", (Leaf("", (3,), "bool"),))
PIXELS = Inputs("arrays", (Leaf("", (4, 4, 1), "uint8"),))
TEXT = Inputs(
    "arrays", (Leaf("['ids']", (4,), "int32"), Leaf("['mask']", (4,), "bool"))
)
TABLE = Inputs(
    COLUMNS,
    (Leaf("", (2,), "float32"),),
    mean=(10.0, 0.0),
    scale=(2.0, 1.0),
    columns=("age", "height"),
)
MOLECULES = Inputs(SMILES, (Leaf("", (1024,), "bool"),), smiles=Smiles("drug", "path"))
FILES = Inputs(IMAGES, (Leaf("", (8, 6, 3), "uint8"),), resize=True)
ALL = [VECTORS, BITS, PIXELS, TEXT, TABLE, MOLECULES, FILES]


@pytest.mark.parametrize("inputs", ALL)
def test_json_round_trip(inputs):
    assert Inputs.from_json(inputs.to_json()) == inputs


@settings_of(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-30, 1e30)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_json_keeps_every_digit(numbers):
    mean, scale = zip(*numbers, strict=True)
    leaf = Leaf("", (len(mean),), "float32")
    inputs = dataclasses.replace(VECTORS, leaves=(leaf,), mean=mean, scale=scale)
    assert Inputs.from_json(inputs.to_json()) == inputs


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "sounds"},
        {"leaves": [["", [3]]]},
        {"leaves": [["", ["three"], "float32"]]},
        {"leaves": [["", [3], "float33"]]},
        {"color": 1},
        {"smiles": 3},
        {"leaves": [["", [3], "f4,,"]]},
        {"leaves": [["", [3], "object"]]},
        {"leaves": [["", [0], "float32"]]},
        {"leaves": []},
        {"mean": [1.0, 2.0, float("nan")], "scale": [1.0] * 3},
        {"mean": [0.0] * 3, "scale": [1.0, 0.0, 1.0]},
        {"mean": [0.0] * 3, "scale": [1.0] * 2},
        {"mean": [0.0] * 2, "scale": [1.0] * 2},
        {"mean": "abc", "scale": "abc"},
        {"label_names": [1, 2]},
        {"columns": 3},
    ],
)
def test_damaged_records_raise(change):
    with pytest.raises(InputError, match="of inputs"):
        Inputs.from_json(json.dumps({**json.loads(VECTORS.to_json()), **change}))


def test_texts_that_are_not_records_raise():
    without = json.loads(VECTORS.to_json())
    del without["leaves"]
    for text in (json.dumps(without), "[]", "{", "3", "[" * 10**5):
        with pytest.raises(InputError, match="the record of inputs can't be read"):
            Inputs.from_json(text)


def test_new_arrays():
    x = np.arange(6.0).reshape(2, 3)
    assert VECTORS(x).dtype == jnp.float32
    np.testing.assert_array_equal(VECTORS(x), x)
    np.testing.assert_array_equal(VECTORS(x.tolist()), x)
    np.testing.assert_array_equal(VECTORS(jnp.asarray(x)), x)
    np.testing.assert_array_equal(VECTORS(x > 2), x > 2)
    np.testing.assert_array_equal(BITS([[0, 1, 1]]), [[0, 1, 1]])
    assert BITS.compact([[0, 1, 1]]).dtype == bool
    pixels = np.full((2, 4, 4, 1), 51, np.uint8)
    np.testing.assert_allclose(PIXELS(pixels), 0.2)
    assert PIXELS.compact(pixels).dtype == np.uint8
    text = {"ids": np.array([[1, 2, 3, 0]]), "mask": np.array([[1, 1, 1, 0]])}
    found = TEXT(text)
    assert found["ids"].dtype == jnp.int32
    np.testing.assert_array_equal(found["ids"], text["ids"])
    np.testing.assert_array_equal(found["mask"], text["mask"])


def test_new_rows_of_a_table(tmp_path):
    columns = {"height": [1.0, 2.0], "age": [10, 14], "name": ["a", "b"]}
    expected = [[0, 1], [2, 2]]
    np.testing.assert_allclose(TABLE(columns), expected)
    np.testing.assert_allclose(TABLE(np.array([[10, 1.0], [14, 2.0]])), expected)
    path = tmp_path / "new.csv"
    path.write_text("name,age,height\na,10,1.0\nb,14,2.0\n")
    np.testing.assert_allclose(TABLE(path), expected)
    path.write_text("age;height\n10;1.0\n")
    with pytest.raises(InputError, match="new.csv has no column 'age'.*age;height"):
        TABLE(path)


@pytest.mark.parametrize(
    ("inputs", "raw", "message"),
    [
        (VECTORS, np.ones((2, 5)), r"x has shape \[2, 5\]; expected \[N, 3\], as in"),
        (VECTORS, np.ones(3), r"the shape of one sample.*x\[None\]"),
        (VECTORS, np.ones(5), r"x has shape \[5\]; expected \[N, 3\]"),
        (VECTORS, [[1, 2, np.nan]], "x has NaN"),
        (
            VECTORS,
            [[1, 2, 3], [1]],
            "x can't be converted to an array.*different lengths",
        ),
        (
            VECTORS,
            {"a": np.ones((2, 3))},
            r"x has the arrays \[\"\['a'\]\"\]; expected",
        ),
        (VECTORS, np.ones((0, 3)), "at least one sample"),
        (BITS, [[0, 1, 2]], "x has dtype float32; expected bool"),
        (PIXELS, np.ones((1, 4, 4, 1)), "x has dtype float32; expected uint8"),
        (TEXT, {"ids": [[1, 2, 3, 4]]}, r"expected those of training.*mask"),
        (TEXT, {"ids": [[1.5] * 4], "mask": [[1] * 4]}, "ids.*float32; expected int32"),
        (TABLE, {"age": [1]}, "the table has no column 'height'"),
        (TABLE, {"age": [1], "hight": [1]}, r"did you mean 'hight'\?"),
        (
            TABLE,
            {"age": ["x"], "height": [1]},
            "column 'age' of the table contains 'x'",
        ),
        (TABLE, {"age": [None], "height": [1]}, "column 'age' .* contains None"),
        (TABLE, {"age": [np.nan], "height": [1]}, "column 'age' .* is empty, NaN"),
        (TABLE, np.ones((2, 3)), r"\[2, 3\]; expected \[N, 2\]"),
        (TABLE, 3, "table is a int; expected the path"),
        (FILES, np.ones((1, 8, 8, 3), np.uint8), r"expected \[N, 8, 6, 3\]"),
        (FILES, [], "list of image files is empty"),
        (FILES, ["nowhere.png"], "file nowhere.png does not exist"),
    ],
)
def test_unusable_new_data(inputs, raw, message):
    with pytest.raises(InputError, match=message):
        inputs(raw)


def test_float_images_do_not_accept_uint8():
    floats = Inputs("arrays", (Leaf("", (4, 4, 1), "float32"),))
    with pytest.raises(InputError, match="x has dtype uint8; expected float32"):
        floats(np.ones((1, 4, 4, 1), np.uint8))


def test_molecules():
    pytest.importorskip("rdkit")
    from mlti_jax.data._readers import fingerprints

    texts = ["CCO", "c1ccccc1", "CCO"]
    bits = MOLECULES.compact(texts)
    expected = [fingerprints.parse_smiles(text).path for text in texts]
    np.testing.assert_array_equal(bits, expected)
    np.testing.assert_array_equal(MOLECULES.compact({"drug": texts}), bits)
    np.testing.assert_array_equal(MOLECULES.compact(np.array(texts)), bits)
    np.testing.assert_array_equal(MOLECULES.compact(bits), bits)
    assert MOLECULES(texts).dtype == jnp.float32
    with pytest.raises(InputError, match="can't read the molecule 'C1' in row 1"):
        MOLECULES(["CCO", "C1"])
    with pytest.raises(InputError, match="no column 'drug'"):
        MOLECULES({"smiles": texts})


def test_new_arrays_equal_the_pool():
    rng = np.random.default_rng(0)
    given = {f"t{i}": (rng.normal(size=(4, 2)), [0, 1, 0, 1]) for i in range(3)}
    splits = data.from_arrays(given, test=["t1"])
    np.testing.assert_array_equal(splits.inputs(given["t1"][0]), splits.test.x)


@pytest.mark.parametrize(
    ("inputs", "raw", "message"),
    [
        (VECTORS, np.ma.array(np.ones((2, 3)), mask=np.eye(2, 3)), "masked .* row 0"),
        (VECTORS, [[1, 2, 3], [1, 2, np.ma.masked]], "x has masked values, .* row 1"),
        (
            TABLE,
            {"age": [1, np.ma.masked], "height": [1, 2]},
            "'age' .* masked .*row 1",
        ),
        (TABLE, np.ma.array(np.ones((2, 2)), mask=[[0, 0], [1, 0]]), "masked .* row 1"),
        (MOLECULES, ["C", np.ma.masked], "x has masked values, the first in row 1"),
        (
            TEXT,
            {"ids": np.ma.masked_equal([[1, 2, 3, 0]], 0), "mask": np.ones((1, 4))},
            "x has masked values",
        ),
        (
            VECTORS,
            [[1, 2, 3], [1, 2, 1e16]],
            "x of row 1 has the value 1e.16; expected",
        ),
        (VECTORS, [[1, 2, -1e300]], "x of row 0 has the value -inf"),
        (TABLE, [[1, 2], [1e300, 2]], "x of row 1 has the value inf"),
        (
            TEXT,
            {"ids": [[1, 2, 3, 2**40]], "mask": np.ones((1, 4), bool)},
            "x of row 0 has the value 1.1e.12",
        ),
    ],
)
def test_masked_and_large_new_data(inputs, raw, message):
    with pytest.raises(InputError, match=message):
        inputs(raw)
