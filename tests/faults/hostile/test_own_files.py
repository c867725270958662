"""Users' own files that must be refused, through the command."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import run
from tests.support.hostile import (
    HEADER,
    TASK,
    Row,
    X,
    Y,
    bomb,
    fifo_in,
    file_in,
    flipped,
    params,
    run_args,
    table_text,
    task_arrays,
    with_value,
    write_npz,
)

# --------------------------------------------------------------------- users' own files


def own_file(id, message, prepare, *more, name="own.npz"):
    """A row of the command with a file of the user's."""
    return Row(id, message, run_args(*more, data=f"{{tmp}}/{name}"), prepare)


def own_table(
    id, message, text, *, name="own.csv", label="label", task="task", more=()
):
    options = (
        f"--config.dataset.label={label}",
        f"--config.dataset.task={task}",
        *more,
    )
    return own_file(id, message, file_in(name, text), *options, name=name)


def npy_named_npz(tmp):
    np.save(tmp / "own.npy", task_arrays()["x"])
    (tmp / "own.npy").rename(tmp / "own.npz")


def cut(tmp):
    write_npz()(tmp)
    content = (tmp / "own.npz").read_bytes()
    (tmp / "own.npz").write_bytes(content[: len(content) // 2])


OWN_FILES = [
    own_file("npy-named-npz", "own.npz can't be read", npy_named_npz),
    own_table(
        "no-label-column", "no column 'lable'.*'label'", table_text(), label="lable"
    ),
    own_file("npz-cut", "own.npz can't be read", cut),
    own_file(
        "npz-flipped",
        "own.npz",
        lambda tmp: (write_npz()(tmp), flipped("own.npz")(tmp)),
    ),
    own_file("npz-empty", "own.npz can't be read", file_in("own.npz")),
    own_file("npz-bomb", "expected x, y|bytes", lambda tmp: bomb(tmp / "own.npz", 20)),
    own_file("npz-fifo", "own.npz is a named pipe", fifo_in("own.npz")),
    own_file("npz-objects", "'x'.*dtype object", write_npz(x=X.astype(object))),
    own_file("npz-no-x", "has no array 'x'", write_npz(x=None)),
    own_file("npz-no-y", "has no array 'y'", write_npz(y=None)),
    own_file("npz-scalar", r"shape \[\]", write_npz(x=np.array(3.0))),
    own_file("npz-vector", r"shape \[60\]", write_npz(x=X[:, 0])),
    own_file(
        "npz-no-samples", "shape|empty", write_npz(x=X[:0], y=Y[:0], task=TASK[:0])
    ),
    own_file("npz-no-features", r"shape \[60, 0\]", write_npz(x=X[:, :0])),
    own_file("npz-complex", "complex", write_npz(x=X.astype(complex))),
    own_file("npz-text", "expected numbers", write_npz(x=X.astype(str))),
    own_file("npz-dates", "datetime64", write_npz(y=Y.astype("datetime64[s]"))),
    own_file("npz-structured", "dtype", write_npz(x=np.zeros(60, [("a", "f4")]))),
    own_file("npz-nan", "NaN.*row 7", write_npz(x=with_value(X, (7, 0), np.nan))),
    own_file("npz-inf", "infinite.*row 7", write_npz(x=with_value(X, (7, 0), np.inf))),
    own_file(
        "npz-nan-label", "y of own.npz.*NaN", write_npz(y=with_value(Y, 3, np.nan))
    ),
    own_file("npz-1e30", "1e.30", write_npz(x=with_value(X, (7, 0), 1e30))),
    own_file(
        "npz-1e30-test-target",
        "y of task '4'.*1e.30",
        write_npz(y=with_value(X[:, 0], -1, 1e30)),
        "--config.dataset.test=4",
    ),
    own_file("npz-other-length", r"y of own.npz has shape \[59\]", write_npz(y=Y[:-1])),
    own_file("npz-one-class", "single class", write_npz(y=np.zeros_like(Y))),
    own_file(
        "npz-one-task", "leaves 0 for training", write_npz(task=np.zeros_like(TASK))
    ),
    own_file("npz-lone-sample", "1 sample", write_npz(y=np.arange(60), task=None)),
    own_file(
        "npz-one-sample",
        "1 sample|single class",
        write_npz(x=X[:1], y=Y[:1], task=TASK[:1]),
    ),
    own_file(
        "npz-targets-without-tasks", "real numbers", write_npz(y=X[:, 0], task=None)
    ),
    own_file("folder-missing", "does not exist", lambda tmp: 0, name="nowhere"),
    own_file("suffix", "ends in '.txt'", file_in("own.txt", "x"), name="own.txt"),
    own_table("csv-empty", "own.csv", ""),
    own_table("csv-blank", "own.csv", "\n\n\n"),
    own_table("csv-header-only", "no rows", HEADER + "\n"),
    own_table(
        "csv-one-row", "1 sample|single class", "\n".join(table_text().splitlines()[:2])
    ),
    own_table(
        "csv-label-twice",
        "two columns named 'label'",
        table_text(header="task,label,label,f1,f2,f3"),
    ),
    own_table(
        "csv-label-twice-with-space",
        "two columns named 'label'",
        table_text(header="task,label,label ,f1,f2,f3"),
    ),
    own_table(
        "csv-feature-twice",
        "two columns named 'f1'",
        table_text(header="task,label,f1,f1,f2,f3"),
    ),
    own_table("csv-short-header", "fields", table_text(header="task,label,f0,f1")),
    own_table("csv-ragged", "own.csv", table_text() + "t1,no,1,2,3,4,5,6,7\n"),
    own_table("csv-short-row", "f1.*empty.*line 62", table_text() + "t1,no,1\n"),
    own_table(
        "csv-text-in-feature",
        "f0.*'high' in line 62",
        table_text() + "t1,no,high,1,1,1\n",
        more=("--config.dataset.features=f0,f1",),
    ),
    own_table("csv-nan", "f0.*line 62", table_text() + "t1,no,nan,1,1,1\n"),
    own_table("csv-inf", "f0.*line 62", table_text() + "t1,no,inf,1,1,1\n"),
    own_table(
        "csv-1e30",
        r"1e.30|standard deviation|overflow|at most",
        table_text() + "t1,no,1e300,1,1,1\n",
    ),
    own_table("csv-empty-label", "label.*line 62", table_text() + "t1,,1,1,1,1\n"),
    own_table("csv-nul", "NUL", table_text().replace("t3", "t\0", 1)),
    own_table(
        "csv-not-utf8", "utf-8|UTF-8", table_text().encode() + b"t1,\xff,1,1,1,1\n"
    ),
    own_table("csv-utf16", "utf-8|UTF-8|NUL", table_text().encode("utf-16")),
    own_table("csv-open-quote", "own.csv", table_text() + 't1,"no,1,1,1,1\n'),
    own_table(
        "csv-no-features",
        "no numeric column",
        "task,label\n" + "a,b\na,c\nd,b\nd,c\n" * 4,
    ),
    own_table("csv-no-task-column", "no column 'ward'", table_text(), task="ward"),
    own_table("csv-label-is-task", "label|class", table_text(), label="task"),
    own_table(
        "csv-many-columns",
        "columns; expected at most",
        ",".join(f"f{i}" for i in range(100_001)) + "\n1\n",
    ),
    own_table(
        "parquet-damaged",
        "own.parquet can't be read",
        b"PAR1 no table PAR1",
        name="own.parquet",
    ),
]


@pytest.mark.parametrize("row", params(OWN_FILES, quick=2))
def test_own_files(row, refuse):
    refuse(run, row)
