"""Models, support sets, queries and outputs that must be refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from experiments import predict
from tests.support.hostile import (
    HEADER,
    NESTED,
    QUERY,
    X,
    Y,
    bomb,
    device_in,
    edited,
    fifo_in,
    file_in,
    flipped,
    folder_in,
    instead,
    params,
    prediction,
    resealed,
    with_value,
)

# --------------------------------------------------------------- experiments.predict


def query_file(id, message, text, flag="query"):
    name = f"{flag}.csv"
    return prediction(id, message, file_in(name, text), **{flag: f"{{tmp}}/{name}"})


def query_arrays(id, message, flag="query", **changes):
    name = f"{flag}.npz"

    def write(tmp):
        given = {"x": X[:12], "y": np.array(["no", "yes"])[Y[:12]], **changes}
        np.savez(tmp / name, **given)

    return prediction(id, message, write, **{flag: f"{{tmp}}/{name}"})


def manifest(id, message, change, seal=True):
    """A row with an edited manifest; with its checksum, or without."""
    edit = (resealed if seal else edited)("model/manifest.json", change)
    return prediction(f"manifest-{id}", message, edit)


def model_file(id, message, make, *content):
    return prediction(
        f"manifest-{id}", message, instead("model/manifest.json", make, *content)
    )


def remove_arrays(tmp):
    for path in (tmp / "model").glob("arrays-*"):
        path.unlink()


def arrays_bomb(tmp):
    (path,) = (tmp / "model").glob("arrays-*")
    bomb(path, 50)


NO_CHECKSUM = "manifest.json is damaged .its content does not match its checksum"
ONE_LAYER = [8] * 20_000
PREDICTIONS = [
    prediction(
        "output-device", "null is a device", device_in("null"), output="{tmp}/null"
    ),
    query_file(
        "query-1e35",
        "queries: x of row 1 has the value 1e.35|queries.*row 1",
        QUERY.replace(QUERY.splitlines()[2].split(",")[2], "1e35"),
    ),
    prediction("output-folder", "is a directory", output="{tmp}"),
    prediction("output-fifo", "special file", fifo_in("pipe"), output="{tmp}/pipe"),
    prediction("output-missing-folder", "does not exist", output="{tmp}/no/out.csv"),
    prediction(
        "output-under-a-file",
        "does not exist|not a directory",
        file_in("file"),
        output="{tmp}/file/out.csv",
    ),
    prediction("output-empty", "--output", output=""),
    prediction(
        "output-long-name", "too long.*shorter path", output="{tmp}/" + "a" * 300
    ),
    prediction("query-missing", "no such file", query="{tmp}/nowhere.csv"),
    prediction("query-empty-flag", "--query", query=""),
    prediction("query-folder", "query", folder_in("query"), query="{tmp}/query"),
    prediction(
        "query-fifo", "named pipe", fifo_in("query.csv"), query="{tmp}/query.csv"
    ),
    prediction("query-device", "device|ends in", query="/dev/zero"),
    query_file("query-empty", "query.csv", ""),
    query_file("query-header-only", "no rows", HEADER + "\n"),
    query_file(
        "query-nan",
        "queries: column 'f0'.*the first is row 4",
        QUERY + "t,no,nan,1,1,1\n",
    ),
    query_file(
        "query-text",
        "queries: column 'f0'.*'high' in row 4",
        QUERY + "t,no,high,1,1,1\n",
    ),
    query_file("query-other-columns", "no column 'f0'", QUERY.replace("f0", "g0")),
    query_file(
        "query-column-twice", "two columns named 'f0'", QUERY.replace("f1", "f0")
    ),
    query_file("query-ragged", "query.csv", QUERY + "t,no,1,1,1,1,1,1\n"),
    query_file(
        "query-prediction-column",
        "column 'prediction'",
        QUERY.replace("task", "prediction", 1),
    ),
    query_file(
        "query-tiny-range",
        "row 0",
        QUERY.replace(QUERY.splitlines()[1].split(",")[3], "-1e300"),
    ),
    query_arrays(
        "arrays-wrong-width",
        r"queries.*shape \[12, 3\]; expected \[N, 4\]",
        x=X[:12, :3],
    ),
    query_arrays("arrays-one-sample", r"x\[None\]", x=X[0]),
    query_arrays("arrays-none", "queries", x=X[:0]),
    query_arrays(
        "arrays-nan", "queries.*NaN.*row 3", x=with_value(X[:12], (3, 0), np.nan)
    ),
    query_arrays("arrays-1e35", "queries.*row 3", x=with_value(X[:12], (3, 0), 1e35)),
    query_arrays("arrays-objects", "dtype object", x=X[:12].astype(object)),
    query_arrays("arrays-text", "queries.*numbers", x=X[:12].astype(str)),
    query_arrays(
        "support-one-class", "only one class", flag="support", y=np.array(["no"] * 12)
    ),
    query_arrays(
        "support-labels-short",
        "support set.*one label",
        flag="support",
        y=np.array(["no", "yes"]),
    ),
    query_arrays(
        "support-real-labels",
        "support set.*0.5",
        flag="support",
        y=np.linspace(0.5, 1, 12),
    ),
    query_arrays(
        "support-1e35",
        "support set.*row 3",
        flag="support",
        x=with_value(X[:12], (3, 0), 1e35),
    ),
    query_file(
        "support-one-row",
        "only one class",
        "\n".join(QUERY.splitlines()[:2]),
        flag="support",
    ),
    query_file(
        "support-no-label",
        "no column 'label'",
        QUERY.replace("label", "state"),
        flag="support",
    ),
    prediction("label-unknown", "no column 'lable'.*'label'", label="lable"),
    prediction("label-empty", "no column ''|--label", label=""),
    prediction(
        "model-missing", "no manifest.json|does not exist", model="{tmp}/nowhere"
    ),
    prediction(
        "model-empty", "no manifest.json", folder_in("empty"), model="{tmp}/empty"
    ),
    prediction(
        "model-file",
        "no manifest.json|not a directory",
        file_in("file"),
        model="{tmp}/file",
    ),
    prediction("model-empty-flag", "--model|manifest.json", model=""),
    prediction(
        "model-of-an-unfinished-run",
        "no manifest.json",
        file_in("run/config.json", "{}"),
        model="{tmp}/run",
    ),
    prediction(
        "model-of-a-damaged-run",
        "another version of this project: its config has no",
        lambda tmp: (
            file_in("run/config.json", "{}")(tmp),
            file_in("run/results.json", "{}")(tmp),
        ),
        model="{tmp}/run",
    ),
    manifest(
        "classes-edited",
        NO_CHECKSUM,
        lambda m: m.update(classes=["x", "y"]),
        seal=False,
    ),
    manifest(
        "names-edited",
        NO_CHECKSUM,
        lambda m: m["inputs"].update(label_names=["x", "y"]),
        seal=False,
    ),
    manifest(
        "scale-edited",
        NO_CHECKSUM,
        lambda m: m["inputs"].update(scale=[2.0] * 4),
        seal=False,
    ),
    manifest(
        "scale-zero",
        "inputs cannot be used.*scale",
        lambda m: m["inputs"].update(scale=[0.0] * 4),
    ),
    manifest(
        "scale-negative",
        "scale is -1.0",
        lambda m: m["inputs"].update(scale=[-1.0] * 4),
    ),
    manifest(
        "scale-nan", "NaN", lambda m: m["inputs"].update(scale=[float("nan")] * 4)
    ),
    manifest(
        "scale-text",
        "inputs cannot be used",
        lambda m: m["inputs"].update(scale=["a"] * 4),
    ),
    manifest(
        "scale-short",
        "inputs cannot be used",
        lambda m: m["inputs"].update(scale=[1.0]),
    ),
    manifest(
        "names-wrong-type",
        "label_names|inputs",
        lambda m: m["inputs"].update(label_names=3),
    ),
    manifest(
        "columns-wrong-type",
        "columns|inputs",
        lambda m: m["inputs"].update(columns=[1, 2, 3, 4]),
    ),
    manifest("classes-too-few", "classes", lambda m: m.update(classes=["no"])),
    manifest(
        "20000-layers",
        "20000 layers is too deep",
        lambda m: m["config"]["backbone"]["mlp"].update(hidden=ONE_LAYER),
    ),
    manifest(
        "wide-layer",
        "config|damaged|expected",
        lambda m: m["config"]["backbone"]["mlp"].update(hidden=[10**9, 10**9]),
    ),
    manifest(
        "huge-samples",
        "inputs|damaged|expected",
        lambda m: m["inputs"].update(leaves=[["", [2**30], "float32"]]),
    ),
    manifest(
        "temperature-zero",
        "temperature is 0.0",
        lambda m: m.update(
            calibration={
                "temperature": 0.0,
                "tasks": 2,
                "test_tasks": 2,
                "error_before": 0.1,
                "error_after": 0.1,
            }
        ),
    ),
    model_file(
        "nested", "manifest.json is damaged .it is nested too deeply", file_in, NESTED
    ),
    model_file("folder", "manifest.json", folder_in),
    model_file("fifo", "manifest.json", fifo_in),
    model_file("list", "expected a dictionary, found a list", file_in, "[]"),
    model_file("not-utf8", "manifest.json is damaged", file_in, b"\xff\xfe"),
    prediction(
        "arrays-file-flipped",
        "arrays-.*is damaged.*checksum",
        flipped("model/arrays-*"),
    ),
    prediction("arrays-file-missing", "lacks arrays-", remove_arrays),
    prediction("arrays-file-bomb", "arrays-.*is damaged", arrays_bomb),
]


@pytest.mark.parametrize("row", params(PREDICTIONS, quick=2))
def test_predict_command(row, refuse, model, tmp_path):
    """The output of an earlier call is unchanged, as is everything else."""
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "out.csv").write_text("of an earlier call")
    refuse(predict, row)
