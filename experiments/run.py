"""Train and evaluate: `python -m experiments.run --config=FILE --workdir=DIR`.

Examples, from the root of the project:

  The paper's RainbowMNIST experiment, with MNIST's IDX files in DATA/mnist:
    python -m experiments.run --workdir=/tmp/rainbow --data_dir=DATA \\
      --config=experiments/configs/rainbow_mnist.py:learner=maml,strategy=mlti

  The same with another seed and fewer steps (any field of the config can be set):
    ... --config.seed=1 --config.train.steps=2000

  Vanilla and MLTI side by side in a few minutes, on data that comes with the install:
    python -m experiments.run --config=experiments/configs/quickstart.py \\
      --workdir=/tmp/quickstart

  Test a finished run on the classes of another dataset, without training again:
    ... --config=experiments/configs/mini_imagenet.py:learner=maml,test_on=dermnet \\
      --trained=/tmp/mini --workdir=/tmp/mini_to_dermnet

  Learners, strategies, backbones, datasets and configs:
    python -m experiments.run --list

  On several machines, the same command on each of them. SLURM, Open MPI and TPU pods
  are recognized; elsewhere, give the address of process 0, the number of processes, and
  the index of each (docs/scaling.md):
    ... --distributed=HOST:PORT,NUM,ID

The run writes config.json, metrics.jsonl, tensorboard/, checkpoints/, results.json and
report.html into the work directory. The same command resumes an interrupted run and
skips a finished one. The user's cache directory keeps compiled programs for the next
start (`--config.compilation_cache=off` to disable it).
"""

from __future__ import annotations

import sys
from typing import Any

from absl import flags, logging
from ml_collections import config_flags

from experiments import cli
from experiments.side_by_side import run_side_by_side
from mlti_jax import parallel, report
from mlti_jax._internal import distributed
from mlti_jax._internal.command_line import DATA_DIR, describe
from mlti_jax._internal.processes import stop_with_parent
from mlti_jax._internal.progress import silence
from mlti_jax.errors import InputError
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._metrics import summary

flags.declare_key_flag("data_dir")
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A file in experiments/configs, and its arguments after a colon."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Directory for the outputs of the run.")
DISTRIBUTED = flags.DEFINE_string(
    "distributed",
    None,
    "HOST:PORT,NUM,ID: address of process 0, number of processes, index of this one.",
)
TRAINED = flags.DEFINE_string(
    "trained",
    None,
    "Work directory of a finished run of this config with other test tasks: test it.",
)
LIST = flags.DEFINE_bool("list", False, "List the available names, and exit.")


def main() -> None:
    """Run a config, or the strategies that it compares."""
    if LIST.value:
        print(cli.listing())
        return
    config, workdir = CONFIG.value, WORKDIR.value
    if config is None or not workdir:
        missing = CONFIG if config is None else WORKDIR
        raise InputError(f"--{missing.name} is missing; see --help, or --list")
    stop_with_parent()
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing optional parts.
    parallel.use_all_cores()
    cli.use_compilation_cache(config.compilation_cache)
    cluster = distributed.find_cluster(DISTRIBUTED.value)
    with distributed.joined(cluster, describe):
        _run(config, workdir)


def _run(config: Any, workdir: str) -> None:
    with silence(not distributed.is_first()):
        if config.get("compare"):
            if TRAINED.value:
                raise InputError(
                    f"--trained={TRAINED.value} is a single run, and this config "
                    f"compares {', '.join(config.compare)}; leave it out"
                )
            run_side_by_side(config, workdir, DATA_DIR.value)
            return
        experiment = build(config, DATA_DIR.value)
        result = train_and_evaluate(experiment, workdir, TRAINED.value)
        if distributed.is_first():
            print(summary(result))
            report.write_run(experiment.on_this_process(), result, workdir)


if __name__ == "__main__":
    sys.exit(cli.run(main, __doc__))
