"""The files of `experiments.predict`: tables, folders of pictures, and arrays."""

from __future__ import annotations

import pathlib
import zipfile
from typing import Any

import numpy as np

from mlti_jax.data import Inputs
from mlti_jax.data._own.files import Table
from mlti_jax.data._own.inputs import ARRAYS, IMAGES
from mlti_jax.errors import InputError

# Known columns of the queries, by name: what tells the rows of the output apart.
Columns = dict[str, list]


def read_support(inputs: Inputs, path: str, label: str) -> tuple[Any, np.ndarray]:
    """The samples of a support set as `inputs` takes them, and their labels.

    Args:
      inputs: how samples were made in training.
      path: of a table, a folder with one folder of pictures a class, or an .npz file.
      label: the column of labels of a table, or several of targets with commas.
    """
    place = _existing("support", path)
    if inputs.kind == IMAGES:
        files, labels = [], []
        for folder in _entries("support", place):
            if not folder.is_dir():
                raise InputError(
                    f"{folder} is no folder; --support expects one folder a class, "
                    "with its pictures"
                )
            files += _entries("support", folder)
            labels += [folder.name] * (len(files) - len(labels))
        return files, np.array(labels)
    if place.suffix == ".npz":
        arrays = _arrays("support", place, ("x", "y"))
        return arrays["x"], arrays["y"]
    table = Table(place)
    names = [name.strip() for name in label.split(",")]
    columns = [table.values(name) for name in names]
    y = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    return _samples(inputs, table, names), y


def read_query(inputs: Inputs, path: str, label: str) -> tuple[Any, Columns]:
    """The queries as `inputs` takes them, and columns to know them by."""
    place = _existing("query", path)
    if inputs.kind == IMAGES:
        files = _entries("query", place)
        for file in files:
            if file.is_dir():
                raise InputError(f"{file} is a folder; --query expects pictures alone")
        return files, {"file": [file.name for file in files]}
    if place.suffix == ".npz":
        x = _arrays("query", place, ("x",))["x"]
        return x, {"row": list(range(len(x)))}
    table = Table(place)
    names = [name.strip() for name in label.split(",")]
    features = inputs.columns
    if inputs.kind == ARRAYS:
        features, _ = table.numeric_columns(names)
    known = {
        str(name): table.frame[name].tolist()
        for name in table.frame.columns
        if str(name) not in features
    }
    return _samples(inputs, table, names), known or {"row": list(range(len(table)))}


def _samples(inputs: Inputs, table: Table, without: list[str]) -> Any:
    """What `inputs` takes of a table."""
    if inputs.kind != ARRAYS:
        return table.frame
    columns, _ = table.numeric_columns(without)
    if not columns:
        raise InputError(f"{table.name} has no column of numbers beside the label")
    return table.matrix(columns)


def _existing(flag: str, path: str) -> pathlib.Path:
    place = pathlib.Path(path).expanduser()
    if not place.exists():
        raise InputError(f"--{flag}={path}: there is no such file or folder")
    return place


def _entries(flag: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """What is in a folder, sorted; hidden files are left alone."""
    if not folder.is_dir():
        raise InputError(
            f"--{flag}: {folder} is no folder; the learner was trained on pictures"
        )
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not found:
        raise InputError(f"--{flag}: the folder {folder} is empty; expected pictures")
    return found


def _arrays(flag: str, path: pathlib.Path, names: tuple[str, ...]) -> dict:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files if name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"--{flag}: {path} can't be read ({error})") from error
    for name in names:
        if name not in found:
            raise InputError(
                f"--{flag}: {path} has no array {name!r}; expected {', '.join(names)}, "
                "as numpy.savez writes them"
            )
    return found
