"""The dataset `own_data`: users' data from the path of a file or folder.

* a folder of images, see `from_folder`;
* a table, .csv, .tsv, .tab or .parquet, see `from_table`;
* an .npz file of NumPy arrays (`numpy.savez`): `x [M, ...]`, the samples; `y [M]` or
  `[M, Dy]`, their labels or targets; and `task [M]`, names or numbers of their tasks.
  Without `task` every label is a class to draw tasks from. Object arrays are not
  supported.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from mlti_jax.data._own.arrays import from_samples
from mlti_jax.data._own.files import TABLE_SUFFIXES, read_npz
from mlti_jax.data._own.folders import from_folder
from mlti_jax.data._own.labels import as_names, clean, label_classes, label_tasks
from mlti_jax.data._own.splitting import HeldOut, Partition
from mlti_jax.data._own.tables import from_table
from mlti_jax.data._readers.files import check_file, check_name
from mlti_jax.data._splits import Splits
from mlti_jax.data._user_arrays import check_arrays
from mlti_jax.errors import InputError

NEEDS_PREPARATION = False  # Files are read directly, without records.
# Options that only some kinds of files have.
FOLDER_OPTIONS = ("size",)
ARRAY_OPTIONS = ("standardise", "standardise_targets")
TABLE_OPTIONS = ("label", "task", "features", "smiles", "fingerprint", *ARRAY_OPTIONS)


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
    standardise_targets: bool | None = None,
    size: int | None = None,
    validation: HeldOut = None,
    test: HeldOut = 0.2,
    seed: int = 0,
    setting: str | None = None,
) -> Splits:
    """Load a folder, a table or an .npz file, depending on the path.

    Args:
      path: path of the folder or file.
      data_dir: unused; all datasets have this argument.
      label, task, features, smiles, fingerprint: options of tables, see `from_table`.
      standardise: option of tables (default True) and arrays (default False).
      standardise_targets: option of tables and arrays (default True).
      size: option of image folders, see `from_folder`.
      validation, test, seed, setting: see `from_arrays`; names may be a
        comma-separated string.

    Raises:
      InputError: if the path does not exist, has an unknown suffix, or an option does
        not apply to it.
    """
    del data_dir
    expected = f"a folder of images, a table ({', '.join(TABLE_SUFFIXES)}), or an .npz"
    if not str(path):
        raise InputError(
            f"own_data needs the path of your data (dataset.path): {expected} file"
        )
    path = pathlib.Path(path).expanduser()
    check_name(path)
    options: dict[str, Any] = {
        "label": label,
        "task": task,
        "features": features,
        "smiles": smiles,
        "fingerprint": fingerprint,
        "standardise": standardise,
        "standardise_targets": standardise_targets,
        "size": size,
    }
    given = {name: value for name, value in options.items() if value is not None}
    split: dict[str, Any] = {
        "validation": validation,
        "test": test,
        "seed": seed,
        "setting": setting,
    }
    if path.is_dir():
        _check_given(given, FOLDER_OPTIONS, path)
        return from_folder(path, **given, **split)
    if not path.exists():
        raise InputError(f"{path} does not exist; expected {expected} file")
    check_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        _check_given(given, ARRAY_OPTIONS, path)
        return _from_npz(path, **given, **split)
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"{path} ends in {suffix!r}; expected {expected} file")
    _check_given(given, TABLE_OPTIONS, path)
    if label is None:
        raise InputError(
            f"label is missing; set it to the column of {path} that holds the labels"
        )
    return from_table(path, **{"task": None, **given}, **split)


def _check_given(
    given: dict[str, Any], known: tuple[str, ...], path: pathlib.Path
) -> None:
    """Raise `InputError` if an option does not apply to this kind of file."""
    for name in given:
        if name not in known:
            kind = "a folder" if path.is_dir() else f"a {path.suffix} file"
            raise InputError(
                f"{name} is set, but {path} is {kind} and has no such option; remove"
                f" it. Options that apply: {', '.join(known)}"
            )


def _from_npz(
    path: pathlib.Path,
    *,
    validation: HeldOut,
    test: HeldOut,
    seed: int,
    setting: str | None,
    standardise: bool = False,
    standardise_targets: bool = True,
) -> Splits:
    arrays = read_npz(path, ("x", "y"), optional=("task",))
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
                f" {len(x)} samples; expected one entry per sample"
            )
    if "task" in labels:
        found = label_tasks(as_names(labels["task"]), labels["y"], setting)
    else:
        found = label_classes(labels["y"], setting)
    return from_samples(
        x,
        Partition(found, validation, test, seed),
        standardise=standardise,
        standardise_targets=standardise_targets,
        note=path.name,
        source=path.name,
    )
