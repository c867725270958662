"""Unusual inputs that are valid and must work."""

from __future__ import annotations

import csv
import os
import shutil

import numpy as np
import pytest
from PIL import Image

import mlti_jax
from experiments import predict, run
from mlti_jax import data
from tests.support.hostile import (
    CLASSES,
    FEATURES,
    QUERY,
    Accepted,
    file_in,
    filled,
    fit_small,
    params,
    prediction,
    run_args,
    table_text,
    task_arrays,
    time_limit,
    write_images,
)

# -------------------------------------------------------------------- accepted rightly


def read_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


RUNS = {
    "spaces-and-umlauts-in-workdir": run_args("--workdir={tmp}/neue Läufe/π 1"),
    "task-named-zero": run_args("--config.dataset.test=0"),
    "config-with-empty-argument": run_args(argument=""),
    "largest-seed": run_args(f"--config.seed={2**32 - 1}"),
    "one-hidden-layer": run_args("--config.backbone.mlp.hidden=(4,)"),
    "tiny-learning-rate": run_args("--config.train.learning_rate=1e-30"),
    "no-inner-steps": run_args("--config.learner.maml.steps=0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_unusual_runs(name, call, shared, tmp_path):
    with time_limit(60):
        code, printed = call(run)(*filled(RUNS[name], tmp_path, shared))
    assert code == 0, printed.err
    assert "test accuracy" in printed.out
    assert len(list(tmp_path.rglob("results.json"))) == 1


@pytest.mark.slow
def test_a_finished_run_on_a_read_only_disk_is_shown(
    call, finished, shared, tmp_path, monkeypatch
):
    shutil.copytree(finished, tmp_path / "work")
    (tmp_path / "work" / ".lock").unlink()
    real_open = os.open

    def read_only(path, flags, *args, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(path))
        return real_open(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    code, printed = call(run)(*filled(run_args(), tmp_path, shared))
    assert code == 0, printed.err
    assert "test accuracy" in printed.out
    assert "holds a finished run" in printed.err


def own(path, **options):
    return lambda tmp: data.load("own_data", path=tmp / path, **options)


def table_file(name, text, **options):
    def read(tmp):
        file_in(name, text)(tmp)
        splits = own(name, label="label", task="task", **options)(tmp)
        assert splits.setting == "label_sharing"
        assert splits.train.x.shape[1:] == (FEATURES,)

    return Accepted(f"table-{name}", read)


def odd_folder(tmp):
    """Hidden files, links, capitals, and names in other scripts."""
    root = tmp / "bilder"
    write_images(root, suffix="PNG")
    (root / "class0").rename(root / "класс 0, größer")
    (root / "class1" / ".hidden").write_text("x")
    (root / "class1" / "Thumbs.db").write_text("x")
    (root / ".git").mkdir()
    (root / "class1" / "link.png").symlink_to(root / "class2" / "0.PNG")
    Image.new("L", (8, 8)).save(root / "class2" / "gray.jpg")
    splits = data.from_folder(root)
    assert splits.train.x.shape[1:] == (8, 8, 3)


def compressed_arrays(tmp):
    np.savez_compressed(tmp / "OWN.NPZ.npz", **task_arrays(), other=np.arange(3))
    (tmp / "OWN.NPZ.npz").rename(tmp / "OWN.NPZ")
    (tmp / "link.npz").symlink_to(tmp / "OWN.NPZ")
    assert own("link.npz")(tmp).train.x.shape == (48, FEATURES)


def one_layer(tmp):
    """The layers to interpolate are chosen to fit a network of one layer."""
    overrides = {"backbone.mlp.hidden": (16,)}
    found = mlti_jax.fit(CLASSES, overrides={**overrides, "eval.num_tasks": 2}, steps=2)
    assert found.config.backbone.mlp.hidden == (16,)


def long_molecule(tmp):
    table = {"s": ["C" * 3_000, "CO", "CN", "CCl"] * 4, "y": [0, 1] * 8}
    table["t"] = np.repeat([0, 1], 8)
    splits = data.from_table(table, label="y", task="t", smiles="s", test=0.5)
    assert splits.train.x.shape == (8, 1024)


ACCEPTED = [
    table_file("bom.csv", "\ufeff" + table_text()),
    table_file("CAPITALS.CSV", table_text()),
    table_file("windows.csv", table_text().replace("\n", "\r\n")),
    table_file("no-last-newline.csv", table_text().rstrip()),
    table_file("blank-lines.csv", table_text().replace("\n", "\n\n")),
    table_file("tabs.tsv", table_text().replace(",", "\t")),
    table_file("quoted.csv", table_text().replace("t3,", '"t,3\n",')),
    table_file("text-column.csv", table_text().replace("\n", ",words\n")),
    Accepted("folder-odd-names", odd_folder),
    Accepted("npz-compressed-link", compressed_arrays),
    Accepted("fit-one-layer", one_layer),
    Accepted("smiles-3000-characters", long_molecule),
    Accepted("fit-one-step", lambda tmp: fit_small(CLASSES, steps=1)),
    Accepted(
        "fit-all-queries",
        lambda tmp: fit_small(CLASSES, overrides={"eval.queries": None}),
    ),
    Accepted(
        "arrays-lists",
        lambda tmp: data.from_arrays({name: x.tolist() for name, x in CLASSES.items()}),
    ),
    Accepted(
        "arrays-numbered-tasks",
        lambda tmp: data.from_arrays(dict(enumerate(CLASSES.values()))),
    ),
    Accepted(
        "arrays-unmasked",
        lambda tmp: data.from_arrays({k: np.ma.array(x) for k, x in CLASSES.items()}),
    ),
    Accepted(
        "arrays-big-endian",
        lambda tmp: data.from_arrays({k: x.astype(">f8") for k, x in CLASSES.items()}),
    ),
]


@pytest.mark.parametrize("row", params(ACCEPTED, quick=8))
def test_accepted_rightly(row, tmp_path):
    with time_limit(60):
        row.call(tmp_path)


@pytest.mark.slow
def test_unusual_predictions(call, model, shared, tmp_path):
    """Columns in another order, one query, and an output that is a link."""
    header, first, *_ = QUERY.splitlines()
    order = [5, 4, 3, 2, 1, 0]
    text = "\n".join(
        ",".join(line.split(",")[i] for i in order) for line in (header, first)
    )
    (tmp_path / "query.csv").write_text(text)
    (tmp_path / "real.csv").write_text("of an earlier call")
    (tmp_path / "out.csv").symlink_to(tmp_path / "real.csv")
    row = prediction("", "", query="{tmp}/query.csv", model=str(model))
    code, printed = call(predict)(*filled(row.args, tmp_path, shared))
    assert code == 0, printed.err
    assert (tmp_path / "out.csv").is_symlink()
    (found,) = read_rows(tmp_path / "real.csv")
    assert found["prediction"] in ("no", "yes")
