"""Progress bars, messages on stderr, and stopping on a signal."""

from __future__ import annotations

import contextlib
import contextvars
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from tqdm import tqdm

# Without a terminal, Progress prints lines at this interval instead of a bar.
SECONDS_BETWEEN_LINES = 10.0
_SILENT = contextvars.ContextVar("silent", default=False)
# Texts that were said in the context `without_repeats`; None outside of it.
_SAID: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar(
    "said", default=None
)


class Progress:
    """A progress bar on a terminal; otherwise a line every few seconds.

    Args:
      label: description of the work.
      total: total number of units of work.
      done: units that were done before.
      unit: name of a unit.
    """

    def __init__(
        self, label: str, total: int, done: int = 0, unit: str = "step"
    ) -> None:
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
        """Add `count` units; `text` is shown after the bar."""
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
        # The first units often include compilation or other one-time work.
        if self._done - self._first < 0.001 * self._total:
            return "unknown time"
        return format_seconds(max(0, self._total - self._done) / max(rate, 1e-9))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


def say(text: str, *, once: bool = False) -> None:
    """Print a line to stderr without breaking a progress bar.

    Args:
      text: the line.
      once: whether to print it only once in the context `without_repeats`.
    """
    if _SILENT.get():
        return
    if once and (said := _SAID.get()) is not None:
        if text in said:
            return
        said.add(text)
    with contextlib.suppress(OSError):  # stderr is closed.
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


@contextlib.contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Suppress progress bars and messages while the context is open, if `silent`."""
    token = _SILENT.set(silent or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


@contextlib.contextmanager
def without_repeats() -> Iterator[None]:
    """Print what several runs say about their common data and config only once."""
    token = _SAID.set(set())
    try:
        yield
    finally:
        _SAID.reset(token)


def format_seconds(seconds: float) -> str:
    """Format a duration: `75` as `1 min 15 s`, `7500` as `2 h 5 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def format_metric(name: str, value: float) -> str:
    """Format a metric with its name; accuracy as a percentage."""
    if name == "accuracy":
        return f"accuracy {100 * value:.2f} %"
    return f"{name} {value:{number_format(value)}}"


def number_format(*values: float) -> str:
    """Return a format for numbers in any unit: four decimals, or four digits."""
    largest = max(map(abs, values))
    return ".4f" if largest == 0 or 0.01 <= largest < 1e6 else ".4g"


@contextlib.contextmanager
def stop_signal() -> Iterator[Callable[[], int]]:
    """Catch SIGTERM and SIGINT (Ctrl-C), to let a run save before it stops.

    A second SIGINT raises `KeyboardInterrupt`.

    Yields:
      A function that returns the number of the received signal, or 0.
    """
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received = number

    numbers = (signal.SIGTERM, signal.SIGINT)
    try:
        previous = [signal.signal(number, handle) for number in numbers]
    except ValueError:  # Only the main thread receives signals.
        yield lambda: 0
        return
    try:
        yield lambda: received
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
