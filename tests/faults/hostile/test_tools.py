"""Flags and files that the other commands must refuse."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import report
from experiments.benchmark import __main__ as benchmark
from experiments.figures import __main__ as figures
from experiments.tables import __main__ as tables
from experiments.theory import __main__ as theory
from mlti_jax.data import describe, prepare
from tests.support.hostile import (
    DAMAGED_JSON,
    RAINBOW,
    Row,
    device_in,
    fifo_in,
    file_in,
    folder_in,
    params,
)

# ----------------------------------------------------- mlti_jax.data.prepare, describe


def preparation(id, message, *args, prepare=lambda tmp: 0):
    return Row(id, message, ("--data_dir={tmp}/records", *args), prepare)


def damaged_zip(tmp):
    name = "raw/ISIC2018_Task3_Training_"
    classes = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
    rows = [[f"image{i}", *np.eye(7)[i]] for i in range(7)]
    lines = [",".join(map(str, row)) for row in (("image", *classes), *rows)]
    file_in(f"{name}GroundTruth.csv", "\n".join(lines))(tmp)
    file_in(f"{name}Input.zip", "no zip")(tmp)


RAW = "--raw={tmp}/raw"
PREPARATIONS = [
    preparation("dataset-missing", "--dataset is missing"),
    preparation(
        "dataset-unknown", "unknown dataset 'imagenet'", "--dataset=imagenet", RAW
    ),
    preparation("dataset-empty", "dataset", "--dataset=", RAW),
    preparation("dataset-path", "unknown dataset", "--dataset=../pose", RAW),
    preparation("raw-missing", "--raw=DIR is missing", "--dataset=pose"),
    preparation("raw-nowhere", "raw is not a folder", "--dataset=pose", RAW),
    preparation(
        "raw-empty",
        "raw is not a folder with files",
        "--dataset=pose",
        RAW,
        prepare=folder_in("raw"),
    ),
    preparation(
        "raw-file", "raw is not a folder", "--dataset=pose", RAW, prepare=file_in("raw")
    ),
    preparation("raw-empty-flag", "--raw=DIR is missing", "--dataset=pose", "--raw="),
    preparation(
        "raw-other-release",
        "raw has no train_data_ins.pkl",
        "--dataset=pose",
        RAW,
        prepare=file_in("raw/x.txt"),
    ),
    preparation(
        "raw-damaged-zip",
        "damaged zip file",
        "--dataset=isic",
        RAW,
        prepare=damaged_zip,
    ),
    preparation(
        "raw-damaged-pickle",
        "train_data_ins.pkl",
        "--dataset=pose",
        RAW,
        prepare=lambda tmp: [
            file_in(f"raw/{name}_data_ins.pkl", "no pickle")(tmp)
            for name in ("train", "val")
        ],
    ),
    preparation(
        "raw-fifo",
        "named pipe|train_data_ins.pkl",
        "--dataset=pose",
        RAW,
        prepare=lambda tmp: [
            fifo_in(f"raw/{name}_data_ins.pkl")(tmp) for name in ("train", "val")
        ],
    ),
    preparation(
        "data_dir-file",
        "is a file",
        "--dataset=pose",
        RAW,
        "--data_dir={tmp}/raw/x.txt",
        prepare=file_in("raw/x.txt"),
    ),
    preparation(
        "data_dir-under-a-file",
        "is a file",
        "--dataset=pose",
        RAW,
        "--data_dir={tmp}/raw/x.txt/in",
        prepare=file_in("raw/x.txt"),
    ),
    preparation(
        "data_dir-place-file",
        "pose is a file",
        "--dataset=pose",
        RAW,
        prepare=lambda tmp: (file_in("raw/x.txt")(tmp), file_in("records/pose")(tmp)),
    ),
    preparation(
        "processes-zero",
        "processes(=| is )0",
        "--dataset=pose",
        RAW,
        "--processes=0",
        prepare=file_in("raw/x.txt"),
    ),
    preparation(
        "processes-negative",
        "processes(=| is )-1",
        "--dataset=pose",
        RAW,
        "--processes=-1",
        prepare=file_in("raw/x.txt"),
    ),
    preparation(
        "processes-text", "processes", "--dataset=pose", RAW, "--processes=two"
    ),
    preparation("own-data", "own_data is read directly", "--dataset=own_data", RAW),
]
DESCRIPTIONS = [
    preparation("dataset-missing", "--dataset is missing"),
    preparation("dataset-unknown", "unknown dataset 'imagenet'", "--dataset=imagenet"),
    preparation("not-prepared", "pose is not prepared in .*records", "--dataset=pose"),
    preparation(
        "data_dir-file",
        "is a file",
        "--dataset=pose",
        "--data_dir={tmp}/x",
        prepare=file_in("x"),
    ),
    preparation(
        "records-damaged",
        "can't be read|not prepared",
        "--dataset=pose",
        prepare=file_in("records/pose/1.0.0/dataset_info.json", "{"),
    ),
    preparation("flag-unknown", "unknown flag --plot", "--dataset=pose", "--plot=x"),
]


@pytest.mark.parametrize("row", params(PREPARATIONS, quick=1))
def test_prepare(row, refuse, tmp_path):
    row.prepare(tmp_path)
    for name in ("isic", "pose"):  # for the lock
        if not (tmp_path / "records" / name).exists():
            (tmp_path / "records" / name).mkdir(parents=True)
    refuse(prepare, row._replace(prepare=lambda tmp: None))


@pytest.mark.parametrize("row", params(DESCRIPTIONS, quick=1))
def test_describe(row, refuse):
    refuse(describe, row)


# ---------------------------------------- tables, figures, report, theory, benchmark


def with_results(id, message, *args, prepare=folder_in("results")):
    return Row(id, message, ("--results={tmp}/results", *args), prepare)


def damaged_result(content):
    return file_in("results/nci/damaged.json", content)


TABLE = "--table=overall_ls"
DRY_RUN = (TABLE, "--dry_run")
RUN = (TABLE, "--run", "--workdir={tmp}/runs")
TABLES = [
    with_results("table-missing", "--table is missing"),
    with_results("table-unknown", "unknown table 'overal'", "--table=overal"),
    with_results("table-empty", "--table is missing", "--table="),
    with_results("run-without-workdir", "--run needs --workdir", TABLE, "--run"),
    with_results("run-and-dry-run", "exclude each other", *RUN, "--dry_run"),
    with_results(
        "workdir-empty", "--workdir", TABLE, "--run", "--only=pose", "--workdir="
    ),
    with_results(
        "workdir-file",
        "is a file, not a directory",
        *(TABLE, "--run", "--workdir={tmp}/file"),
        prepare=lambda tmp: (folder_in("results")(tmp), file_in("file")(tmp)),
    ),
    with_results("seeds-zero", "seeds", *RUN, "--seeds=0"),
    with_results("seeds-huge", "seeds", *DRY_RUN, "--only=pose", f"--seeds={10**6}"),
    with_results("jobs-zero", "jobs", *RUN, "--jobs=0"),
    with_results("steps-zero", "steps", *RUN, "--steps=0"),
    with_results("steps-text", "steps", *RUN, "--steps=many"),
    with_results("seeds-without-run", "--seeds requires --run", TABLE, "--seeds=2"),
    with_results("only-nothing", "no run matches --only=nsi", *DRY_RUN, "--only=nsi"),
    with_results("only-nothing-shown", "no run matches", TABLE, "--only=nsi"),
    with_results("format", "format", TABLE, "--format=word"),
    with_results("split", "split", *DRY_RUN, "--split=half"),
    with_results("albert", "--albert=.*not a folder", *DRY_RUN, "--albert={tmp}/no"),
    with_results("output-folder", "is a directory", TABLE, "--output={tmp}"),
    with_results("output-nowhere", "does not exist", TABLE, "--output={tmp}/no/x.md"),
    with_results(
        "output-device",
        "device",
        TABLE,
        "--output={tmp}/null",
        prepare=lambda tmp: (folder_in("results")(tmp), device_in("null")(tmp)),
    ),
    with_results(
        "output-fifo",
        "special file",
        *(TABLE, "--output={tmp}/pipe"),
        prepare=lambda tmp: (folder_in("results")(tmp), fifo_in("pipe")(tmp)),
    ),
    with_results("results-missing", "not a folder", TABLE, prepare=lambda tmp: 0),
    with_results("results-file", "not a folder", TABLE, prepare=file_in("results")),
    with_results("list-damaged", "damaged", "--list", prepare=damaged_result("{")),
    *(
        with_results(
            f"result-{fault}",
            "damaged.json",
            TABLE,
            prepare=damaged_result(content),
        )
        for fault, content in DAMAGED_JSON.items()
    ),
    with_results(
        "result-folder",
        "damaged.json",
        TABLE,
        prepare=folder_in("results/nci/damaged.json"),
    ),
    with_results(
        "result-fifo",
        "damaged.json",
        TABLE,
        prepare=fifo_in("results/nci/damaged.json"),
    ),
]
FIGURE = "--figure=task_numbers"
FIGURES = [
    with_results("figure-missing", "--figure is missing"),
    with_results("figure-unknown", "unknown figure 'tsen'", "--figure=tsen"),
    with_results("output-missing", "--output is missing", FIGURE),
    with_results("output-empty", "--output", FIGURE, "--output="),
    with_results(
        "output-file",
        "is a file, not a directory",
        *("--figure=tsne", "--output={tmp}/file"),
        prepare=file_in("file"),
    ),
    with_results("run-without-workdir", "--run needs --workdir", FIGURE, "--run"),
    with_results("seeds-zero", "seeds", FIGURE, "--run", "--seeds=0"),
    with_results("jobs-zero", "jobs", FIGURE, "--run", "--jobs=0"),
    with_results("only-nothing", "no run matches", FIGURE, "--dry_run", "--only=nsi"),
    with_results(
        "no-results",
        "no results",
        FIGURE,
        "--output={tmp}",
        prepare=folder_in("results"),
    ),
    with_results(
        "result-damaged",
        "damaged.json",
        *(FIGURE, "--output={tmp}"),
        prepare=damaged_result("[]"),
    ),
    with_results(
        "dataset-unknown",
        "unknown dataset 'mnst'",
        *("--figure=sheets", "--output={tmp}", "--datasets=mnst"),
    ),
    with_results(
        "workdir-not-a-run",
        "no config.json, so it is not a finished run",
        *("--figure=tsne", "--output={tmp}", "--workdir={tmp}"),
    ),
    with_results(
        "workdir-and-config",
        "leave out --config",
        *("--figure=tsne", "--output={tmp}", "--workdir={tmp}", RAINBOW),
    ),
    with_results(
        "workdir-damaged",
        "config.json is damaged",
        *("--figure=tsne", "--output={tmp}", "--workdir={tmp}"),
        prepare=lambda tmp: [file_in(f"{n}.json")(tmp) for n in ("config", "results")],
    ),
]
PAGE = "--output={tmp}/page.md"
REPORTS = [
    with_results("results-missing", "not a folder", PAGE, prepare=lambda tmp: 0),
    with_results("result-damaged", "damaged.json", PAGE, prepare=damaged_result("{}")),
    with_results("output-folder", "is a directory", "--output={tmp}"),
    with_results("output-nowhere", "does not exist", "--output={tmp}/no/page.md"),
    with_results(
        "output-device",
        "device",
        "--output={tmp}/null",
        prepare=lambda tmp: (folder_in("results")(tmp), device_in("null")(tmp)),
    ),
    with_results("argument", "unexpected argument", PAGE, "x"),
    *(
        with_results(
            f"theory-{fault}",
            "theory.json is damaged",
            PAGE,
            prepare=file_in("results/theory.json", content),
        )
        for fault, content in (
            *DAMAGED_JSON.items(),
            ("wrong-fields", '{"remainders": 3, "total_variance": []}'),
        )
    ),
    with_results(
        "theory-fifo", "theory.json", PAGE, prepare=fifo_in("results/theory.json")
    ),
    with_results(
        "notes-not-utf8",
        "notes.md.*UTF-8",
        PAGE,
        prepare=file_in("results/notes.md", b"\xff"),
    ),
    with_results(
        "notes-folder", "notes.md", PAGE, prepare=folder_in("results/notes.md")
    ),
    with_results("notes-fifo", "notes.md", PAGE, prepare=fifo_in("results/notes.md")),
]


def output(id, message, *args, prepare=lambda tmp: 0):
    return Row(id, message, args, prepare)


THEORIES = [
    output("output-missing", "--output is missing"),
    output("output-empty", "--output", "--output="),
    output("output-file", "not a directory", "--output={tmp}/x", prepare=file_in("x")),
    output("output-in-a-file", "not a dir", "--output={tmp}/x/y", prepare=file_in("x")),
    output("output-fifo", "not a directory", "--output={tmp}/x", prepare=fifo_in("x")),
    output(
        "output-occupied",
        "theory.json is a directory",
        "--output={tmp}/out",
        prepare=folder_in("out/theory.json"),
    ),
    output(
        "data_dir-file",
        "is a file",
        "--output={tmp}",
        "--data_dir={tmp}/x",
        prepare=file_in("x"),
    ),
]
QUICK = ("--quick", "--cases=protonet_conv4_28_vanilla")
BENCHMARKS = [
    output("case-unknown", "unknown case 'nothing'", "--cases=nothing"),
    output("rounds-zero", "--rounds=0", "--rounds=0"),
    output("seconds-zero", "--seconds=0", "--seconds=0"),
    output("seconds-nan", "--seconds=nan", "--seconds=nan"),
    output("seconds-inf", "--seconds=inf", "--seconds=inf"),
    output("rounds-text", "rounds", "--rounds=few"),
    output("side-unknown", "unknown side 'tensorflow'", "--sides=tensorflow"),
    output("account-unknown", "unknown case 'nothing'", "--account_cases=nothing"),
    output(
        "output-file",
        "not a directory",
        "--quick",
        "--output={tmp}/x",
        prepare=file_in("x"),
    ),
    output(
        "output-fifo",
        "not a directory",
        "--quick",
        "--output={tmp}/x",
        prepare=fifo_in("x"),
    ),
    output(
        "output-occupied",
        "results.json is a directory",
        *("--quick", "--output={tmp}/out"),
        prepare=folder_in("out/results.json"),
    ),
]


@pytest.mark.parametrize("row", params(TABLES, quick=2))
def test_tables(row, refuse):
    refuse(tables, row)


@pytest.mark.parametrize("row", params(FIGURES, quick=2))
def test_figures(row, refuse):
    refuse(figures, row)


@pytest.mark.parametrize("row", params(REPORTS, quick=1))
def test_report(row, refuse):
    refuse(report, row)


@pytest.mark.parametrize("row", params(THEORIES, quick=1))
def test_theory(row, refuse):
    refuse(theory, row)


@pytest.mark.parametrize("row", params(BENCHMARKS, quick=1))
def test_benchmark(row, refuse):
    refuse(benchmark, row)
