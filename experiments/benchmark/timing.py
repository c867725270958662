"""Timing of things side by side, and how much of the machine others take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

Steps = Callable[[int], object]  # runs so many steps and waits for the last

FEWEST_ROUNDS = 3
SLOW_S = 1.0  # a step that takes longer is its own warm-up


class CpuShare:
    """The share of the machine's CPU time that other processes take (Linux)."""

    def __init__(self):
        self._start = self._read()

    def _read(self) -> tuple[float, float] | None:
        try:
            fields = open("/proc/stat").readline().split()[1:]
        except OSError:
            return None
        ticks = [int(field) for field in fields]
        idle = ticks[3] + ticks[4]
        own = sum(os.times()[:2]) * os.sysconf("SC_CLK_TCK")
        return sum(ticks) - idle - own, sum(ticks)

    def of_others(self) -> float | None:
        """Since this was made; None where it can't be told."""
        if self._start is None:
            return None
        others, total = (a - b for a, b in zip(self._read(), self._start, strict=True))
        return max(0.0, others / max(total, 1))


def time_sides(
    sides: dict[str, Steps], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds a step of each side, one value a round; the sides alternate.

    Args:
      sides: each runs so many steps and waits for the last.
      rounds: how often each side is timed, at most.
      seconds: about how long all of this takes after the warm-up. Where single steps
        take too long for it, there are fewer rounds, but not fewer than three unless
        `rounds` says so.
    """
    share = seconds / (rounds * len(sides))
    counts, one_round = {}, 0.0
    for name, steps in sides.items():
        step = _warm_up(steps)
        counts[name] = max(1, round(share / step))
        one_round += counts[name] * step
    possible = max(round(seconds / one_round), FEWEST_ROUNDS)
    times = {name: [] for name in sides}
    for _ in range(min(rounds, possible)):
        for name, steps in sides.items():
            times[name].append(_time(steps, counts[name]) * 1e3)
    return times


def _warm_up(steps: Steps) -> float:
    """About how many seconds a step takes."""
    first = _time(steps, 1)
    return first if first > SLOW_S else _time(steps, 3)


def _time(steps: Steps, count: int) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    steps(count)
    return (time.perf_counter() - start) / count


def spread(times: list[float]) -> dict[str, float]:
    """Median, fastest and slowest of some times in milliseconds, and how many."""
    return {
        "rounds": len(times),
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "max_ms": max(times),
    }


def format_spread(times: dict[str, float]) -> str:
    """`median (fastest-slowest)`, in milliseconds."""
    median, fastest, slowest = (
        format_ms(times[name], times["median_ms"])
        for name in ("median_ms", "min_ms", "max_ms")
    )
    return f"{median} ({fastest}-{slowest})"


def format_ms(value: float, like: float | None = None) -> str:
    """Milliseconds with as many digits as one can trust, or as a value `like` it."""
    size = value if like is None else like
    digits = 2 if size < 1 else 1 if size < 1000 else 0
    return f"{value:.{digits}f}"


def format_share(share: float | None) -> str:
    """The share of other processes, as a percentage."""
    return "-" if share is None else f"{100 * share:.0f} %"
