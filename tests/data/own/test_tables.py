"""`from_table`: formats, columns, labels, molecules and errors."""

import os

import numpy as np
import pandas as pd
import pytest

from mlti_jax import data
from mlti_jax.errors import InputError


def frame(tasks=5, rows=8):
    """Wards with patients; ages and cell counts differ widely in scale."""
    rng = np.random.default_rng(0)
    size = tasks * rows
    return pd.DataFrame(
        {
            "ward": [f"ward_{i // rows}" for i in range(size)],
            "age": rng.normal(50, 10, size),
            "cells": rng.normal(1e9, 1e6, size),
            "smoker": np.arange(size) % 2 == 0,
            "name": [f"patient {i}" for i in range(size)],
            "ill": np.arange(size) % 2,
        }
    )


def load(table, **options):
    return data.from_table(table, **{"label": "ill", "task": "ward", **options})


@pytest.mark.parametrize("ending", ["csv", "tsv", "tab", "parquet", "frame", "arrow"])
def test_formats_give_the_same_dataset(tmp_path, ending):
    table = frame()
    if ending == "frame":
        given = table.set_index(table.index + 100)
    elif ending == "arrow":
        import pyarrow

        given = pyarrow.Table.from_pandas(table)
    else:
        given = tmp_path / f"patients.{ending}"
        if ending == "parquet":
            table.to_parquet(given)
        else:
            table.to_csv(given, index=False, sep="," if ending == "csv" else "\t")
    splits = load(given, test=["ward_4"], validation=["ward_0"])
    assert splits.setting == "label_sharing"
    assert splits.inputs.columns == ("age", "cells", "smoker")
    assert splits.train.domains == ("ward_1", "ward_2", "ward_3")
    assert splits.source == (None if ending in ("frame", "arrow") else given.name)
    rows = table.ward.isin(["ward_1", "ward_2", "ward_3"])
    for i, name in enumerate(["age", "cells"]):
        values = table[name][rows]
        expected = (values - values.mean()) / values.std(ddof=0)
        np.testing.assert_allclose(splits.train.x[:, i], expected, atol=2e-5)
    np.testing.assert_array_equal(splits.train.x[:, 2], table.smoker[rows])
    # New rows are converted as in training, also with columns in another order.
    new = table[rows][["cells", "smoker", "age"]]
    np.testing.assert_array_equal(splits.inputs(new), splits.train.x)


def test_summary(tmp_path):
    frame().to_csv(tmp_path / "patients.csv", index=False)
    text = load(tmp_path / "patients.csv").summary
    assert "own_data (label-sharing): patients.csv: 40 samples of 5 tasks" in text
    assert "- inputs: float32 [3], columns age, cells, smoker" in text
    assert "- labels: column 'ill', integers, interpreted as classes" in text
    assert "columns not used because they are not numeric: name" in text
    assert "standardized: 2 of 3 features, the other 1 are 0 or 1" in text


def test_summary_reports_identifier_columns():
    table = frame()
    table["id"] = np.arange(len(table))
    assert "with a different integer in every row: id" in load(table).summary
    assert "integer in every row" not in load(table, features=["age"]).summary


def test_columns_can_be_chosen_and_not_standardized():
    table = frame()
    one = load(table, features=["cells", "age"], standardise=False, test=["ward_0"])
    assert one.inputs.columns == ("cells", "age")
    expected = table[table.ward == "ward_0"][["cells", "age"]].to_numpy(np.float32)
    np.testing.assert_array_equal(one.test.x, expected)
    assert "standardise=True" in one.summary
    same = load(table, features="cells, age", standardise=False, test=["ward_0"])
    np.testing.assert_array_equal(one.test.x, same.test.x)


def test_columns_without_names():
    ill, ward = np.arange(40) % 2, np.arange(40) // 10
    table = pd.DataFrame(np.column_stack([ward, np.arange(40), np.ones(40), ill]))
    splits = data.from_table(table, label=3, task=0, test=[2])
    assert splits.inputs.columns == ("1", "2")
    assert splits.test.domains == ("2",)
    splits = data.from_table(table, label=3, task=0, features=[2])
    assert splits.inputs.columns == ("2",)


def test_summary_reports_constant_columns():
    table = frame()
    table["zero"] = 0.1
    splits = load(table)
    assert "1 are constant in the training tasks" in splits.summary
    np.testing.assert_allclose(splits.train.x[:, 3], 0, atol=1e-6)


def test_without_tasks_every_label_is_a_class():
    table = frame().drop(columns="name")
    splits = load(table, label="ward", task=None, test=["ward_1", "ward_3"])
    assert splits.setting == "non_label_sharing"
    assert splits.test.classes == ("ward_1", "ward_3")
    assert splits.inputs.columns == ("age", "cells", "smoker", "ill")
    with pytest.raises(InputError, match="labels are real numbers, but without tasks"):
        load(table, label="age", task=None)


def test_real_labels_are_targets():
    table = frame()
    splits = load(table, label="age", test=["ward_2"], standardise_targets=False)
    assert splits.setting == "regression"
    assert "age" not in splits.inputs.columns
    np.testing.assert_allclose(
        splits.test.y[:, 0], table.age[table.ward == "ward_2"], rtol=1e-6
    )
    assert load(table, setting="regression").setting == "regression"


def test_labels_of_pandas_types():
    table = frame()
    table["ill"] = pd.array(table.ill, "Int64")
    table["ward"] = table.ward.astype("category")
    table["word"] = pd.array(np.where(table.ill == 1, "yes", "no"), "string")
    assert load(table).inputs.label_names == ("0", "1")
    assert load(table, label="word").inputs.label_names == ("no", "yes")


def test_tasks_by_number():
    table = frame()
    table["ward"] = table.ward.str[-1].astype(int)
    assert load(table, test=[3, 4]).test.domains == ("3", "4")
    table["ward"] = table.ward.astype(float)
    assert load(table, test="3,4").test.domains == ("3", "4")


def broken(column, row, value):
    table = frame()
    table[column] = table[column].astype(object)
    table.loc[row, column] = value
    return table.infer_objects()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (frame(), {"label": "il"}, r"no column 'il' \(did you mean 'ill'\?\).*columns"),
        (frame(), {"task": "hospital"}, "has no column 'hospital'"),
        (frame(), {"features": ["agee"]}, r"no column 'agee' \(did you mean 'age'\?\)"),
        (frame(), {"features": ["ill"]}, "'ill' is label or task"),
        (frame(), {"features": ""}, "the list is empty; name other columns"),
        (
            frame(),
            {"features": ["name"]},
            "column 'name' of the table contains 'patient 0' in row 0; expected",
        ),
        (
            broken("age", 12, np.nan),
            {},
            "column 'age' of the table is empty, NaN or infinite in 1 of 40 rows, the"
            " first is row 12",
        ),
        (broken("age", 12, np.inf), {}, "column 'age' .* the first is row 12"),
        (
            broken("ill", 7, np.nan),
            {},
            "column 'ill' of the table is empty, NaN or infinite in 1 of 40 rows, the"
            " first is row 7",
        ),
        (broken("ward", 9, None), {}, "column 'ward' .* the first is row 9"),
        (
            frame()[["ward", "ill", "name"]],
            {},
            r"no numeric column .*\(other columns: name\); name",
        ),
        (frame()[["ward", "ill"]], {}, r"no numeric column .*\(other columns: none\)"),
        (frame()[:0], {}, "the table has no rows"),
        (
            frame().rename(columns={"age": "cells"}),
            {},
            "the table has two columns named 'cells'",
        ),
        (frame(), {"smiles": "name", "features": ["age"]}, "both features and smiles"),
        (frame(), {"smiles": "drug"}, "no column 'drug'"),
        ({"a": [1], "b": [1, 2]}, {}, "the columns do not form a table"),
        (None, {}, "table is a NoneType; expected the path of a .csv"),
    ],
)
def test_errors(table, options, message):
    with pytest.raises(InputError, match=message):
        load(table, **options)


def test_unusable_files(tmp_path):
    with pytest.raises(InputError, match="file .*nothing.csv does not exist"):
        load(tmp_path / "nothing.csv")
    other = tmp_path / "patients.xlsx"
    other.write_text("")
    with pytest.raises(InputError, match="ends in '.xlsx'; expected one of .csv"):
        load(other)
    for name in ("empty.csv", "empty.parquet"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=f"{name} can't be read as a table"):
            load(tmp_path / name)
    lines = tmp_path / "patients.csv"
    lines.write_text("ward,ill,age\n" + "a,1,3\nb,0,\na,0,3\nb,1,3\n" * 2)
    with pytest.raises(InputError, match="'age' of patients.csv .* first is line 3"):
        load(lines)


def molecules_frame(broken_rows=0):
    chains = ["C" * (i + 1) + tail for tail in ("O", "N", "F", "S") for i in range(10)]
    for i in range(broken_rows):
        chains[3 + i] = f"C1{i}not"
    return pd.DataFrame(
        {
            "assay": np.repeat(["a", "b", "c", "d"], 10),
            "smiles": chains,
            "weight": np.arange(40.0),
            "active": np.tile([True, False], 20),
        }
    )


def test_molecules():
    pytest.importorskip("rdkit")
    from mlti_jax.data._readers.fingerprints import parse_smiles

    table = molecules_frame()
    splits = load(table, label="active", task="assay", smiles="smiles", test=["c"])
    assert splits.inputs.label_names == ("False", "True")
    expected = [parse_smiles(text).morgan for text in table.smiles[20:30]]
    np.testing.assert_array_equal(splits.test.x, expected)
    np.testing.assert_array_equal(splits.inputs(table.smiles[20:30]), splits.test.x)
    np.testing.assert_array_equal(splits.inputs(table[20:30]), splits.test.x)
    assert "bool [1024], morgan fingerprints of column 'smiles'" in splits.summary


def test_molecules_that_can_not_be_read():
    pytest.importorskip("rdkit")
    options = {"label": "active", "task": "assay", "smiles": "smiles"}
    splits = load(molecules_frame(broken_rows=2), **options, test=["a"])
    assert (
        "skipped: 2 molecules that RDKit can't read; the first is 'C10not' in row 3"
        in (splits.summary)
    )
    assert int(splits.test.count.sum()) == 8
    kept = molecules_frame(broken_rows=2).smiles[[0, 1, 2, 5, 6, 7, 8, 9]]
    np.testing.assert_array_equal(splits.test.x, splits.inputs.compact(kept.tolist()))
    others = molecules_frame().smiles[10:].tolist()
    np.testing.assert_array_equal(splits.train.x, splits.inputs.compact(others))
    unlabeled = molecules_frame(broken_rows=2)
    unlabeled["active"] = unlabeled.active.astype(object)
    unlabeled.loc[17, "active"] = None
    with pytest.raises(InputError, match="column 'active' .* the first is row 17"):
        load(unlabeled, **options)
    with pytest.raises(
        InputError, match="can't read 3 of the 40 molecules .* more than 5%"
    ):
        load(molecules_frame(broken_rows=3), **options)
    with pytest.raises(InputError, match="unknown fingerprint 'maccs'"):
        load(molecules_frame(), **options, fingerprint="maccs")


def test_molecules_without_rdkit(monkeypatch):
    def missing(package, extra):
        raise InputError(
            f"this needs the package {package!r}; pip install '.[{extra}]'"
        )

    monkeypatch.setattr("mlti_jax._internal.extras.require", missing)
    with pytest.raises(InputError, match="needs the package 'rdkit'.*bio"):
        load(molecules_frame(), label="active", task="assay", smiles="smiles")


def test_summary_reports_test_molecules_in_training():
    pytest.importorskip("rdkit")
    table = molecules_frame()
    table.loc[30:34, "smiles"] = table.smiles[:5].to_numpy()
    options = {"label": "active", "task": "assay", "smiles": "smiles"}
    splits = load(table, **options, test=["d"])
    test, train = np.asarray(splits.test.x), np.asarray(splits.train.x)
    # Equal fingerprints count: long chains of one kind share them.
    expected = (test[:, None] == train).all(axis=-1).any(axis=1).mean()
    assert expected >= 0.5
    text = f"{expected:.1%} of the test samples also occur in the training tasks"
    assert text in splits.summary


ROWS = "".join(f"{i % 3},{i // 3 % 2},{i}.5\n" for i in range(24))


def read_text(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return data.from_table(path, label="y", task="t")


@pytest.mark.parametrize(
    "header",
    [
        "t,y,y",
        't,y,"y"',
        "t,y, y",
        "\ufefft,y,t",
        "\n  \nt,y,y",
        "t,y,y\r",
    ],
)
def test_duplicate_columns_of_a_file_raise(tmp_path, header):
    # pandas renames the second `y` to `y.1`: the label would be a feature.
    with pytest.raises(InputError, match="a.csv has two columns named '[yt]'; rename"):
        read_text(tmp_path / "a.csv", f"{header}\n{ROWS}")


def test_duplicate_columns_of_other_tables_raise(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = [pyarrow.array([0, 1] * 4)] * 3
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns, names=["t", "y", "y"]), path)
    with pytest.raises(InputError, match="a.parquet can't be read .*Multiple matches"):
        data.from_table(path, label="y", task="t")
    for columns in (["t", "y", "y"], ["t", 1, "1"], ["t", "y", "y "]):
        table = pd.DataFrame(np.zeros((4, 3)), columns=columns)
        with pytest.raises(InputError, match="the table has two columns named"):
            data.from_table(table, label="y", task="t")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # pandas would shift the columns, or drop the last field.
        ("y,a\n" + ROWS, "line 2 of .*a.csv has 3 fields, but the header names 2"),
        ("\ny,a\n\n" + ROWS, "line 4 of .*a.csv has 3 fields"),
        ("t,y,a\n" + ROWS.replace("\n", ",\n"), "line 2 .* has 4 fields, .* names 3"),
        ("t,y,a\n" + ROWS + "1,1,1,1\n", "Expected 3 fields in line 26, saw 4"),
        ("t,y,a\n" + ROWS + '1,"1,1\n', "EOF inside string"),
        ("t,y,a\n" + ROWS + "1\n", "column 'y' of a.csv is empty.* line 26"),
        ("t,y,a\n", "a.csv has no rows"),
        ("", "a.csv can't be read as a table"),
        (("t,y,a\n" + ROWS).encode("utf-16"), "not a text file in UTF-8: .*NUL bytes"),
        # pandas ends a field at a NUL byte.
        ("t,y,a\n" + ROWS.replace("5", "5\0"), "it has NUL bytes; save it as CSV"),
        (("t,y,\xe9\n" + ROWS).encode("latin1"), "a.csv can't be read.*'utf-8' codec"),
        (b"\x1f\x8b\x08\xff\xfe" * 9, "a.csv can't be read as a table"),
        ("t,y," + "a" * 200_000 + "\n" + ROWS, "field larger than field limit"),
        ("t,y,a\n" + ROWS.replace(".5", ".5e300"), "feature 'a' has values up to 2"),
        ("t,y,a\n" + ROWS.replace(".5", ".5e-300"), "no standard deviation"),
    ],
)
def test_faulty_text_files(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_text(tmp_path / "a.csv", content)


def test_a_million_columns_raise_quickly(tmp_path):
    names = ",".join(f"c{i}" for i in range(10**6))
    with pytest.raises(InputError, match="has 1,000,000 columns; expected at most"):
        read_text(tmp_path / "a.csv", f"{names}\n{ROWS}")


def test_a_parquet_file_that_expands_raises(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    frame().to_parquet(path)
    monkeypatch.setattr("mlti_jax.data._own.files.MAX_BYTES", 8 * 6 * 40 - 1)
    with pytest.raises(InputError, match="a.parquet has 40 rows and 6 columns; expec"):
        load(path)


def test_tables_that_are_not_files(tmp_path):
    path = tmp_path / "a.csv"
    for make, kind in (
        (lambda: os.mkfifo(path), "a named pipe"),
        (lambda: path.mkdir(), "a folder"),
        (lambda: path.symlink_to("/dev/zero"), "a device"),
        (lambda: path.symlink_to("nowhere"), "a link to a file that does not exist"),
    ):
        make()
        with pytest.raises(InputError, match=f"a.csv is {kind}"):
            load(path)
        path.rmdir() if kind == "a folder" else path.unlink()


@pytest.mark.parametrize("column", ["age", "ill", "ward"])
@pytest.mark.parametrize("kind", ["array", "list"])
def test_masked_columns_raise(column, kind):
    columns = {name: list(frame()[name]) for name in ("age", "ill", "ward")}
    if kind == "array":
        columns[column] = np.ma.array(columns[column], mask=np.arange(40) == 7)
    else:
        columns[column][7] = np.ma.masked
    with pytest.raises(InputError, match=f"column '{column}' .* masked .* in row 7"):
        load(columns)
    table = pd.DataFrame({**columns, column: pd.Series(columns[column], dtype=object)})
    with pytest.raises(InputError, match=f"column '{column}'"):
        load(table, features=["age"])
    columns[column] = np.ma.array(list(frame()[column]), mask=False)
    assert load(columns).inputs.columns == ("age",)


@pytest.mark.parametrize("standardise", [True, False])
def test_large_values_name_the_task(standardise):
    table = frame()
    table.loc[39, "age"] = 1e25
    options = {"test": ["ward_4"], "standardise": standardise}
    with pytest.raises(InputError, match="x of task 'ward_4' has the value .*e.2"):
        load(table, **options)
    table["age"] = 1e25 * frame().age  # fits after standardization
    if standardise:
        assert np.abs(load(table, **options).train.x).max() < 10
        table.loc[39, "age"] = 1e300
        with pytest.raises(InputError, match="x of task 'ward_4' has the value inf"):
            load(table, **options)
    else:
        with pytest.raises(InputError, match="x of task 'ward_0' has the value"):
            load(table, **options)


def test_long_molecules_are_reported_as_unreadable():
    pytest.importorskip("rdkit")
    table = molecules_frame()
    table.loc[5, "smiles"] = "C" * 100_000
    options = {"label": "active", "task": "assay", "smiles": "smiles"}
    splits = load(table, **options)
    assert (
        f"the first is '{'C' * 60}...' (longer than 4,000 characters) in row 5"
        in splits.summary
    )
    with pytest.raises(InputError, match=r"\(longer than 4,000 characters\) in row 1"):
        splits.inputs(["C", "C" * 100_000])
