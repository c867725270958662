"""Choose a method for your tasks: `python -m experiments.select --config=FILE`.

Cross-validation over the tasks of any config, see `mlti_jax.select`. Examples, from the
root of the project:

  Six assays of NCI and three others, in about ten minutes:
    python -m experiments.select --workdir=/tmp/select_nci --data_dir=DATA \\
      --config=experiments/configs/nci.py:split=disjoint --budget=10min

  Chosen candidates, with 1,000 training steps each, four training runs at a time:
    ... --candidates=protonet:vanilla,protonet:mlti,maml:mlti --budget=1000 --jobs=4

A candidate is LEARNER:STRATEGY; it has the config's settings for this learner and
strategy. All tasks of the dataset are used: those for training, validation and test.
With a time as budget, the number of training steps is chosen from the measured speed,
up to `train.steps` of the config.

Writes the scores of every training run, selection.json, selection.png, report.html and
the winner, trained on all tasks (learner/, see `mlti_jax.load`), into the work
directory. The same command resumes an interrupted selection. Python programs call
`mlti_jax.select`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from experiments import cli
from mlti_jax import data
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.processes import ordered_map, stop_with_parent
from mlti_jax.api._selection.candidates import (
    Candidate,
    check_names,
    check_pair,
    default_pairs,
)
from mlti_jax.api._selection.folds import TaskSet, choose_ways, gather_tasks
from mlti_jax.api._selection.halving import Found
from mlti_jax.api._selection.run import FIGURE, run_selection
from mlti_jax.api._selection.trainer import Fit, Trainer
from mlti_jax.errors import InputError, Interrupted

flags.declare_key_flag("data_dir")
CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "A file in experiments/configs, and its arguments after a colon.",
    allow_override=True,  # Other commands define flags with these names.
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory for the outputs.", allow_override=True
)
CANDIDATES = flags.DEFINE_list(
    "candidates", None, "LEARNER:STRATEGY, with commas; default: a few for the data."
)
BUDGET = flags.DEFINE_string(
    "budget", "10min", "A time such as 90s, 10min or 2h, or steps per training run."
)
FOLDS = flags.DEFINE_integer("folds", None, "Number of folds; default: for the data.")
SEEDS = flags.DEFINE_integer(
    "seeds",
    1,
    "Training runs per candidate and fold.",
    lower_bound=1,
    upper_bound=1000,
    allow_override=True,
)
METRIC = flags.DEFINE_string("metric", None, "accuracy, log_loss or mse.")
EPISODES = flags.DEFINE_integer("episodes", 100, "Test episodes per held-out task.")
NESTED = flags.DEFINE_bool("nested", True, "Estimate the performance on new tasks.")
JOBS = flags.DEFINE_integer(
    "jobs", 1, "Number of parallel training runs.", lower_bound=1, allow_override=True
)


class Recipe(NamedTuple):
    """What a process needs to run fits; it can be pickled.

    Attributes:
      candidates: names, configs, and whether the average is that of `fit`.
      dataset: options of the dataset.
      data_dir: folder of prepared datasets.
      folds: positions of the tasks of each fold.
      metric: what is measured.
      episodes: test episodes per held-out task.
    """

    candidates: tuple[tuple[str, dict[str, Any], bool], ...]
    dataset: dict[str, Any]
    data_dir: str | None
    folds: tuple[tuple[int, ...], ...]
    metric: str
    episodes: int


def main() -> None:
    """Choose between the candidates of a config."""
    config, workdir = CONFIG.value, absolute(WORKDIR.value)
    if config is None or not WORKDIR.value:
        missing = CONFIG if config is None else WORKDIR
        raise InputError(f"--{missing.name} is missing; see --help")
    stop_with_parent()
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing optional parts.
    cli.use_compilation_cache(config.compilation_cache)
    pairs = None
    if CANDIDATES.value is not None:
        pairs = [_parse_pair(text) for text in CANDIDATES.value]
        check_names([f"{learner}:{strategy}" for learner, strategy in pairs])
        for pair in pairs:
            check_pair(*pair, setting="")
    dataset = {k: v for k, v in config.dataset.items() if v is not None}
    tasks = _load(dataset, DATA_DIR.value)
    candidates = [
        _candidate(learner, strategy, tasks)
        for learner, strategy in pairs or default_pairs(tasks.splits.setting)
    ]
    result = run_selection(
        tasks,
        candidates,
        folds=FOLDS.value,
        metric=METRIC.value,
        budget=int(BUDGET.value) if BUDGET.value.isdigit() else BUDGET.value,
        largest_steps=config.train.steps,
        seeds=SEEDS.value,
        nested=NESTED.value,
        episodes=EPISODES.value,
        workdir=workdir,
        execute=_in_processes if JOBS.value > 1 else None,
        jobs=JOBS.value,
    )
    print(result)
    print(f"figure: {workdir / FIGURE}")


def _parse_pair(text: str) -> tuple[str, str]:
    learner, colon, strategy = text.partition(":")
    if not colon:
        raise InputError(
            f"--candidates has {text!r}; expected LEARNER:STRATEGY, such as "
            "protonet:mlti"
        )
    return learner.strip(), strategy.strip()


def _load(dataset: dict[str, Any], data_dir: str | None) -> TaskSet:
    options = dict(dataset)
    return gather_tasks(data.load(options.pop("name"), data_dir=data_dir, **options))


def _candidate(learner: str, strategy: str, tasks: TaskSet) -> Candidate:
    """Return a candidate with the config's settings for its learner and strategy."""
    check_pair(learner, strategy, tasks.splits.setting)
    config = _config_for(learner, strategy)
    with config.unlocked(), config.ignore_type():
        if "compare" in config:
            del config.compare
        config.learner.name, config.strategy.name = learner, strategy
        config.task.ways = choose_ways(tasks, config.task.ways, FOLDS.value)
    # The config of own data has the average of `fit`, which depends on the steps.
    own = config.dataset.name == "own_data"
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    return Candidate(
        f"{learner}:{strategy}",
        config,
        uses_default_ema=own and "train.ema" not in overrides,
    )


def _config_for(learner: str, strategy: str) -> ConfigDict:
    """Return the config of the command line, for another learner and strategy.

    The file may choose other values for them; fields that are set on the command line
    are kept.
    """
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    path, _, argument = path.partition(":")
    spec = importlib.util.spec_from_file_location("config_of_select", path)
    assert spec is not None  # The file was loaded before.
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not inspect.signature(module.get_config).parameters:
        config = module.get_config()
    else:
        kept = [
            part
            for part in argument.split(",")
            if part and part.partition("=")[0] not in ("learner", "strategy")
        ]
        given = [*kept, f"learner={learner}", f"strategy={strategy}"]
        config = module.get_config(",".join(given))
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    config.update_from_flattened_dict(overrides)
    return config.copy_and_resolve_references()


# --------------------------------------------------------------------------- processes


def _in_processes(trainer: Trainer, fits: list[Fit]) -> Iterator[tuple[Fit, Found]]:
    """Run fits in several processes, which load the data themselves."""
    recipe = Recipe(
        tuple(
            (each.name, each.config.to_dict(), each.uses_default_ema)
            for each in trainer.candidates
        ),
        {k: v for k, v in CONFIG.value.dataset.items() if v is not None},
        DATA_DIR.value,
        tuple(tuple(fold) for fold in trainer.folds),
        trainer.metric,
        trainer.episodes,
    )
    work = [(recipe, one, CONFIG.value.compilation_cache) for one in fits]
    found = ordered_map(_run_one, work, JOBS.value, chunk_size=1)
    for one, (scores, exit_code) in zip(fits, found, strict=True):
        if scores is None:
            raise Interrupted(exit_code - 128, 0)
        yield one, scores


_TRAINERS: dict[str, Trainer] = {}


def _run_one(work: tuple[Recipe, Fit, str]) -> tuple[Found | None, int]:
    """Run one fit in a worker; return its scores, or the exit code of a signal."""
    recipe, one, cache = work
    if "only" not in _TRAINERS:
        logging.set_verbosity(logging.ERROR)
        cli.use_compilation_cache(cache)
        candidates = [
            Candidate(name, ConfigDict(fields), uses_default_ema=default)
            for name, fields, default in recipe.candidates
        ]
        _TRAINERS["only"] = Trainer(
            candidates,
            _load(recipe.dataset, recipe.data_dir),
            recipe.folds,
            recipe.metric,
            recipe.episodes,
        )
    try:
        return _TRAINERS["only"].run(one), 0
    except Interrupted as stop:
        return None, stop.exit_code


if __name__ == "__main__":
    sys.exit(cli.run(main, __doc__))
