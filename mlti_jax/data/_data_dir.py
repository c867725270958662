"""Where prepared datasets are stored."""

from __future__ import annotations

import os
import pathlib


def default_data_dir() -> pathlib.Path:
    """Return `MLTI_DATA_DIR`, or a cache directory in the user's home."""
    folder = os.environ.get("MLTI_DATA_DIR") or "~/.cache/mlti_jax"
    return pathlib.Path(folder).expanduser()


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """Return `data_dir` with `~` expanded, or the default if it is None or empty."""
    return pathlib.Path(data_dir or default_data_dir()).expanduser()
