"""Metrics of a run: as JSON lines, as TensorBoard events, and as text."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
import time
import zlib
from collections.abc import Mapping
from typing import Any

from mlti_jax._internal.progress import number_format, say
from mlti_jax._internal.storage import (
    make_folder,
    read_regular,
    write_file,
    write_text,
)

_CRC = "crc32"
_MAX_BYTES = 2**30


class MetricsWriter:
    """Writes `metrics.jsonl` and TensorBoard events into a work directory.

    Each line of `metrics.jsonl` ends with the CRC-32 of its other fields. Events are
    written immediately, without TensorBoard's usual background thread: that thread dies
    on a full disk, and the run would then wait forever for its queue. Test metrics have
    a folder of events of their own, `tensorboard/test`, which is written again if a run
    is tested again.

    Args:
      workdir: the directory.
      step: the step from which the run starts. Later lines, which an interrupted run
        has written, are removed.
    """

    def __init__(self, workdir: str | pathlib.Path, step: int = 0) -> None:
        workdir = pathlib.Path(workdir)
        path, self._events_dir = workdir / "metrics.jsonl", workdir / "tensorboard"
        _keep_until(path, step)
        make_folder(self._events_dir)
        self._file = open(path, "a", encoding="utf-8")
        self._start = step
        self._opened: Any = None

    @property
    def _events(self) -> Any:
        """The events of training and validation, opened by the first write.

        tensorboardX is slow to import, and also imports PyTorch if that is installed.
        The first step of a run does not wait for it.
        """
        if self._opened is None:
            from tensorboardX.proto.event_pb2 import Event, SessionLog

            self._opened = _open_events(self._events_dir)
            # TensorBoard then drops the events of later steps.
            start = SessionLog(status=SessionLog.START)
            self._opened.write_event(Event(step=self._start + 1, session_log=start))
        return self._opened

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Write the `values` of a `split` (train, validation or test) at a step."""
        line = {"step": step, "split": split, **values}
        self._file.write(json.dumps({**line, _CRC: _crc(line)}, allow_nan=False) + "\n")
        self._file.flush()
        if split != "test":
            _write_events(self._events, step, split, values)
            return
        folder = self._events_dir / "test"
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        events = _open_events(folder)
        _write_events(events, step, split, values)
        events.close()

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        if self._opened is not None:
            self._opened.close()


def _open_events(folder: pathlib.Path) -> Any:
    from tensorboardX.event_file_writer import EventsWriter

    return EventsWriter(str(folder / "events"))


def _write_events(
    events: Any, step: int, split: str, values: Mapping[str, float]
) -> None:
    from tensorboardX import summary
    from tensorboardX.proto.event_pb2 import Event

    for name, value in values.items():
        scalar = summary.scalar(f"{split}/{name}", value)
        events.write_event(Event(step=step, summary=scalar, wall_time=time.time()))
    events.flush()


def read(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """Return the intact lines of a metrics file, without their checksums."""
    lines, _ = _read_lines(pathlib.Path(path))
    return lines


def _read_lines(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
    """Return the intact lines of a metrics file, and the number of damaged ones.

    Half a line at the end, which a killed run leaves, does not count as damaged.
    """
    *complete, rest = read_regular(path, _MAX_BYTES).split(b"\n")
    parsed = [_parse_line(line) for line in complete]
    damaged = parsed.count(None)
    lines = [line for line in (*parsed, _parse_line(rest)) if line is not None]
    return lines, damaged


def _parse_line(content: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None if it is damaged."""
    try:
        line = json.loads(content)
        crc = line.pop(_CRC, None)
        numbers = [value for name, value in line.items() if name != "split"]
        intact = (
            isinstance(line["step"], int)
            and isinstance(line["split"], str)
            and all(math.isfinite(number) for number in numbers)
            # Lines of earlier versions have no checksum.
            and crc in (None, _crc(line))
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    return line if intact else None


def _crc(line: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(line).encode())


def _keep_until(path: pathlib.Path, step: int) -> None:
    """Remove the lines after a step, and set a damaged file aside."""
    if not path.exists():
        return
    lines, damaged = _read_lines(path)
    kept = [line for line in lines if line["step"] <= step and line["split"] != "test"]
    if damaged:
        aside = path.with_name(f"damaged-{path.name}")
        say(
            f"{path} has {damaged} damaged lines, which are left out; the file as it "
            f"was is {aside}"
        )
        content = path.read_bytes()
        write_file(aside, lambda file: file.write(content))
    text = "".join(json.dumps({**line, _CRC: _crc(line)}) + "\n" for line in kept)
    write_text(path, text)


def format_interval(metric: str, mean: float, ci95: float, sign: str = "") -> str:
    """Return `mean +- ci95`, accuracy in percent; `sign="+"` for differences."""
    if metric == "accuracy":
        return f"{100 * mean:{sign}.2f} +- {100 * ci95:.2f} %"
    form = number_format(mean, ci95)
    return f"{mean:{sign}{form}} +- {ci95:{form}}"


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
