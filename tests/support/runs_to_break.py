"""Small runs that tests of faults interrupt, damage and resume, and their traces."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import orbax.checkpoint as ocp

from mlti_jax.api._fit import choose_config
from mlti_jax.data._own import dataset
from mlti_jax.training import Experiment, build
from mlti_jax.training import _metrics as metrics

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 120  # for one start
SMALL = {
    "backbone.mlp.hidden": "(8,8)",
    "backbone.conv4.filters": "4",
    "train.meta_batch_size": "2",
    "train.log_every": "10",
    "train.checkpoint_every": "10",
    "eval.validation_tasks": "8",
    "eval.num_tasks": "12",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A run by command: a config, its argument and further fields."""

    config: str
    argument: str
    fields: dict[str, str]

    def flags(self, data: pathlib.Path, workdir: pathlib.Path) -> list[str]:
        """Return the flags of `experiments.run`."""
        fields = {**SMALL, **self.fields}
        return [
            f"--config=experiments/configs/{self.config}.py:{self.argument}",
            *(f"--config.{n}={v.format(data=data)}" for n, v in fields.items()),
            f"--workdir={workdir}",
        ]


def own_data(argument: str, name: str, steps: int, **fields: str) -> Case:
    """Return a run on arrays of `write_data`, with two validation tasks."""
    own = {
        "dataset.path": f"{{data}}/{name}.npz",
        "dataset.validation": "1,2",
        "train.steps": str(steps),
        "eval.every": str(steps // 4),
        "task.queries": "4",
        "eval.queries": "4",
        **{key.replace("__", "."): value for key, value in fields.items()},
    }
    return Case("own_data", argument, own)


CASES = {
    "protonet": own_data("learner=protonet,strategy=mlti,shots=3", "classes", 400),
    "maml": own_data("learner=maml,strategy=mlti,shots=3", "classes", 400),
    "regression": own_data(
        "learner=maml,strategy=mlti,shots=3", "targets", 400, task__ways="1"
    ),
    "images": Case(
        "rainbow_mnist",
        "learner=protonet,strategy=mlti",
        {"dataset.source": "builtin", "train.steps": "120", "eval.every": "30"},
    ),
}


def write_data(folder: pathlib.Path) -> None:
    """Write the arrays of eight tasks, for classification and for regression."""
    rng = np.random.default_rng(0)
    task, y = np.repeat(np.arange(8), 24), np.tile(np.arange(24) % 2, 8)
    x = rng.normal(y[:, None], 1.0, (192, 6)).astype(np.float32)
    np.savez(folder / "classes.npz", x=x, y=y, task=task)
    targets = (x * rng.normal(size=(8, 6))[task]).sum(axis=1).astype(np.float32)
    np.savez(folder / "targets.npz", x=x, y=targets, task=task)


def start(flags: list[str], *prefix: str, **options: object) -> subprocess.Popen[str]:
    """Start `experiments.run`; `prefix` is a program that runs it, if given."""
    program = prefix or ("-m", "experiments.run")
    env = {**options.pop("env", os.environ), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *program, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        **options,
    )


def finish(flags: list[str]) -> None:
    """Run `experiments.run` to its end."""
    process = start(flags)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert "Traceback" not in said


def small_experiment(folder: pathlib.Path, **fields: object) -> Experiment:
    """Return a run inside this process, on the classes of `write_data`."""
    options = {"path": str(folder / "classes.npz"), "validation": "1,2"}
    splits = dataset.load(**options)
    given = {"learner.name": "protonet", "strategy.name": "mlti"}
    small = {
        "backbone.mlp.hidden": (8, 8),
        "train.meta_batch_size": 2,
        "eval.num_tasks": 12,
        "eval.validation_tasks": 8,
    }
    own = {key.replace("__", "."): value for key, value in fields.items()}
    config = choose_config(splits, given, small | own)
    with config.unlocked():
        config.dataset = {"name": "own_data", **options}
    return build(config)


def trace(workdir: pathlib.Path) -> dict[str, object]:
    """Return all that a finished run has computed: result, curve and last state."""
    steps = [p.name for p in (workdir / "checkpoints" / "last").iterdir()]
    newest = max(int(name) for name in steps if name.isdigit())
    with ocp.StandardCheckpointer() as checkpointer:
        path = (workdir / "checkpoints" / "last" / str(newest) / "default").absolute()
        state = checkpointer.restore(path)
    return {
        "result": json.loads((workdir / "results.json").read_text()),
        "curve": [
            {k: v for k, v in line.items() if k != "steps_per_second"}
            for line in metrics.read(workdir / "metrics.jsonl")
        ],
        "state": {name: np.asarray(leaf).tobytes() for name, leaf in state.items()},
    }
