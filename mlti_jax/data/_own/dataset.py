"""Users' own data by the path of a file or folder, for the command line.

* a folder of pictures, see `from_folder`;
* a table, .csv, .tsv, .tab or .parquet, see `from_table`;
* an .npz file of NumPy arrays (`numpy.savez`): `x [M, ...]`, the samples; `y [M]` or
  `[M, Dy]`, their labels or targets; and `task [M]`, the names or numbers of their
  tasks, without which every label is a class to draw tasks from. No array of objects.
"""

from __future__ import annotations

import os
import pathlib
import zipfile
from typing import Any

import numpy as np

from mlti_jax.data._own import from_folder, from_table
from mlti_jax.data._own.arrays import from_samples
from mlti_jax.data._own.assembly import Division
from mlti_jax.data._own.frames import ENDINGS
from mlti_jax.data._own.inputs import check_arrays
from mlti_jax.data._own.labels import as_names, clean, label_classes, label_tasks
from mlti_jax.data._own.splitting import KeptBack
from mlti_jax.data._pools import Splits
from mlti_jax.errors import InputError

READ_AS_IT_IS = True  # There are no records to prepare.
# The options that not all kinds of files have.
FOLDER_OPTIONS = ("size",)
TABLE_OPTIONS = ("label", "task", "features", "smiles", "fingerprint", "standardise")
ARRAY_OPTIONS = ("standardise",)


def load(
    *,
    path: str | os.PathLike[str] = "",
    data_dir: str | os.PathLike[str] | None = None,
    label: str | None = None,
    task: str | None = None,
    features: str | None = None,
    smiles: str | None = None,
    fingerprint: str | None = None,
    standardise: bool | None = None,
    size: int | None = None,
    validation: KeptBack = None,
    test: KeptBack = 0.2,
    seed: int = 0,
    setting: str | None = None,
) -> Splits:
    """Loads a folder, a table or an .npz file, as its path tells.

    Args:
      path: of the folder or file.
      data_dir: unused; there so that all datasets are loaded alike.
      label, task, features, smiles, fingerprint: of tables, see `from_table`.
      standardise: of tables (on unless False) and arrays (off unless True).
      size: of pictures, see `from_folder`.
      validation, test, seed, setting: see `from_arrays`; names as one text with commas
        between them, or a share.
    """
    del data_dir
    if not str(path):
        raise InputError(
            "own_data needs the path of your data (dataset.path): a folder of"
            f" pictures, a table ({', '.join(ENDINGS)}), or an .npz file"
        )
    path = pathlib.Path(path).expanduser()
    given = {
        "label": label,
        "task": task,
        "features": features,
        "smiles": smiles,
        "fingerprint": fingerprint,
        "standardise": standardise,
        "size": size,
    }
    given = {name: value for name, value in given.items() if value is not None}
    split = {"validation": validation, "test": test, "seed": seed, "setting": setting}
    if path.is_dir():
        return from_folder(path, **_only(FOLDER_OPTIONS, given, path), **split)
    if not path.is_file():
        raise InputError(f"there is no file or folder {path}")
    ending = path.suffix.lower()
    if ending == ".npz":
        return _from_npz(path, **_only(ARRAY_OPTIONS, given, path), **split)
    if ending not in ENDINGS:
        raise InputError(
            f"{path} ends in {ending!r}; expected a folder of pictures, a table"
            f" ({', '.join(ENDINGS)}), or an .npz file"
        )
    options = _only(TABLE_OPTIONS, given, path)
    if label is None:
        raise InputError(f"{path} is a table; say which column is the label")
    return from_table(path, **{"task": None, **options}, **split)


def _only(
    known: tuple[str, ...], given: dict[str, Any], path: pathlib.Path
) -> dict[str, Any]:
    for name in given:
        if name not in known:
            kind = "a folder" if path.is_dir() else f"a file {path.suffix}"
            raise InputError(
                f"{name} is set, but {path} is {kind}, which has no such option; it"
                f" has: {', '.join(known)}"
            )
    return given


def _from_npz(
    path: pathlib.Path,
    *,
    validation: KeptBack,
    test: KeptBack,
    seed: int,
    setting: str | None,
    standardise: bool = False,
) -> Splits:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} can't be read ({error}); expected the arrays x, y and task, of"
            " numbers or text (no objects), as numpy.savez writes them"
        ) from error
    for name in ("x", "y"):
        if name not in arrays:
            raise InputError(
                f"{path} has no array {name!r}, but {sorted(arrays)}; expected x, y"
                " and, unless every label is a class, task"
            )
    x = check_arrays(f"x of {path.name}", arrays["x"])
    labels = {
        name: clean(f"{name} of {path.name}", arrays[name])
        for name in ("y", "task")
        if name in arrays
    }
    for name, values in labels.items():
        if len(values) != len(x) or (name == "task" and values.ndim > 1):
            raise InputError(
                f"{name} of {path.name} has shape {list(values.shape)}, but x has"
                f" {len(x)} samples; expected one entry for each"
            )
    if "task" in labels:
        found = label_tasks(as_names(labels["task"]), labels["y"], setting)
    else:
        found = label_classes(labels["y"], setting)
    return from_samples(
        x,
        Division(found, validation, test, seed),
        standardise=standardise,
        note=path.name,
        source=path.name,
    )
