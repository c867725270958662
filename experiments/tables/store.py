"""Results of runs as small JSON files, one a run: `experiments/results/`.

A file holds what the run left in `results.json`, and what it takes to make it again and
to compare it with others: its command, settings and versions, the fingerprints of its
data, and how fast it was. Tables are made of these files alone.
"""

from __future__ import annotations

import json
import pathlib
import statistics

from experiments.paper import Run
from experiments.tables import settings as run_settings
from experiments.tables.jobs import Job, command_to_type, paper_config
from mlti_jax._internal.command_line import absolute
from mlti_jax._internal.progress import say
from mlti_jax.errors import InputError
from mlti_jax.training import _metrics as metrics
from mlti_jax.training._workdir import read_json, write_json

FOLDER = pathlib.Path(__file__).parents[1] / "results"
DECIMALS = 5  # of the values of single tasks
NEEDED = frozenset(
    [
        "config",
        "arguments",
        "overrides",
        "command",
        "dataset",
        "learner",
        "strategy",
        "backbone",
        "ways",
        "shots",
        "queries",
        "seed",
        "metric",
        "source",
        "train_steps",
        "num_tasks",
        "eval_seed",
        "checksums",
        "per_task",
    ]
)

Key = tuple[str, str, tuple[tuple[str, str], ...]]
BySeed = dict[int, dict]  # results of one run, by their seed


def path_of(folder: pathlib.Path, job: Job) -> pathlib.Path:
    """The file of a job's result."""
    return folder / f"{job.name}.json"


def record(folder: pathlib.Path, job: Job, workdir: pathlib.Path) -> dict:
    """Writes the result that a finished job has left in its work directory."""
    result = read_json(workdir / "results.json")
    config = read_json(workdir / "config.json")
    per_task = [round(value, DECIMALS) for value in result.pop("per_task")]
    run = job.run
    recorded = {
        "config": run.config,
        "arguments": run.argument,
        "overrides": {field: str(value) for field, value in run.overrides},
        "command": command_to_type(job),
        **result,
        "eval_seed": config["eval"]["seed"],
        "checksums": config["data"]["checksums"],
        "settings": run_settings.settings(config),
        "versions": run_settings.versions(),
        **_speed(workdir / "metrics.jsonl"),
        "per_task": per_task,
    }
    path = path_of(folder, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, recorded)
    return recorded


def _speed(path: pathlib.Path) -> dict[str, float]:
    """Seconds of training, without validation; steps a second, without compiling."""
    lines = metrics.read(path) if path.exists() else []
    lines = [line for line in lines if line["split"] == "train"]
    if not lines:
        return {}
    rates = [line["steps_per_second"] for line in lines]  # the first with compiling
    ends = [line["step"] for line in lines]
    steps = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    seconds = sum(n / rate for n, rate in zip(steps, rates, strict=True))
    speed = {"train_seconds": round(seconds, 1)}
    if len(rates) > 1:
        speed["steps_per_second"] = round(statistics.median(rates[1:]), 3)
    return speed


def existing_folder(text: str) -> pathlib.Path:
    """The folder of results that is named; `InputError` if there is none."""
    folder = absolute(text)
    if not folder.is_dir():
        raise InputError(f"--results={folder} is no folder of results")
    return folder


def read(path: pathlib.Path) -> dict:
    """The result in a file; `InputError` if it is not whole."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        reason = "it is not JSON"
    else:
        reason = _what_is_wrong(result)
    if reason:
        raise InputError(
            f"{path} is no whole result: {reason}; take it away, and run it again"
        )
    return result


def _what_is_wrong(result: object) -> str:
    if not isinstance(result, dict):
        return "it is no JSON object"
    if missing := NEEDED.difference(result):
        return f"it has no {', '.join(sorted(missing))}"
    values = result["per_task"]
    if not isinstance(values, list) or len(values) != result["num_tasks"]:
        return f"per_task has not the values of {result['num_tasks']} tasks"
    return ""


class Results:
    """All results of a folder.

    Args:
      folder: of the files, each in the folder of its config; it need not exist.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.all: list[dict] = []
        self._found: dict[Key, dict[int, BySeed]] = {}
        self._current: dict[Run, dict[int, BySeed]] = {}
        for path in sorted(folder.glob("*/*.json")):
            self._add(path)

    def _add(self, path: pathlib.Path) -> None:
        result = read(path)
        overrides = tuple(sorted(result["overrides"].items()))
        key = (result["config"], result["arguments"], overrides)
        by_seed = self._found.setdefault(key, {}).setdefault(result["train_steps"], {})
        if result["seed"] in by_seed:
            raise InputError(f"{path} is a second result of {result['command']}")
        by_seed[result["seed"]] = result
        self.all.append(result)

    def by_steps(self, run: Run) -> dict[int, BySeed]:
        """The results of a run, by training steps and seed.

        Without those that were made with other settings than the run has now.
        """
        if run not in self._current:
            overrides = sorted((field, str(value)) for field, value in run.overrides)
            key = (run.config, run.argument, tuple(overrides))
            current: dict[int, BySeed] = {}
            for steps, by_seed in self._found.get(key, {}).items():
                for seed, result in by_seed.items():
                    reason = run_settings.why_outdated(result, paper_config(run))
                    if reason:
                        name = Job(run, seed, steps).name
                        say(f"the result {name} is left out: {reason}; run it again")
                    else:
                        current.setdefault(steps, {})[seed] = result
            self._current[run] = current
        return self._current[run]

    def of(self, job: Job) -> dict | None:
        """The result of a job, if there is one."""
        return self.by_steps(job.run).get(job.steps, {}).get(job.seed)
