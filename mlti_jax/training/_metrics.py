"""Metrics of a run: as JSON lines, as TensorBoard events, and as text."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any


class MetricsWriter:
    """Writes `metrics.jsonl` and TensorBoard events into a work directory.

    Events are written immediately, without TensorBoard's usual background thread: that
    thread dies on a full disk, and the run would then wait forever for its queue.

    Args:
      workdir: the directory.
      step: the step from which the run starts. Later lines, which an interrupted run
        has written, are removed.
    """

    def __init__(self, workdir: str | pathlib.Path, step: int = 0) -> None:
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
        # TensorBoard then drops the events of later steps.
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=step + 1, session_log=start))

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Write the `values` of a `split` (train, validation or test) at a step."""
        line = {"step": step, "split": split, **values}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in values.items():
            scalar = self._scalar(f"{split}/{name}", value)
            event = self._event(step=step, summary=scalar, wall_time=time.time())
            self._events.write_event(event)
        self._events.flush()

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._events.close()


def read(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file, up to the first incomplete one."""
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


def format_interval(metric: str, mean: float, ci95: float, sign: str = "") -> str:
    """Return `mean +- ci95`, accuracy in percent; `sign="+"` for differences."""
    if metric == "accuracy":
        return f"{100 * mean:{sign}.2f} +- {100 * ci95:.2f} %"
    return f"{mean:{sign}.4f} +- {ci95:.4f}"


def summary(result: Mapping[str, Any]) -> str:
    """Return a result, as in `results.json`, as one line of text."""
    value = format_interval(result["metric"], result["mean"], result["ci95"])
    source = f" ({result['source']})" if result["source"] else ""
    return (
        f"{result['dataset']}{source} {result['ways']}-way {result['shots']}-shot, "
        f"{result['learner']} {result['strategy']}, seed {result['seed']}: test "
        f"{result['metric']} {value} over {result['num_tasks']} tasks "
        f"({result['checkpoint']} checkpoint, step {result['step']} of "
        f"{result['train_steps']})"
    )
