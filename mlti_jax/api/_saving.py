"""Saving learners: a manifest in JSON and plain arrays, safe to share.

Nothing in the files is executed when they are read: no pickle, no code. `manifest.json`
names the file with the arrays and holds its checksum. It is replaced last and whole, so
that a directory always holds one complete learner.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mlti_jax._version import __version__
from mlti_jax.errors import InputError
from mlti_jax.training._workdir import write_json
from mlti_jax.types import PyTree

if TYPE_CHECKING:
    from mlti_jax.api._fitted import FittedLearner

FORMAT = "mlti_jax learner"
VERSION = 1
MANIFEST = "manifest.json"


def save(fitted: FittedLearner, path: str | os.PathLike[str]) -> None:
    """Writes a learner into a directory, whole or not at all.

    Args:
      fitted: the learner.
      path: a new or empty directory, or one that holds a saved learner, which is
        replaced.
    """
    folder = pathlib.Path(path)
    _check_target(folder)
    variables = by_name(fitted.variables)
    arrays = {name: np.asarray(leaf) for name, leaf in variables.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    file = f"arrays-{digest[:16]}.npz"
    calibration = fitted.calibration
    manifest = {
        "format": FORMAT,
        "format_version": VERSION,
        "package_version": __version__,
        "arrays": {"file": file, "sha256": digest},
        "facts": fitted.facts._asdict(),
        "classes": list(fitted.classes),
        "inputs": json.loads(fitted.inputs.to_json()),
        "calibration": None if calibration is None else calibration._asdict(),
        "result": fitted.result,
        "config": fitted.config.to_dict(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / file, content)
    write_json(folder / MANIFEST, manifest)
    for other in folder.glob("arrays-*.npz"):
        if other.name != file:
            other.unlink()


def _check_target(folder: pathlib.Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a directory to save the learner in")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder} holds other files; give a new directory to save the learner in"
        )


def _write(path: pathlib.Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def by_name(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree, each by its path, as in `params.model.0.kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
    }
