"""Description and peak performance of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import jax
import jax.numpy as jnp

from experiments.benchmark import timing

MATRIX = 2048
ARRAY = 2**25  # floats, 134 MB: larger than any cache


def describe() -> dict[str, object]:
    """Platform, device and library versions."""
    device = jax.devices()[0]
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "torch": torch,
    }


def measure_peaks(
    seconds: float = 4.0, matrix: int = MATRIX, array: int = ARRAY
) -> dict[str, float]:
    """Measure a matrix product and a pass over memory; the fastest round counts.

    Both run in a loop that reuses their buffers.

    Args:
      seconds: approximate duration.
      matrix: size of the square float32 matrices.
      array: length of the arrays of the triad `a = b + s * a`.

    Returns:
      `gflops` of the product; `gb_s` of the triad, which reads two arrays and writes
      one; and `others`, the CPU share of other processes.
    """

    @jax.jit
    def products(left, right, count):
        return jax.lax.fori_loop(0, count, lambda _, a: a @ right, left)

    @jax.jit
    def triads(a, b, count):
        return jax.lax.fori_loop(0, count, lambda _, a: b + 0.5 * a, a)

    # Its powers neither grow nor vanish.
    square = jnp.full((matrix, matrix), 1.0 / matrix)
    ones = jnp.ones(array)
    sides = {
        "product": lambda count: products(square, square, count).block_until_ready(),
        "triad": lambda count: triads(ones, ones, count).block_until_ready(),
    }
    share = timing.CpuShare()
    times = timing.time_sides(sides, rounds=5, seconds=seconds)
    fastest = {name: min(values) / 1e3 for name, values in times.items()}
    return {
        "gflops": 2 * matrix**3 / fastest["product"] / 1e9,
        "gb_s": 3 * 4 * array / fastest["triad"] / 1e9,
        "others": share.of_others(),
    }
