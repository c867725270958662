"""Time from the command to the end of the first training step, by part.

Each measurement is `python -m experiments.run` in a new process that ends after its
first step: once with an empty compilation cache (cold), then with the programs that
this run has stored (warm). The parts are

  imports   start of Python, libraries, flags
  data      reading the dataset
  building  everything else before the first step, such as the initialization
  tracing   from Python to XLA's input, for the training step
  XLA       compiling the training step, or reading it from the cache
  step      the rest of the first call: the step itself

The last column, `CPU`, is the CPU time of the process, all threads together. It depends
less on other processes than the other columns, which are wall-clock times.

Built-in images are always measured, other datasets if they are prepared in the default
data directory (`MLTI_DATA_DIR`).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from mlti_jax.data._data_dir import resolve_data_dir

CPU = "CPU"
PARTS = ("imports", "data", "building", "tracing", "XLA", "step")
_METHOD = "learner={},strategy=mlti"
_BUILTIN = "--config.dataset.source=builtin"
# Config, its argument, and further flags; the first two need no prepared data.
CASES = {
    "rainbow_mnist builtin maml": ("rainbow_mnist", "maml", (_BUILTIN,)),
    "rainbow_mnist builtin protonet": ("rainbow_mnist", "protonet", (_BUILTIN,)),
    "rainbow_mnist maml": ("rainbow_mnist", "maml", ()),
    "rainbow_mnist protonet": ("rainbow_mnist", "protonet", ()),
    "metabolism maml": ("metabolism", "maml", ()),
    "isic maml": ("isic", "maml", ()),
    "pose maml": ("pose", "maml", ()),
}
_RESULT = "MLTI_STARTUP_RESULT"  # file for the result of the measured process
_START = "MLTI_STARTUP_BEGIN"  # when its parent has started it


def available() -> list[str]:
    """Return the cases whose data is built in or prepared."""
    folder = resolve_data_dir(None)
    return [
        name
        for name, (config, _, flags) in CASES.items()
        if flags or (folder / config).is_dir()
    ]


def run_once(case: str, cache: str) -> dict[str, float]:
    """Run a case until its first step ends.

    Args:
      case: a key of `CASES`.
      cache: directory of compiled programs.

    Returns:
      Seconds of each of `PARTS`, and of `CPU`.

    Raises:
      RuntimeError: if the process fails, with what it has printed.
    """
    config, learner, flags = CASES[case]
    path = f"experiments/configs/{config}.py:{_METHOD.format(learner)}"
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        command = [sys.executable, "-m", "experiments.benchmark.startup"]
        command += [f"--config={path}", f"--workdir={folder}/run", *flags]
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",  # as in a run
            _RESULT: result,
            _START: str(time.time()),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not os.path.exists(result):
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        with open(result, encoding="utf-8") as file:
            return json.load(file)


def measure(rounds: int, seconds: float) -> dict:
    """Measure the median seconds of each part, cold and warm.

    At most `rounds` pairs of processes per case; no new pair starts after `seconds`.
    """
    rows = []
    for case in available():
        times: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
        start = time.monotonic()
        while len(times["cold"]) < rounds:
            if times["cold"] and time.monotonic() - start > seconds:
                break
            with tempfile.TemporaryDirectory() as cache:
                for name in times:
                    times[name].append(run_once(case, cache))
        for name, runs in times.items():
            totals = [sum(run[part] for part in PARTS) for run in runs]
            parts = {
                part: statistics.median(run[part] for run in runs)
                for part in (*PARTS, CPU)
            }
            total = statistics.median(totals)
            row = {"case": case, "cache": name, "runs": len(runs), "total_s": total}
            rows.append({**row, **parts})
    return {"case": "startup", "kind": "startup", "rows": rows}


def table(result: dict) -> str:
    """Format a result; the total is a median of its own, not the sum of the parts."""
    heads = "".join(f"{name:>9}" for name in ("total", *PARTS, CPU))
    lines = [
        "startup: seconds until the end of the first step",
        f"  {'':36}{heads}",
    ]
    for row in result["rows"]:
        values = (row["total_s"], *(row[part] for part in (*PARTS, CPU)))
        numbers = "".join(f"{value:9.2f}" for value in values)
        lines.append(f"  {row['case'] + ', ' + row['cache']:36}{numbers}")
    return "\n".join(lines)


def _run_measured() -> None:
    """Be the measured process: run the command, and exit when the first step ends."""
    from jax import monitoring

    from experiments import cli, run
    from mlti_jax.training import _batches, _experiment

    begin = float(os.environ[_START])
    compiling = {"tracing": 0.0, "XLA": 0.0}
    seconds: dict[str, float] = {}

    def on_event(event: str, duration: float, **_: Any) -> None:
        if "/jaxpr_trace_duration" in event or "/jaxpr_to_mlir" in event:
            compiling["tracing"] += duration
        elif "/backend_compile_duration" in event:
            compiling["XLA"] += duration

    def timed_load(*args: Any, **options: Any) -> Any:
        seconds["imports"] = time.time() - begin
        start = time.time()
        splits = load(*args, **options)
        seconds["data"] = time.time() - start
        return splits

    def first_call(*parts: Any) -> Callable[..., None]:
        steps = run_steps(*parts)

        def call(*args: Any) -> None:
            start = time.time()
            before = dict(compiling)
            _, bad_step = steps(*args)
            int(bad_step)  # waits for the step
            whole = time.time() - start
            for part, value in compiling.items():
                seconds[part] = value - before[part]
            seconds["step"] = whole - seconds["tracing"] - seconds["XLA"]
            known = seconds["imports"] + seconds["data"]
            seconds["building"] = start - begin - known
            seconds[CPU] = sum(os.times()[:2])
            with open(os.environ[_RESULT], "w", encoding="utf-8") as file:
                json.dump(seconds, file)
            os._exit(0)

        return call

    load, run_steps = _experiment.data.load, _batches.cached_run_steps
    monitoring.register_event_duration_secs_listener(on_event)
    _experiment.data.load = timed_load
    _batches.cached_run_steps = first_call  # type: ignore[assignment]
    sys.exit(cli.run(run.main, run.__doc__))


if __name__ == "__main__":
    _run_measured()
