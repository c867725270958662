"""Metrics as JSON lines, for programs, and as TensorBoard events, for people."""

from __future__ import annotations

import json
import os
import pathlib

from tensorboardX import SummaryWriter


class MetricsWriter:
    """Writes `metrics.jsonl` and TensorBoard events into a work directory.

    Args:
      workdir: the directory.
      step: the step that the run starts from. What an earlier, interrupted run wrote
        beyond it is taken away, so that no step stands there twice.
    """

    def __init__(self, workdir: str | pathlib.Path, step: int = 0):
        self._path = pathlib.Path(workdir) / "metrics.jsonl"
        _keep_until(self._path, step)
        self._file = open(self._path, "a", encoding="utf-8")
        events = str(pathlib.Path(workdir) / "tensorboard")
        self._events = SummaryWriter(events, purge_step=step + 1 if step else None)

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Writes the `values` of a `split` (train, validation or test) at a step."""
        line = {"step": step, "split": split, **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._events.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        self._events.close()


def read(path: str | pathlib.Path) -> list[dict]:
    """The lines of a metrics file; a last line that was cut short is left out."""
    lines = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return lines


def _keep_until(path: pathlib.Path, step: int) -> None:
    if not path.exists():
        return
    kept = [line for line in read(path) if line["step"] <= step]
    replacement = path.with_suffix(".tmp")
    replacement.write_text("".join(json.dumps(line) + "\n" for line in kept))
    os.replace(replacement, path)
