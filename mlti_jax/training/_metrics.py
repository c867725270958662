"""Metrics as JSON lines, for programs, and as TensorBoard events, for people."""

from __future__ import annotations

import json
import os
import pathlib
import time


class MetricsWriter:
    """Writes `metrics.jsonl` and TensorBoard events into a work directory.

    Args:
      workdir: the directory.
      step: the step that the run starts from. What an earlier, interrupted run wrote
        beyond it is taken away, so that nothing stands there twice.

    Events are written at once and not by TensorBoard's usual background thread, which
    dies on a full disk and leaves its queue, and the run, waiting for ever.
    """

    def __init__(self, workdir: str | pathlib.Path, step: int = 0):
        # Slow to import: tensorboardX also imports PyTorch if that is installed.
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event, self._scalar = Event, summary.scalar
        self._path = pathlib.Path(workdir) / "metrics.jsonl"
        _keep_until(self._path, step)
        self._file = open(self._path, "a", encoding="utf-8")
        events = pathlib.Path(workdir) / "tensorboard"
        events.mkdir(exist_ok=True)
        self._events = EventsWriter(str(events / "events"))
        # Tells TensorBoard to drop what it knows of later steps.
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=step + 1, session_log=start))

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Writes the `values` of a `split` (train, validation or test) at a step."""
        line = {"step": step, "split": split, **values}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in values.items():
            scalar = self._scalar(f"{split}/{name}", value)
            event = self._event(step=step, summary=scalar, wall_time=time.time())
            self._events.write_event(event)
        self._events.flush()

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
    kept = [
        line for line in read(path) if line["step"] <= step and line["split"] != "test"
    ]
    replacement = path.with_suffix(".tmp")
    replacement.write_text("".join(json.dumps(line) + "\n" for line in kept))
    os.replace(replacement, path)
