"""A run's work directory: JSON files, the check of its config, tested variables."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training._checkpoints import Checkpoints
from mlti_jax.training._config import drop_removed, flat_fields
from mlti_jax.training._experiment import Experiment


def write_json(path: pathlib.Path, value: object) -> None:
    """Write a JSON file atomically, with each list of numbers on one line."""
    text = json.dumps(value, indent=2, allow_nan=False)
    # JSON strings contain no line breaks, so a match is always a list.
    text = re.sub(r"\[\n[-+.eE\d,\s]*\]", _on_one_line, text)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _on_one_line(numbers: re.Match[str]) -> str:
    return f"[{', '.join(numbers.group()[1:-1].replace(',', ' ').split())}]"


def read_json(path: pathlib.Path) -> Any:
    """Read a JSON file; raise `InputError` if it is not valid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not valid JSON ({error}); use another work directory"
        ) from None


def open_workdir(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Create a work directory with its `config.json`, or check that it is the same.

    Raises `InputError` if the directory holds a run of another config.

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
                f"{workdir} has checkpoints but no config.json; use another --workdir"
            )
        write_json(path, config)
        return
    saved = drop_removed(flat_fields(read_json(path)))
    given = drop_removed(flat_fields(config))
    differences = [
        f"{name}: {saved.get(name, 'absent')!r} -> {given.get(name, 'absent')!r}"
        for name in sorted({*saved, *given})
        if name not in saved or name not in given or saved[name] != given[name]
    ]
    if differences:
        raise InputError(
            f"{workdir} holds a run of a different config; use another --workdir, or "
            "the same config to resume it. The differences (saved -> given):\n  "
            + "\n  ".join(differences)
        )


def tested_variables(
    experiment: Experiment, workdir: str | pathlib.Path
) -> tuple[Variables, int]:
    """Restore the variables that a finished run has tested.

    Args:
      experiment: the experiment of the run.
      workdir: its work directory.

    Returns:
      The variables, and the step at which they were saved.
    """
    workdir = pathlib.Path(workdir)
    result = read_json(workdir / "results.json")
    kind, step = result["checkpoint"], result["step"]
    folder = workdir / "checkpoints" / kind
    template = experiment.init_state()
    saved = None
    if folder.is_dir():
        checkpoints = Checkpoints(folder, keep=None)
        try:
            saved = checkpoints.restore(
                template.variables if kind == "best" else template, step
            )
        finally:
            checkpoints.close()
    if saved is None:
        raise InputError(
            f"cannot read the checkpoint of step {step} in {folder}; run the "
            "experiment again in another --workdir"
        )
    state = saved[1]
    return (state if kind == "best" else state.variables), step
