"""The paper's figures from our runs: `python -m experiments.figures --figure=NAME`.

Examples, from the root of the project:

  List the figures, and how many points of `task_numbers` have results:
    python -m experiments.figures --list

  task_numbers: accuracy against the number of training tasks, with 95 % intervals
  (Figs. 2, 4 and 5), from the available results:
    python -m experiments.figures --figure=task_numbers --output=DIR

  Show the runs that it needs, or run those that are missing. The runs and results are
  shared with `python -m experiments.tables`:
    python -m experiments.figures --figure=task_numbers --dry_run --workdir=RUNS
    python -m experiments.figures --figure=task_numbers --run --workdir=RUNS \\
      --data_dir=DATA --seeds=3 --steps=3000 --only=rainbow,protonet

  The same in SLURM, see docs/clusters.md:
    ... --executor=slurm --partition=gpu --gpus=1

  curves: learning curves of vanilla and MLTI, one figure per dataset, from the
  available results:
    python -m experiments.figures --figure=curves --output=DIR

  tsne: t-SNE of 3 tasks and of 300 tasks interpolated between them (Fig. 3). Uses the
  features of a finished run's network, or of an untrained network of any config (by
  default RainbowMNIST with the images included in the install), or raw inputs:
    python -m experiments.figures --figure=tsne --workdir=RUN --output=DIR
    python -m experiments.figures --figure=tsne --output=DIR --data_dir=DATA \\
      --config=experiments/configs/isic.py:learner=protonet
    python -m experiments.figures --figure=tsne --features=inputs --output=DIR

  sheets: pairs of samples and their mixtures, one figure per prepared dataset, or for
  the given datasets:
    python -m experiments.figures --figure=sheets --output=DIR --data_dir=DATA \\
      --datasets=rainbow_mnist,pose
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from experiments import cli, finished_run
from experiments.configs import rainbow_mnist
from experiments.figures import curves, sheets, task_numbers, tsne
from experiments.figures.tsne import Features
from experiments.paper.tables import LEARNERS, STRATEGIES
from experiments.tables import launch
from experiments.tables.jobs import make_jobs
from experiments.tables.launch import ONLY, SEEDS, STEPS
from experiments.tables.results import Results
from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.command_line import DATA_DIR, output_folder
from mlti_jax._internal.progress import say
from mlti_jax.data._registry import DATASETS
from mlti_jax.errors import InputError
from mlti_jax.training import Experiment, build

FIGURES = {
    "task_numbers": "accuracy against the number of training tasks",
    "curves": "learning curves of vanilla and MLTI, one figure per dataset",
    "tsne": "t-SNE of original and interpolated tasks (Fig. 3)",
    "sheets": "pairs of samples and their mixtures, one sheet per dataset",
}

flags.declare_key_flag("data_dir")
flags.adopt_module_key_flags(launch)
# Other commands define flags with the same names and meanings.
SHARED = {"allow_override": True}
FIGURE = flags.DEFINE_string("figure", None, f"One of {', '.join(FIGURES)}.")
LIST = flags.DEFINE_bool("list", False, "List the figures and exit.", **SHARED)
OUTPUT = flags.DEFINE_string("output", None, "Directory for the figures.", **SHARED)
WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "tsne: work directory of a finished run. --run: parent directory of all runs.",
    **SHARED,
)
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "tsne: config file, as for experiments.run.", **SHARED
)
FEATURES = flags.DEFINE_enum(
    "features", "network", ["network", "inputs"], "tsne: how samples are represented."
)
DATASETS_SHOWN = flags.DEFINE_list(
    "datasets", None, "sheets: names of datasets; default: all that are prepared."
)


# -------------------------------------------------------------------- task_numbers


def make_task_numbers() -> None:
    """Plans, runs or draws the figures of accuracy against training tasks."""
    if not launch.is_requested("seeds", "only"):
        folder = output_folder(OUTPUT.value)
        _draw_task_numbers(Results(launch.results_folder()), folder)
        return
    cells = [cell for figure in task_numbers.FIGURES for cell in figure.cells()]
    jobs = make_jobs(cells, seeds=SEEDS.value, steps=STEPS.value, only=ONLY.value)
    launch.launch(jobs, WORKDIR.value)


def _draw_task_numbers(results: Results, folder: pathlib.Path) -> None:
    written = []
    for figure in task_numbers.FIGURES:
        path = folder / f"{figure.file_stem}.png"
        panels = task_numbers.draw(figure, results, path, STEPS.value)
        for panel in panels:
            curves = task_numbers.points(panel, results, STEPS.value)
            notes = task_numbers.notes(panel, results, STEPS.value)
            print(f"\n{panel.label}; {notes}")
            print(task_numbers.table(panel, curves))
        if panels:
            written.append(path)
        else:
            say(f"{figure.name} (Fig. {figure.number}) has no results; skipped")
    if not written:
        steps = f" of {STEPS.value} steps" if STEPS.value else ""
        raise InputError(
            f"no results{steps} for task_numbers in {results.folder}; create them with "
            "--run, list the runs with --dry_run"
        )
    _print_paths(written)


# -------------------------------------------------------------------------- curves


def make_curves() -> None:
    """Draw the learning curves of all datasets with results."""
    folder = output_folder(OUTPUT.value)
    results = Results(launch.results_folder())
    written = curves.draw_all(results, folder)
    if not written:
        raise InputError(
            f"no results in {results.folder} have learning curves; create them with "
            "python -m experiments.tables --run"
        )
    _print_paths(written)


# ---------------------------------------------------------------------------- tsne


def make_tsne() -> None:
    """Draw the t-SNE of original and interpolated tasks."""
    folder = output_folder(OUTPUT.value)
    experiment, features = _experiment_and_features()
    originals, vectors = tsne.task_vectors(experiment, features)
    print(tsne.distances(originals, vectors))
    config = experiment.config
    source = f" ({experiment.splits.source})" if experiment.splits.source else ""
    ways = "" if config.task.ways == 1 else f"{config.task.ways}-way "
    title = (
        f"{experiment.splits.name}{source}, {ways}{config.task.shots}-shot, "
        f"{LEARNERS.get(config.learner.name, config.learner.name)}, "
        f"{STRATEGIES.get(config.strategy.name, config.strategy.name)}\n{features.name}"
    )
    path = folder / f"tsne_{config.dataset.name}.png"
    tsne.draw(originals, vectors, path, title, config.seed)
    _print_paths([path])


def _experiment_and_features() -> tuple[Experiment, Features]:
    """Select the experiment and the features by the flags."""
    raw = FEATURES.value == "inputs"
    if WORKDIR.value is None:
        config = CONFIG.value or _default_config()
        experiment = build(config, DATA_DIR.value)
        if raw:
            return experiment, Features(None, "raw inputs")
        variables = experiment.init_state().variables
        return experiment, Features(
            variables, "features of the network before training"
        )
    if CONFIG.value is not None:
        raise InputError("--workdir has the config of its run; leave out --config")
    experiment, variables, step = finished_run.load(WORKDIR.value, DATA_DIR.value)
    if raw:
        return experiment, Features(None, "raw inputs")
    return experiment, Features(
        variables, f"features of the network after {step:,} training steps"
    )


def _default_config() -> ConfigDict:
    config = rainbow_mnist.get_config("learner=protonet,strategy=mlti")
    config.dataset.source = "builtin"
    return config


# -------------------------------------------------------------------------- sheets


def make_sheets() -> None:
    """Draw one sheet per dataset."""
    folder = output_folder(OUTPUT.value)
    for name in DATASETS_SHOWN.value or ():
        if name not in DATASETS:
            raise unknown_name("dataset", name, DATASETS)
    written = []
    for name in DATASETS_SHOWN.value or DATASETS:
        try:
            experiment = sheets.dataset_experiment(name, DATA_DIR.value)
        except InputError as error:
            if DATASETS_SHOWN.value:
                raise
            say(f"{name}: no sheet, {str(error).partition('. ')[0]}")
            continue
        if reason := sheets.reason_to_skip(experiment):
            say(f"{name}: no sheet, {reason}")
            continue
        written.append(folder / f"sheet_{name}.png")
        sheets.sheet(experiment, written[-1])
    if written:
        _print_paths(written)


# ---------------------------------------------------------------------------- main


def main() -> None:
    """List, plan, run or draw figures."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing data.
    if LIST.value:
        print("\n".join(f"{name:13} {text}" for name, text in FIGURES.items()))
        print("\ntask_numbers:")
        print(task_numbers.listing(Results(launch.results_folder())))
        return
    if FIGURE.value is None:
        raise InputError(f"--figure is missing; choose one of: {', '.join(FIGURES)}")
    if FIGURE.value not in FIGURES:
        raise unknown_name("figure", FIGURE.value, FIGURES)
    if FIGURE.value != "task_numbers" and launch.is_requested("seeds", "only"):
        raise InputError(
            f"--run and --dry_run are for --figure=task_numbers; {FIGURE.value} needs "
            "no runs"
        )
    makers = {
        "task_numbers": make_task_numbers,
        "curves": make_curves,
        "tsne": make_tsne,
        "sheets": make_sheets,
    }
    makers[FIGURE.value]()


def _print_paths(paths: list[pathlib.Path]) -> None:
    print("\nfigures: " + ", ".join(map(str, paths)))


if __name__ == "__main__":
    sys.exit(cli.run(main, __doc__))
