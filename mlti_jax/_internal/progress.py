"""What a person sees while long work goes on, and how they can stop it."""

from __future__ import annotations

import contextlib
import contextvars
import signal
import sys
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

# Without a terminal there is no bar; a line is written this often instead.
SECONDS_BETWEEN_LINES = 10.0
_SILENT = contextvars.ContextVar("silent", default=False)


class Progress:
    """A progress bar on a terminal, and now and then a line elsewhere.

    Args:
      label: what goes on.
      total: units of work in all.
      done: units done before.
      unit: what they are called.
    """

    def __init__(self, label: str, total: int, done: int = 0, unit: str = "step"):
        self._label, self._total, self._unit = label, total, unit
        self._first, self._done = done, done
        self._start = self._last_line = time.monotonic()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=label,
            unit=unit,
            disable=_SILENT.get() or not sys.stderr.isatty(),
            dynamic_ncols=True,
            leave=False,
        )

    def update(self, count: int, text: str = "") -> None:
        """Tells of `count` more units; `text` stands behind the bar."""
        self._done += count
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(count)
        now = time.monotonic()
        if self._bar.disable and now - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = now
            rate = (self._done - self._first) / (now - self._start)
            say(
                f"{self._label}: {self._unit} {self._done}/{self._total}, "
                f"{text + ', ' if text else ''}{rate:.1f} {self._unit}s/s, "
                f"{self._time_left(rate)} left"
            )

    def _time_left(self, rate: float) -> str:
        # The first of many units often waits for what is done once.
        if self._done - self._first < 0.001 * self._total:
            return "unknown time"
        return format_seconds(max(0, self._total - self._done) / max(rate, 1e-9))

    def close(self) -> None:
        """Takes the bar away."""
        self._bar.close()


def say(text: str) -> None:
    """Prints a line for people, without breaking a progress bar."""
    if _SILENT.get():
        return
    with contextlib.suppress(OSError):  # Nobody listens any more; the run goes on.
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


@contextlib.contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Shows nothing of what goes on inside, if `silent`."""
    token = _SILENT.set(silent or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


def format_seconds(seconds: float) -> str:
    """`75` as `1 min 15 s`, `7500` as `2 h 5 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def format_metric(name: str, value: float) -> str:
    """Accuracy as a percentage, other metrics as they are."""
    if name == "accuracy":
        return f"accuracy {100 * value:.2f} %"
    return f"{name} {value:.4f}"


@contextlib.contextmanager
def stop_signal() -> Iterator[Callable[[], int]]:
    """Catches SIGTERM and Ctrl-C, so that a run can save before it stops.

    Yields:
      A function that gives the signal's number once one has come, else 0. A second
      Ctrl-C interrupts at once.
    """
    received = 0

    def handle(number, frame):
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received = number

    numbers = (signal.SIGTERM, signal.SIGINT)
    try:
        previous = [signal.signal(number, handle) for number in numbers]
    except ValueError:  # Not in the main thread: nobody can send us signals there.
        yield lambda: 0
        return
    try:
        yield lambda: received
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
