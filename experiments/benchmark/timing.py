"""Timing of alternating sides, and the CPU share of other processes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

Steps = Callable[[int], object]  # runs a number of steps and waits for the last

MIN_ROUNDS = 3
SLOW_S = 1.0  # for slower steps, a single one is the whole warm-up


class CpuShare:
    """Share of the machine's CPU time that other processes take (Linux only)."""

    def __init__(self) -> None:
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
        """Share since this object was created; None if unknown."""
        end = self._read()
        if self._start is None or end is None:
            return None
        others, total = (a - b for a, b in zip(end, self._start, strict=True))
        return max(0.0, others / max(total, 1))


def time_sides(
    sides: dict[str, Steps], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Time sides in turn.

    Args:
      sides: each runs a given number of steps and waits for the last.
      rounds: maximum number of times that each side is timed.
      seconds: approximate duration after the warm-up. If single steps are too slow for
        it, fewer rounds are run, but at least three unless `rounds` is smaller.

    Returns:
      Milliseconds per step of each side, one value per round.
    """
    share = seconds / (rounds * len(sides))
    counts, one_round = {}, 0.0
    for name, steps in sides.items():
        step = _warm_up(steps)
        counts[name] = max(1, round(share / step))
        one_round += counts[name] * step
    possible = max(round(seconds / one_round), MIN_ROUNDS)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(min(rounds, possible)):
        for name, steps in sides.items():
            times[name].append(_time(steps, counts[name]) * 1e3)
    return times


def _warm_up(steps: Steps) -> float:
    """Run the first steps; return the approximate seconds per step."""
    first = _time(steps, 1)
    return first if first > SLOW_S else _time(steps, 3)


def _time(steps: Steps, count: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    steps(count)
    return (time.perf_counter() - start) / count


def spread(times: list[float]) -> dict[str, float]:
    """Number, median, minimum and maximum of times in milliseconds."""
    return {
        "rounds": len(times),
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "max_ms": max(times),
    }


def ratios(spreads: dict[str, dict[str, float]]) -> dict[str, float]:
    """Median of each other side divided by that of ours, `jax`."""
    ours = spreads["jax"]["median_ms"]
    return {
        side: times["median_ms"] / ours
        for side, times in spreads.items()
        if side != "jax"
    }


def format_spread(times: dict[str, float]) -> str:
    """Format as `median (fastest-slowest)`, in milliseconds."""
    median, fastest, slowest = (
        format_ms(times[name], times["median_ms"])
        for name in ("median_ms", "min_ms", "max_ms")
    )
    return f"{median} ({fastest}-{slowest})"


def format_ms(value: float, like: float | None = None) -> str:
    """Format milliseconds with the digits that suit `like`, by default `value`."""
    size = value if like is None else like
    digits = 2 if size < 1 else 1 if size < 1000 else 0
    return f"{value:.{digits}f}"


def format_share(share: float | None) -> str:
    """Format a share as a percentage."""
    return "-" if share is None else f"{100 * share:.0f} %"
