"""Where prepared datasets are stored."""

from __future__ import annotations

import os
import pathlib

from mlti_jax.data._readers.files import check_name, reading
from mlti_jax.errors import InputError


def default_data_dir() -> pathlib.Path:
    """Return `MLTI_DATA_DIR`, or a cache directory in the user's home."""
    folder = os.environ.get("MLTI_DATA_DIR") or "~/.cache/mlti_jax"
    return pathlib.Path(folder).expanduser()


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """Return `data_dir` with `~` expanded, or the default if it is None or empty.

    Raises:
      InputError: if it is a file, or inside a file. It need not exist.
    """
    folder = pathlib.Path(data_dir or default_data_dir()).expanduser()
    check_name(folder)
    with reading(folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        inside = "" if existing == folder else f" is in {existing}, which"
        raise InputError(
            f"the data directory {folder}{inside} is a file; expected a directory."
            " Choose another one with --data_dir (or MLTI_DATA_DIR)"
        )
    return folder
