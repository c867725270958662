"""Runs on several processes and devices, for comparison with those on a single device.

As a program: `process_runs.py CLUSTER DEVICES FOLDER NAMES`, with `HOST:PORT,NUM,ID` or
`alone`, the number of CPU devices of the process, and comma-separated names of `CASES`.
Each run writes its work directory `FOLDER/NAME`; process 0 adds `trace.npz`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 240  # for one start, on a busy machine
STEPS = 30
TASKS = 8  # per meta-batch, as many as the devices of the largest layout

# Learner, strategy, and config fields. Runs whose name ends with 32 are in float32.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "maml_vanilla": ("maml", "vanilla", {}),
    "maml_passes": (
        "maml",
        "mlti",
        {"interpolation.layers": (0, 1), "train.tasks_per_pass": 1},
    ),
    "protonet_vanilla": ("protonet", "vanilla", {"train.tasks_per_pass": 1}),
    "protonet_input": ("protonet", "mlti", {"interpolation.layers": (0,)}),
    "protonet_32": ("protonet", "mlti", {"interpolation.layers": (0, 1)}),
    # Each process reads its own tasks.
    "protonet_host": ("protonet", "mlti", {"interpolation.layers": (0,)}),
}
PROGRAMS = ("protonet_input",)  # whose compiled step is written to `program.txt`


def write_data(folder: pathlib.Path) -> None:
    """Write `classes.npz`: vectors of 6 tasks that share 2 classes."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(2), 6 * 15)
    task = np.repeat(np.arange(6), 30)
    x = rng.normal(size=(len(y), 8)) + y[:, None] * rng.normal(size=(6, 8))[task]
    np.savez(folder / "classes.npz", x=x.astype(np.float32), y=y, task=task)


def flags(folder: pathlib.Path, workdir: pathlib.Path, **fields: str) -> list[str]:
    """Return those of `experiments.run` for a run on the data of `write_data`."""
    own = {
        "dataset.path": str(folder / "classes.npz"),
        "dataset.validation": "1,2",
        "backbone.mlp.hidden": "(16,16)",
        "task.queries": "4",
        "train.meta_batch_size": "4",
        "train.steps": "200",
        "train.log_every": "10",
        "train.checkpoint_every": "20",
        "eval.every": "50",
        "eval.num_tasks": "20",
        "eval.validation_tasks": "10",
        **fields,
    }
    return [
        "--config=experiments/configs/own_data.py:"
        "learner=protonet,strategy=mlti,shots=3",
        *(f"--config.{name}={value}" for name, value in own.items()),
        f"--workdir={workdir}",
    ]


def run_all(folder: pathlib.Path, names: list[str], devices: int) -> None:
    """Run cases in this process, or as one of several."""
    import jax

    from mlti_jax import data
    from mlti_jax._internal.distributed import is_first
    from mlti_jax.training import build, train_and_evaluate
    from mlti_jax.training._loop import run_experiment

    path = str(folder / "classes.npz")
    for name in names:
        pool = "host" if name.endswith("host") else "device"
        splits = data.load("own_data", path=path, validation="1,2", pool=pool)
        learner, strategy, fields = CASES[name]
        jax.config.update("jax_enable_x64", not name.endswith("32"))
        experiment = build(
            _config(folder, splits, learner, strategy, devices, fields), splits=splits
        )
        train_and_evaluate(experiment, folder / name)
        variables = run_experiment(experiment, folder / name).variables
        evaluate = experiment.evaluator.outputs_by_task
        outputs = list(evaluate(variables, splits.test, experiment.eval_key(1), 6))
        if name in PROGRAMS:
            text = program_text(experiment)
            if is_first():
                (folder / name / "program.txt").write_text(text)
        if is_first():
            leaves = jax.tree.leaves(variables.params)
            np.savez(
                folder / name / "trace.npz",
                *[np.asarray(leaf) for leaf in leaves],
                domains=[task.domain for task in outputs],
                labels=[task.labels for task in outputs],
                outputs=[task.outputs for task in outputs],
                devices=len(experiment.plan.devices),
            )


def program_text(experiment: Any) -> str:
    """Return the compiled training step of an experiment as XLA's text."""
    from mlti_jax.training._step import make_run_steps

    run = make_run_steps(
        experiment.learner,
        experiment.strategy,
        experiment.optimiser,
        experiment.episode,
        experiment.config.train.meta_batch_size,
        experiment.plan,
        experiment.ema,
    )
    state, pool, key = experiment.plan.replicate(
        (experiment.init_state(), experiment.splits.train, experiment.key(1))
    )
    return run.lower(state, pool, key, 1).compile().as_text()


def _config(
    folder: pathlib.Path,
    splits: Any,
    learner: str,
    strategy: str,
    devices: int,
    fields: dict[str, Any],
) -> Any:
    from mlti_jax.api._fit import choose_config

    given = {"learner.name": learner, "strategy.name": strategy}
    small = {
        "backbone.mlp.hidden": (16, 16),
        "task.shots": 3,
        "task.queries": 4,
        "train.meta_batch_size": TASKS,
        "train.devices": devices,
        "train.steps": STEPS,
        "train.log_every": 1,
        "train.checkpoint_every": 20,
        "eval.every": 15,
        "eval.num_tasks": 20,
        "eval.validation_tasks": 10,
    }
    config = choose_config(splits, given, small | fields)
    with config.unlocked():
        config.dataset = {"name": "own_data", "path": str(folder / "classes.npz")}
    return config


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_all(
    number: int, arguments: Callable[[str, int], list[str]], devices: int = 1
) -> list[subprocess.Popen[str]]:
    """Start the processes of a run on this machine.

    Args:
      number: number of processes.
      arguments: returns those of Python for `HOST:PORT,NUM,ID` and the index.
      devices: number of CPU devices of each process.
    """
    port = free_port()
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
    }
    return [
        subprocess.Popen(
            [sys.executable, *arguments(f"127.0.0.1:{port},{number},{index}", index)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(number)
    ]


def finish_all(
    processes: list[subprocess.Popen[str]],
) -> list[tuple[int, str, float]]:
    """Wait for processes; return exit code, stderr and seconds until each ended."""
    start = time.monotonic()

    def finish(process: subprocess.Popen[str]) -> tuple[int, str, float]:
        try:
            _, said = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"stopped after {SECONDS} seconds: {process.communicate()[1]}"
        return process.returncode, said, time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(finish, processes))


def main() -> None:
    """Run the cases of the command line."""
    import jax

    from mlti_jax._internal import distributed

    cluster, devices, folder, names = sys.argv[1:]
    found = None if cluster == "alone" else distributed.find_cluster(cluster)
    with _joined(found):
        number = distributed.number_of_processes()
        run_all(pathlib.Path(folder), names.split(","), number * int(devices))
        assert len(jax.local_devices()) == int(devices)


@contextlib.contextmanager
def _joined(cluster: Any) -> Iterator[None]:
    from mlti_jax._internal import distributed

    with distributed.joined(cluster, lambda error: None):
        yield


if __name__ == "__main__":
    main()
