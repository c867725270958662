"""Timing of things side by side, and how much of the machine others take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable


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
    sides: dict[str, Callable[[int], None]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds a step of each side, one value a round; the sides alternate."""
    counts = {}
    for name, steps in sides.items():
        steps(2)
        start = time.perf_counter()
        steps(3)
        counts[name] = max(1, round(3 * seconds / (time.perf_counter() - start)))
    times = {name: [] for name in sides}
    for _ in range(rounds):
        for name, steps in sides.items():
            start = time.perf_counter()
            steps(counts[name])
            times[name].append((time.perf_counter() - start) / counts[name] * 1e3)
    return times


def spread(times: list[float]) -> dict[str, float]:
    """Median, fastest and slowest of some times in milliseconds."""
    return {
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "max_ms": max(times),
    }


def format_spread(times: dict[str, float]) -> str:
    """`median (fastest-slowest)`, in milliseconds."""
    return (
        f"{times['median_ms']:.2f} ({times['min_ms']:.2f}-{times['max_ms']:.2f})"
        if times["median_ms"] < 1
        else f"{times['median_ms']:.1f} ({times['min_ms']:.1f}-{times['max_ms']:.1f})"
    )


def format_share(share: float | None) -> str:
    """The share of other processes, as a percentage."""
    return "-" if share is None else f"{100 * share:.0f} %"
