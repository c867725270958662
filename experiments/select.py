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
up to `train.steps` of the config. `--executor=slurm` divides the training runs between
`--jobs` jobs of SLURM, see `docs/clusters.md`.

Writes the scores of every training run, selection.json, selection.png, report.html and
the winner, trained on all tasks (learner/, see `mlti_jax.load`), into the work
directory. The same command resumes an interrupted selection. Python programs call
`mlti_jax.select`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from experiments import cli
from experiments.sweeps import executors
from experiments.sweeps.executors import EXECUTOR, JOBS, check_flags, make_executor
from experiments.sweeps.fits import Shares, load_tasks
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.processes import stop_with_parent
from mlti_jax.api._selection.candidates import (
    Candidate,
    check_names,
    check_pair,
    default_pairs,
)
from mlti_jax.api._selection.folds import TaskSet, choose_ways
from mlti_jax.api._selection.run import FIGURE, run_selection
from mlti_jax.errors import InputError

flags.declare_key_flag("data_dir")
flags.adopt_module_key_flags(executors)
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
JOBS_IN_SLURM = 8  # without --jobs


def main() -> None:
    """Choose between the candidates of a config."""
    config, workdir = CONFIG.value, absolute(WORKDIR.value)
    if config is None or not WORKDIR.value:
        missing = CONFIG if config is None else WORKDIR
        raise InputError(f"--{missing.name} is missing; see --help")
    check_flags()
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
    tasks = load_tasks(dataset, DATA_DIR.value)
    candidates = [
        _candidate(learner, strategy, tasks)
        for learner, strategy in pairs or default_pairs(tasks.splits.setting)
    ]
    # One run after the other needs no jobs: data and programs stay in this process.
    execute, jobs = None, JOBS.value or 1
    if EXECUTOR.value == "slurm" or jobs > 1:
        jobs = JOBS.value or JOBS_IN_SLURM
        execute = Shares(
            dataset,
            DATA_DIR.value,
            config.compilation_cache,
            workdir,
            make_executor(workdir),
            jobs,
        )
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
        execute=execute,
        jobs=jobs,
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


if __name__ == "__main__":
    sys.exit(cli.run(main, __doc__))
