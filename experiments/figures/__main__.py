"""The paper's figures, from our runs: `python -m experiments.figures --figure=NAME`.

Examples, from the root of the project:

  What figures there are, and how many points of `task_numbers` have results:
    python -m experiments.figures --list

  task_numbers: accuracy against the number of training tasks, with 95 % intervals
  (Figs. 2, 4 and 5), from the results that there are:
    python -m experiments.figures --figure=task_numbers --output=DIR

  What would be run for it; run what is missing (see `python -m experiments.tables`,
  whose runs and results these are):
    python -m experiments.figures --figure=task_numbers --dry_run --workdir=RUNS
    python -m experiments.figures --figure=task_numbers --run --workdir=RUNS \\
      --data_dir=DATA --seeds=3 --steps=3000 --only=rainbow,protonet

  tsne: 3 tasks, and 300 that are interpolated between them, in a plane (Fig. 3). In the
  features of a finished run's network; or before training, of any config, by default
  RainbowMNIST from the images that come with the install; or raw:
    python -m experiments.figures --figure=tsne --workdir=RUN --output=DIR
    python -m experiments.figures --figure=tsne --output=DIR --data_dir=DATA \\
      --config=experiments/configs/isic.py:learner=protonet
    python -m experiments.figures --figure=tsne --features=inputs --output=DIR

  sheets: pairs of samples and their mixtures, a picture for each dataset that there is
  data of, or of those that are named:
    python -m experiments.figures --figure=sheets --output=DIR --data_dir=DATA \\
      --datasets=rainbow_mnist,pose
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from experiments import cli as command_line
from experiments import finished_run
from experiments.configs import rainbow_mnist
from experiments.figures import sheets as figure_sheets
from experiments.figures import task_numbers as figure_task_numbers
from experiments.figures import tsne as figure_tsne
from experiments.figures.tsne import Features
from experiments.paper.tables import LEARNERS, STRATEGIES
from experiments.tables import flags as run_flags
from experiments.tables.flags import ONLY, SEEDS, STEPS
from experiments.tables.jobs import planned
from experiments.tables.store import Results
from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.command_line import DATA_DIR, output_folder
from mlti_jax._internal.progress import say
from mlti_jax.data import DATASETS
from mlti_jax.errors import InputError
from mlti_jax.training import Experiment, build

FIGURES = {
    "task_numbers": "accuracy against the number of training tasks",
    "tsne": "original and interpolated tasks in a plane (Fig. 3)",
    "sheets": "pairs of samples and their mixtures, for each dataset",
}

flags.declare_key_flag("data_dir")
flags.adopt_module_key_flags(run_flags)
# Other tools have flags of these names too, for the same things.
SHARED = {"allow_override": True}
FIGURE = flags.DEFINE_string("figure", None, f"One of {', '.join(FIGURES)}.")
LIST = flags.DEFINE_bool("list", False, "List the figures, and exit.", **SHARED)
OUTPUT = flags.DEFINE_string("output", None, "A folder for pictures.", **SHARED)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "tsne: of a finished run. --run: of all runs.", **SHARED
)
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "tsne: as in experiments.run.", **SHARED
)
FEATURES = flags.DEFINE_enum(
    "features", "network", ["network", "inputs"], "tsne: what stands for a sample."
)
DATASETS_SHOWN = flags.DEFINE_list(
    "datasets", None, "sheets: names of datasets; all that are prepared if none."
)


# -------------------------------------------------------------------- task_numbers


def task_numbers() -> None:
    """Plans, runs or draws the figures of task numbers."""
    if not run_flags.is_to_run("seeds", "jobs", "only"):
        folder = output_folder(OUTPUT.value)
        _draw_task_numbers(Results(run_flags.results_folder()), folder)
        return
    cells = [cell for figure in figure_task_numbers.FIGURES for cell in figure.cells()]
    jobs = planned(cells, seeds=SEEDS.value, steps=STEPS.value, only=ONLY.value)
    run_flags.run_or_tell(jobs, WORKDIR.value)


def _draw_task_numbers(results: Results, folder: pathlib.Path) -> None:
    written = []
    for figure in figure_task_numbers.FIGURES:
        path = folder / f"{figure.file_stem}.png"
        panels = figure_task_numbers.draw(figure, results, path, STEPS.value)
        for panel in panels:
            curves = figure_task_numbers.points(panel, results, STEPS.value)
            notes = figure_task_numbers.notes(panel, results, STEPS.value)
            print(f"\n{panel.label}; {notes}")
            print(figure_task_numbers.table(panel, curves))
        if panels:
            written.append(path)
        else:
            say(f"{figure.name} (Fig. {figure.number}) has no results, and no picture")
    if not written:
        steps = f" of {STEPS.value} steps" if STEPS.value else ""
        raise InputError(
            f"there are no results{steps} for task_numbers in {results.folder}; --run "
            "makes them, --dry_run says which"
        )
    _tell(written)


# ---------------------------------------------------------------------------- tsne


def tsne() -> None:
    """Draws original and interpolated tasks."""
    folder = output_folder(OUTPUT.value)
    experiment, features = _experiment_and_features()
    originals, vectors = figure_tsne.task_vectors(experiment, features)
    print(figure_tsne.distances(originals, vectors))
    config = experiment.config
    source = f" ({experiment.splits.source})" if experiment.splits.source else ""
    ways = "" if config.task.ways == 1 else f"{config.task.ways}-way "
    title = (
        f"{experiment.splits.name}{source}, {ways}{config.task.shots}-shot, "
        f"{LEARNERS.get(config.learner.name, config.learner.name)}, "
        f"{STRATEGIES.get(config.strategy.name, config.strategy.name)}\n{features.name}"
    )
    path = folder / f"tsne_{config.dataset.name}.png"
    figure_tsne.draw(originals, vectors, path, title, config.seed)
    _tell([path])


def _experiment_and_features() -> tuple[Experiment, Features]:
    """What is drawn, by the flags."""
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
        raise InputError("--workdir tells the config of its run; leave out --config")
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


def sheets() -> None:
    """Draws a sheet for each dataset."""
    folder = output_folder(OUTPUT.value)
    for name in DATASETS_SHOWN.value or ():
        if name not in DATASETS:
            raise unknown_name("dataset", name, DATASETS)
    written = []
    for name in DATASETS_SHOWN.value or DATASETS:
        try:
            experiment = figure_sheets.dataset_experiment(name, DATA_DIR.value)
        except InputError as error:
            if DATASETS_SHOWN.value:
                raise
            say(f"{name}: no sheet, {str(error).partition('. ')[0]}")
            continue
        if reason := figure_sheets.reason_to_skip(experiment):
            say(f"{name}: no sheet, {reason}")
            continue
        written.append(folder / f"sheet_{name}.png")
        figure_sheets.sheet(experiment, written[-1])
    if written:
        _tell(written)


# ---------------------------------------------------------------------------- main


def main(argv: list[str]) -> None:
    """Lists, plans, runs or draws."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}; see --help")
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    if LIST.value:
        print("\n".join(f"{name:13} {text}" for name, text in FIGURES.items()))
        print("\ntask_numbers:")
        print(figure_task_numbers.listing(Results(run_flags.results_folder())))
        return
    if FIGURE.value is None:
        raise InputError(f"--figure is missing; choose one of: {', '.join(FIGURES)}")
    if FIGURE.value not in FIGURES:
        raise unknown_name("figure", FIGURE.value, FIGURES)
    if FIGURE.value != "task_numbers" and run_flags.is_to_run("seeds", "jobs", "only"):
        raise InputError(
            f"--run and --dry_run are for --figure=task_numbers; {FIGURE.value} needs "
            "no runs of its own"
        )
    {"task_numbers": task_numbers, "tsne": tsne, "sheets": sheets}[FIGURE.value]()


def _tell(paths: list[pathlib.Path]) -> None:
    print("\npictures: " + ", ".join(map(str, paths)))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
