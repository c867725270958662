"""Users' own data that must be refused, in code."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from mlti_jax import data
from tests.support.hostile import (
    CLASSES,
    FEATURES,
    TASK,
    Refused,
    X,
    Y,
    check_raises,
    file_in,
    params,
    with_value,
    write_images,
)

# ------------------------------------------------------------ users' own data: calls


def folder(id, message, change, **options):
    """A row that changes a folder of images before it is read."""

    def read(tmp):
        write_images(tmp / "images")
        change(tmp / "images")
        data.from_folder(tmp / "images", **options)

    return Refused(id, message, read)


def deep_image(root):
    (root / "class0" / "a" / "b").mkdir(parents=True)
    shutil.move(root / "class0" / "0.png", root / "class0" / "a" / "b" / "0.png")


def image16(root):
    pixels = np.zeros((8, 8), np.uint16)
    Image.fromarray(pixels).save(root / "class0" / "0.png")


def not_utf8(root):
    (root / "class0").rename(
        os.path.join(os.fsencode(root), b"cl\xff").decode("utf-8", "surrogateescape")
    )


def molecules(*smiles, **columns):
    number = len(smiles)
    table = {
        "s": list(smiles),
        "y": [0, 1] * (number // 2),
        "t": [0] * number,
        **columns,
    }
    return lambda tmp: data.from_table(
        table, label="y", task="t", smiles="s", test=None
    )


def arrays(**changes):
    """A function that passes five tasks to `from_arrays`, with changes of one."""
    x, y = X.reshape(5, 12, FEATURES), Y.reshape(5, 12)
    tasks = {f"t{i}": (x[i], y[i]) for i in range(5)}
    return lambda tmp: data.from_arrays({**tasks, **changes})


COLUMNS = {"t": TASK, "y": Y, "a": X[:, 0], "b": X[:, 1]}
OWN_CALLS = [
    folder(
        "folder-text-file",
        "0.txt is not an image",
        lambda root: (root / "class0" / "0.txt").write_text("x"),
    ),
    Refused("arrays-empty", "tasks is empty", lambda tmp: data.from_arrays({})),
    folder(
        "folder-fifo",
        "named pipe",
        lambda root: os.mkfifo(root / "class0" / "pipe.png"),
    ),
    folder(
        "folder-empty-class", "class9 is empty", lambda root: (root / "class9").mkdir()
    ),
    folder("folder-too-deep", "class0/a/b|one level deeper|inside a class", deep_image),
    folder("folder-not-utf8", "not valid UTF-8", not_utf8),
    folder(
        "folder-stray-image",
        "is directly in",
        lambda root: shutil.copy(root / "class0" / "0.png", root / "x.png"),
    ),
    folder(
        "folder-eps",
        "x.eps is not an image",
        lambda root: (root / "class0" / "x.eps").write_text(
            "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"
        ),
    ),
    folder(
        "folder-svg",
        "not an image",
        lambda root: (root / "class0" / "x.svg").write_text("<svg/>"),
    ),
    folder(
        "folder-empty-image",
        "class0/x.png",
        lambda root: (root / "class0" / "x.png").write_bytes(b""),
    ),
    folder(
        "folder-cut-image",
        "class0/0.png",
        lambda root: (root / "class0" / "0.png").write_bytes(
            (root / "class0" / "0.png").read_bytes()[:60]
        ),
    ),
    folder("folder-16-bit", "more than 8 bits", image16),
    folder(
        "folder-dangling-link",
        "link to a file that does not exist",
        lambda root: (root / "class0" / "x.png").symlink_to("nowhere"),
    ),
    folder(
        "folder-loop",
        "inside a class|symbolic links|class/image",
        lambda root: (root / "class0" / "loop").symlink_to(root),
    ),
    folder(
        "folder-other-size",
        "images differ in size",
        lambda root: Image.new("RGB", (9, 8)).save(root / "class0" / "x.png"),
    ),
    folder("folder-size-zero", "size is 0", lambda root: 0, size=0),
    folder("folder-size-huge", "size is 100000", lambda root: 0, size=100_000),
    folder("folder-size-text", "size is '8'", lambda root: 0, size="8"),
    folder("folder-size-three", "size is", lambda root: 0, size=(8, 8, 3)),
    folder(
        "folder-one-image",
        "1 sample",
        lambda root: [p.unlink() for p in sorted((root / "class0").iterdir())[1:]],
    ),
    folder(
        "folder-one-class",
        "leaves|class",
        lambda root: [shutil.rmtree(p) for p in sorted(root.iterdir())[1:]],
    ),
    folder(
        "folder-unknown-test-class",
        "unknown class 'class7'",
        lambda root: 0,
        test=["class7", "class1"],
    ),
    Refused("folder-empty", "is empty", lambda tmp: data.from_folder(tmp)),
    Refused(
        "folder-is-a-file",
        "file.*does not exist|not a folder",
        lambda tmp: (file_in("file")(tmp), data.from_folder(tmp / "file")),
    ),
    Refused("arrays-list", "tasks is a list", lambda tmp: data.from_arrays([X, Y])),
    Refused("arrays-none", "x of task 't0'", arrays(t0=(None, None))),
    Refused("arrays-some-pairs", "is a pair", arrays(t0=X)),
    Refused(
        "arrays-masked",
        "x of task 't0' has masked values.*row 2",
        arrays(t0=(np.ma.masked_equal(X[:12], X[2, 1]), Y[:12])),
    ),
    Refused(
        "arrays-masked-labels",
        "y of task 't0' has masked values",
        arrays(t0=(X[:12], np.ma.masked_equal(Y[:12], 1))),
    ),
    Refused(
        "arrays-objects", "expected numbers", arrays(t0=(X[:12].astype(object), Y[:12]))
    ),
    Refused(
        "arrays-ragged", "x of task 't0'", arrays(t0=([[1.0, 2.0], [1.0]], [0, 1]))
    ),
    Refused(
        "arrays-nan",
        "x of task 't0' has NaN",
        arrays(t0=(with_value(X[:12], 0, np.nan), Y[:12])),
    ),
    Refused("arrays-1e30", "1e.30", arrays(t0=(with_value(X[:12], 0, 1e30), Y[:12]))),
    Refused(
        "arrays-other-features", "samples of one shape", arrays(t0=(X[:12, :3], Y[:12]))
    ),
    Refused("arrays-other-length", "one label per sample", arrays(t0=(X[:12], Y[:11]))),
    Refused(
        "arrays-mixed-labels",
        "labels of one kind",
        arrays(t0=(X[:12], Y[:12].astype(str))),
    ),
    Refused(
        "arrays-mixed-types", "labels of one kind", arrays(t0=(X[:12], [1, "a"] * 6))
    ),
    Refused(
        "arrays-one-hot",
        "one-hot",
        arrays(**{f"t{i}": (X[:12], np.eye(2, dtype=int)[Y[:12]]) for i in range(5)}),
    ),
    Refused(
        "arrays-huge-integer",
        "more than 64 bits|integer",
        arrays(t0=(X[:12], [10**30, 1] * 6)),
    ),
    Refused(
        "arrays-same-names",
        "distinct as text",
        lambda tmp: data.from_arrays({1: X, "1": X, 2: X, 3: X}),
    ),
    Refused(
        "arrays-deeply-nested",
        "x of class 'c0'",
        lambda tmp: data.from_arrays({**CLASSES, "c0": nested_list(100_000)}),
    ),
    Refused(
        "arrays-test-fraction",
        "test is 1.5",
        lambda tmp: data.from_arrays(CLASSES, test=1.5),
    ),
    Refused(
        "arrays-test-nan",
        "test is nan",
        lambda tmp: data.from_arrays(CLASSES, test=float("nan")),
    ),
    Refused(
        "arrays-test-true",
        "test is True",
        lambda tmp: data.from_arrays(CLASSES, test=True),
    ),
    Refused(
        "arrays-one-test-class",
        "single class",
        lambda tmp: data.from_arrays(CLASSES, test=["c0"]),
    ),
    Refused(
        "arrays-seed", "seed is -1", lambda tmp: data.from_arrays(CLASSES, seed=-1)
    ),
    Refused(
        "arrays-setting",
        "unknown setting",
        lambda tmp: data.from_arrays(CLASSES, setting="no"),
    ),
    Refused(
        "arrays-standardise-images",
        "standardise",
        lambda tmp: data.from_arrays(
            {f"c{i}": np.zeros((4, 8, 8, 1)) for i in range(5)}, standardise=True
        ),
    ),
    Refused(
        "table-none",
        "table is a NoneType",
        lambda tmp: data.from_table(None, label="y", task="t"),
    ),
    Refused(
        "table-ragged",
        "columns do not form a table",
        lambda tmp: data.from_table({**COLUMNS, "a": [1.0]}, label="y", task="t"),
    ),
    Refused(
        "table-masked",
        "'a'.*masked",
        lambda tmp: data.from_table(
            {**COLUMNS, "a": np.ma.masked_less(X[:, 0], 0)}, label="y", task="t"
        ),
    ),
    Refused(
        "table-label-is-feature",
        "'y' is label or task",
        lambda tmp: data.from_table(COLUMNS, label="y", task="t", features="a,y"),
    ),
    Refused(
        "table-no-features",
        "list is empty",
        lambda tmp: data.from_table(COLUMNS, label="y", task="t", features=" , "),
    ),
    Refused(
        "table-unknown-feature",
        "no column 'z'",
        lambda tmp: data.from_table(COLUMNS, label="y", task="t", features="a,z"),
    ),
    Refused(
        "smiles-100000-characters",
        "RDKit can't read.*row 0",
        molecules("C" * 100_000 + "(", *["CO"] * 3),
    ),
    Refused(
        "smiles-nested",
        "RDKit can't read.*row 0",
        molecules("C(" * 50_000 + "C" + ")" * 50_000 + ")", *["CO"] * 3),
    ),
    Refused("smiles-numbers", "smiles|SMILES|text", molecules(1.0, 2.0, 3.0, 4.0)),
    Refused("smiles-empty", "'s'.*empty", molecules("", "CO", "CN", "CC")),
    Refused(
        "smiles-and-features",
        "choose one",
        lambda tmp: data.from_table(
            {**COLUMNS, "s": ["C"] * 60}, label="y", task="t", smiles="s", features="a"
        ),
    ),
    Refused(
        "smiles-fingerprint",
        "fingerprint.*'ecfp'",
        lambda tmp: data.from_table(
            {**COLUMNS, "s": ["C"] * 60},
            label="y",
            task="t",
            smiles="s",
            fingerprint="ecfp",
        ),
    ),
]


def nested_list(depth):
    value = [1.0]
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("row", params(OWN_CALLS, quick=2))
def test_own_data_calls(row, tmp_path):
    check_raises(row, tmp_path)
