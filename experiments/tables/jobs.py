"""Jobs: the training runs that the cells of tables need, and their commands."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pathlib
import re
import shlex
from collections.abc import Iterable

from ml_collections import ConfigDict

from experiments.paper import Cell, Run
from mlti_jax.errors import InputError

# Config fields that hold the folder of an ALBERT checkpoint.
ALBERT_FIELDS = ("backbone.albert.pretrained", "dataset.tokenizer")


@functools.cache
def load_config(run: Run) -> ConfigDict:
    """Return the config of a run, with its arguments and overrides applied."""
    module = importlib.import_module(f"experiments.configs.{run.config}")
    config = module.get_config(run.argument)
    config.update_from_flattened_dict(dict(run.overrides))
    return config


@dataclasses.dataclass(frozen=True)
class Job:
    """A run with its seed and number of training steps.

    Attributes:
      run: config, learner, strategy and overrides.
      seed: seed of initialization and training.
      steps: training steps.
    """

    run: Run
    seed: int
    steps: int

    @property
    def has_default_steps(self) -> bool:
        """Whether it is trained for as many steps as its config says."""
        return self.steps == load_config(self.run).train.steps

    @property
    def name(self) -> str:
        """Name for files and messages: `metabolism/paper-maml-mlti-steps5000-seed0`."""
        steps = "" if self.has_default_steps else f"-steps{self.steps}"
        return f"{self.run.name}{steps}-seed{self.seed}"

    @property
    def training(self) -> Job | None:
        """The job with the same training that tests on its own dataset.

        None if this job does so itself.
        """
        arguments = tuple(pair for pair in self.run.arguments if pair[0] != "test_on")
        if arguments == self.run.arguments:
            return None
        run = dataclasses.replace(self.run, arguments=arguments)
        return dataclasses.replace(self, run=run)


@dataclasses.dataclass(frozen=True)
class Paths:
    """Folders that jobs read from and write to.

    Attributes:
      workdir: contains a work directory per job, and `logs/`; None if nothing is run.
      data_dir: folder of prepared datasets; None for the default.
      albert: folder of an ALBERT checkpoint, if available.
    """

    workdir: pathlib.Path | None = None
    data_dir: pathlib.Path | None = None
    albert: pathlib.Path | None = None

    def work(self, job: Job) -> pathlib.Path:
        """Return the work directory of a job."""
        return self._root() / job.name

    def log(self, job: Job) -> pathlib.Path:
        """Return the file with the output of a job."""
        return self._root() / "logs" / f"{job.name}.txt"

    def _root(self) -> pathlib.Path:
        if self.workdir is None:
            raise ValueError("no folder for work directories is given")
        return self.workdir


def command_arguments(
    job: Job, workdir: object, data_dir: object, albert: object
) -> list[str]:
    """Return the command of a job, without the leading `python`.

    Args:
      job: the job.
      workdir, data_dir, albert: paths or placeholders. No `--data_dir` if it is None.
    """
    run = job.run
    fields: list[tuple[str, object]] = [("seed", job.seed), *run.overrides]
    if not job.has_default_steps:
        fields.append(("train.steps", job.steps))
    if ("encoder", "albert") in run.variant:
        fields += [(field, albert) for field in ALBERT_FIELDS]
    return [
        "-m",
        "experiments.run",
        f"--config=experiments/configs/{run.config}.py:{run.argument}",
        *(f"--config.{field}={value}" for field, value in fields),
        *([] if data_dir is None else [f"--data_dir={data_dir}"]),
        f"--workdir={workdir}",
    ]


def shell_command(job: Job) -> str:
    """Return the command of a job, quoted for a shell, with placeholders for paths."""
    words = command_arguments(job, workdir="DIR", data_dir="DATA", albert="ALBERT")
    return shlex.join(["python", *words])


def make_jobs(
    cells: Iterable[Cell],
    *,
    seeds: int,
    steps: int | None = None,
    disjoint: bool = False,
    albert: bool = False,
    only: Iterable[str] = (),
) -> list[Job]:
    """Return the jobs that produce the results of cells, without duplicates.

    Args:
      cells: cells of one or several tables.
      seeds: number of seeds, from 0.
      steps: training steps; None for those of the configs.
      disjoint: use the split `disjoint` of NCI and Metabolism.
      albert: use the paper's encoder for Huffpost, instead of the light one.
      only: words; each must be the beginning of a part of the job's name.

    Raises:
      InputError: if no job matches `only`.
    """
    use_alternative = {"split": disjoint, "encoder": not albert}
    runs: dict[Run, None] = {}
    for cell in cells:
        if cell.is_applicable:
            variant = cell.column.variant
            run = cell.run
            if variant is not None and use_alternative[variant.argument]:
                run = cell.alternative_run or run
            runs[run] = None
    jobs = [
        Job(run, seed, load_config(run).train.steps if steps is None else steps)
        for seed in range(seeds)
        for run in runs
    ]
    found = [job for job in jobs if all(matches(job.name, word) for word in only)]
    if not found:
        raise no_match(only, jobs[0].name)
    return found


def no_match(only: Iterable[str], example: str) -> InputError:
    """Return the error for `--only` if no run matches."""
    return InputError(
        f"no run matches --only={','.join(only)}; a name is for example {example}, "
        "see --dry_run"
    )


def matches(name: str, word: str) -> bool:
    """Whether a part of a job's name begins with the word.

    Parts are separated by `/`, `_` and `-`, so `anil` does not match `vanilla`.
    """
    return re.search(rf"(^|[/_-]){re.escape(word)}", name) is not None
