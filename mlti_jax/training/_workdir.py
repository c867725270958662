"""A run's work directory: its config, and its results."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping

from mlti_jax.errors import InputError


def write_json(path: pathlib.Path, value: object) -> None:
    """Writes a JSON file whole or not at all; lists of numbers take one line."""
    text = json.dumps(value, indent=2, allow_nan=False)
    # A line break stands in no string of JSON, so that what is found is a list.
    text = re.sub(r"\[\n[-+.eE\d,\s]*\]", _on_one_line, text)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _on_one_line(numbers: re.Match) -> str:
    return f"[{', '.join(numbers.group()[1:-1].replace(',', ' ').split())}]"


def read_json(path: pathlib.Path) -> object:
    """Reads a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not valid JSON ({error}); use another work directory"
        ) from None


def open_workdir(workdir: pathlib.Path, config: Mapping[str, object]) -> None:
    """Makes the directory and writes `config.json`, or checks that it is the same.

    Args:
      workdir: the directory.
      config: a nested dictionary of plain values.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--workdir={workdir} is a file, not a directory") from None
    path = workdir / "config.json"
    config = json.loads(json.dumps(config))
    if not path.exists():
        if (workdir / "checkpoints").exists():
            raise InputError(
                f"{workdir} holds checkpoints but no config.json to say of what; use "
                "another --workdir"
            )
        write_json(path, config)
        return
    differences = _differences(read_json(path), config)
    if differences:
        raise InputError(
            f"{workdir} holds a run of a different config; use another --workdir, or "
            "the same config to go on. The differences (there -> here):\n  "
            + "\n  ".join(differences)
        )


def _differences(there: object, here: object, prefix: str = "") -> list[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        lines = []
        for name in sorted({*there, *here}):
            path = f"{prefix}.{name}" if prefix else name
            if name not in there or name not in here:
                missing = "absent"
                lines.append(
                    f"{path}: {there.get(name, missing)} -> {here.get(name, missing)}"
                )
            else:
                lines += _differences(there[name], here[name], path)
        return lines
    return [] if there == here else [f"{prefix}: {there!r} -> {here!r}"]
