"""How much memory a device and this machine have."""

from __future__ import annotations

import os
import pathlib

import jax

_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_MEMINFO = "/proc/meminfo"


def device_memory(devices: int) -> int | None:
    """Return the memory of a device in bytes; None if it is unknown.

    The devices of a CPU share the machine's memory, or what the container or a limit of
    the process (`ulimit -v`) leaves of it.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        statistics = device.memory_stats() or {}
        return statistics.get("bytes_limit")
    limit = host_memory()
    return limit // devices if limit is not None else None


def host_memory() -> int | None:
    """Return the memory that this process may use; None if it is unknown."""
    limits = [_physical_memory(), *map(_cgroup_limit, _CGROUP_LIMITS), _process_limit()]
    known = [limit for limit in limits if limit]
    return min(known) if known else None


def available_memory() -> int | None:
    """Return the part of `host_memory` that no process uses; None if it is unknown."""
    limit = host_memory()
    try:
        lines = pathlib.Path(_MEMINFO).read_text().splitlines()
        free = next(line for line in lines if line.startswith("MemAvailable:"))
        available = int(free.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):  # not Linux
        return limit
    return available if limit is None else min(available, limit)


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None


def _cgroup_limit(path: str) -> int | None:
    try:
        return int(pathlib.Path(path).read_text())
    except (OSError, ValueError):  # absent, or `max`
        return None


def _process_limit() -> int | None:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def format_bytes(size: int) -> str:
    """Format a size: 1,500,000,000 as `1.5 GB`."""
    if size < 10**9:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e9:,.1f} GB"
