"""Results of runs as small JSON files, one per run: `experiments/results/`.

A file contains the run's `results.json`, and what is needed to reproduce it and to
compare it with others: command, settings, package versions, checksums of the data,
training speed, the revision of the code and its numerics (`numerics`). Tables are
rendered from these files only.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Mapping
from typing import Any

import jax
import jaxlib
from ml_collections import ConfigDict

import mlti_jax
from experiments.paper import Run
from experiments.tables import numerics
from experiments.tables.jobs import ALBERT_FIELDS, Job, load_config, shell_command
from mlti_jax._internal.command_line import absolute
from mlti_jax._internal.progress import say
from mlti_jax._internal.revision import revision
from mlti_jax._internal.storage import read_json, write_json
from mlti_jax.errors import InputError
from mlti_jax.training import _metrics as metrics
from mlti_jax.training._config import drop_without_effect, flat_fields
from mlti_jax.training._workdir import read_config, read_result

FOLDER = pathlib.Path(__file__).parents[1] / "results"
DECIMALS = 5  # of the metric of a single task
CURVE_POINTS = 50  # of a learning curve
REQUIRED = frozenset(
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
# Sections of the config of which only the chosen entry affects the result.
_SECTIONS_BY_NAME = ("backbone", "learner", "strategy")
# Fields of the config that do not affect the result, are paths, or are recorded
# separately.
IGNORED_FIELDS = (
    "seed",
    "data",
    "train.steps",
    "train.log_every",
    "train.checkpoint_every",
    "train.devices",
    "train.tasks_per_pass",
    "eval.seed",
    "eval.tasks_per_pass",
    *ALBERT_FIELDS,
)

Result = dict[str, Any]
BySeed = dict[int, Result]  # results of one run, by seed
Key = tuple[str, str, tuple[tuple[str, str], ...]]


# ------------------------------------------------------------------------ recording


def result_path(folder: pathlib.Path, job: Job) -> pathlib.Path:
    """Return the file of a job's result."""
    return folder / f"{job.name}.json"


def record(folder: pathlib.Path, job: Job, workdir: pathlib.Path) -> Result:
    """Write the result of a finished job, from its work directory, and return it."""
    result, config = read_result(workdir), read_config(workdir)
    per_task = [round(value, DECIMALS) for value in result.pop("per_task")]
    run = job.run
    recorded = {
        "config": run.config,
        "arguments": run.argument,
        "overrides": {field: str(value) for field, value in run.overrides},
        "command": shell_command(job),
        **result,
        "eval_seed": config["eval"]["seed"],
        "checksums": config["data"]["checksums"],
        "settings": relevant_settings(config),
        "versions": {
            "mlti_jax": mlti_jax.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
        },
        **_measured(workdir / "metrics.jsonl", result["metric"]),
    }
    if probe := _probe(recorded, job.name):
        recorded[numerics.FIELD] = probe
    recorded["per_task"] = per_task
    path = result_path(folder, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, recorded)
    return recorded


def _probe(result: Result, name: str) -> numerics.Probe | None:
    """Return the numerics of the code that a run used; None if that is not known.

    It is the code of this process if both have the same revision.
    """
    if numerics.REVISION not in result:  # of an earlier version
        return None
    if result[numerics.REVISION] != revision():
        say(
            f"{name} is of revision {result[numerics.REVISION]}, and this process of "
            f"{revision()}: its result has no numerics"
        )
        return None
    try:
        return numerics.probe(numerics.config_of(result))
    except Exception as error:  # The result of hours of training must not be lost.
        say(f"{name} has no numerics: {type(error).__name__}: {error}")
        return None


def _measured(path: pathlib.Path, metric: str) -> dict[str, Any]:
    """Return speed and learning curves of a run, if it has logged any steps."""
    lines = metrics.read(path) if path.exists() else []
    by_split = {
        split: [line for line in lines if line["split"] == split]
        for split in ("train", "validation")
    }
    curves = {
        split: _curve([(line["step"], line[metric]) for line in some if metric in line])
        for split, some in by_split.items()
    }
    curves = {split: curve for split, curve in curves.items() if curve}
    speed = _speed(by_split["train"]) if by_split["train"] else {}
    return {**speed, **({"curves": curves} if curves else {})}


def _curve(points: list[tuple[int, float]]) -> list[list[float]]:
    """Return at most `CURVE_POINTS` points `[step, value]`, means of neighbors."""
    width = -(-len(points) // CURVE_POINTS)
    return [
        [
            points[min(start + width, len(points)) - 1][0],
            round(statistics.mean(v for _, v in points[start : start + width]), 4),
        ]
        for start in range(0, len(points), width or 1)
    ]


def _speed(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Training time without validation, and steps per second without compilation."""
    rates = [line["steps_per_second"] for line in lines]  # the first while compiling
    ends = [line["step"] for line in lines]
    steps = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    seconds = sum(n / rate for n, rate in zip(steps, rates, strict=True))
    speed = {"train_seconds": round(seconds, 1)}
    if len(rates) > 1:
        speed["steps_per_second"] = round(statistics.median(rates[1:]), 3)
    return speed


def relevant_settings(config: Mapping[str, Any] | ConfigDict) -> dict[str, object]:
    """Return the config fields that affect a result, flattened, as JSON values."""
    plain = config.to_dict() if isinstance(config, ConfigDict) else config
    plain = json.loads(json.dumps(plain))
    settings = {}
    for field, value in drop_without_effect(flat_fields(plain)).items():
        section, _, rest = field.partition(".")
        if {section, field} & set(IGNORED_FIELDS):
            continue
        if section in _SECTIONS_BY_NAME:
            chosen = ("name", *plain[section]["name"].split("+"))
            if rest.partition(".")[0] not in chosen:
                continue
        settings[field] = value
    return settings


def changed_setting(result: Result, config: ConfigDict) -> str:
    """Describe a setting that has changed since a result was recorded; else empty.

    Such a result must not be averaged or compared with others of the same config.
    Fields that only one of the two has are ignored.
    """
    current = relevant_settings(config)
    for field, value in result.get("settings", {}).items():
        if field in current and current[field] != value:
            return f"{field} was {value} and is now {current[field]}"
    return ""


# -------------------------------------------------------------------------- reading

_RUN_AGAIN = "delete it and run it again"


def existing_folder(path: str) -> pathlib.Path:
    """Return the folder given with `--results`; `InputError` if it does not exist."""
    folder = absolute(path)
    if not folder.is_dir():
        raise InputError(f"--results={folder} is not a folder of results")
    return folder


def read_recorded(path: pathlib.Path) -> Result:
    """Read the result in a file; `InputError` if it is damaged or incomplete."""
    result = read_json(path, _RUN_AGAIN)
    if problem := _find_problem(result):
        raise InputError(f"{path} is not a valid result: {problem}; {_RUN_AGAIN}")
    return result


def _find_problem(result: Result) -> str:
    if missing := REQUIRED.difference(result):
        return f"missing {', '.join(sorted(missing))}"
    values = result["per_task"]
    if not isinstance(values, list) or len(values) != result["num_tasks"]:
        return f"per_task does not have {result['num_tasks']} values"
    return ""


class Results:
    """All results in a folder.

    Args:
      folder: contains a subfolder per config; need not exist.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.all: list[Result] = []
        self._found: dict[Key, dict[int, BySeed]] = {}
        self._current: dict[Run, dict[int, BySeed]] = {}
        for path in sorted(folder.glob("*/*.json")):
            self._add(path)

    def _add(self, path: pathlib.Path) -> None:
        result = read_recorded(path)
        overrides = tuple(sorted(result["overrides"].items()))
        key = (result["config"], result["arguments"], overrides)
        by_seed = self._found.setdefault(key, {}).setdefault(result["train_steps"], {})
        if result["seed"] in by_seed:
            raise InputError(f"{path} is a second result of {result['command']}")
        by_seed[result["seed"]] = result
        self.all.append(result)

    def by_steps(self, run: Run) -> dict[int, BySeed]:
        """Return the results of a run, by training steps and seed.

        Results with settings that the config no longer has are skipped.
        """
        if run not in self._current:
            overrides = sorted((field, str(value)) for field, value in run.overrides)
            key = (run.config, run.argument, tuple(overrides))
            current: dict[int, BySeed] = {}
            for steps, by_seed in self._found.get(key, {}).items():
                for seed, result in by_seed.items():
                    change = changed_setting(result, load_config(run))
                    if change:
                        name = Job(run, seed, steps).name
                        say(f"skipped the result {name}: {change}; run it again")
                    else:
                        current.setdefault(steps, {})[seed] = result
            self._current[run] = current
        return self._current[run]

    def get(self, job: Job) -> Result | None:
        """Return the result of a job; None if it has none."""
        return self.by_steps(job.run).get(job.steps, {}).get(job.seed)
