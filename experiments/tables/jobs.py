"""From the cells of tables to jobs: what is to be run, by which command."""

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

# Fields that name the folder of a checkpoint of ALBERT.
ALBERT_FIELDS = ("backbone.albert.pretrained", "dataset.tokenizer")


@functools.cache
def paper_config(run: Run) -> ConfigDict:
    """The config of a run, with the paper's steps; unknown fields are refused."""
    module = importlib.import_module(f"experiments.configs.{run.config}")
    config = module.get_config(run.argument)
    config.update_from_flattened_dict(dict(run.overrides))
    return config


@dataclasses.dataclass(frozen=True)
class Job:
    """A run with its seed.

    Attributes:
      run: what is run.
      seed: of initialisation and training.
      steps: training steps.
    """

    run: Run
    seed: int
    steps: int

    @property
    def has_paper_steps(self) -> bool:
        """Whether it is trained for as long as in the paper."""
        return self.steps == paper_config(self.run).train.steps

    @property
    def name(self) -> str:
        """For files and people: `metabolism/paper-maml-mlti-steps5000-seed0`, say."""
        steps = "" if self.has_paper_steps else f"-steps{self.steps}"
        return f"{self.run.name}{steps}-seed{self.seed}"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where jobs find and leave things.

    Attributes:
      workdir: holds a work directory for each job, and `logs/`.
      data_dir: where prepared data lives; None for the default.
      albert: the folder of a checkpoint of ALBERT, if there is one.
    """

    workdir: pathlib.Path | None = None
    data_dir: pathlib.Path | None = None
    albert: pathlib.Path | None = None

    def of(self, job: Job) -> pathlib.Path:
        """The work directory of a job."""
        return self.workdir / job.name

    def log(self, job: Job) -> pathlib.Path:
        """Where a job's output goes."""
        return self.workdir / "logs" / f"{job.name}.txt"


def arguments(job: Job, workdir: object, data_dir: object, albert: object) -> list[str]:
    """What follows `python` in the command of a job.

    Args:
      job: the job.
      workdir, data_dir, albert: paths, or words in their place; no flag for
        `data_dir=None`.
    """
    run = job.run
    fields = [("seed", job.seed), *run.overrides]
    if not job.has_paper_steps:
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


def command_to_type(job: Job) -> str:
    """The command of a job, with words for the paths, quoted for a shell."""
    words = arguments(job, workdir="DIR", data_dir="DATA", albert="ALBERT")
    return shlex.join(["python", *words])


def planned(
    cells: Iterable[Cell],
    *,
    seeds: int,
    steps: int | None = None,
    disjoint: bool = False,
    albert: bool = False,
    only: Iterable[str] = (),
) -> list[Job]:
    """The jobs that make cells, each once.

    Args:
      cells: of one table or several.
      seeds: how many seeds, from 0.
      steps: training steps; None for the paper's.
      disjoint: molecules with the split `disjoint` instead of the paper's.
      albert: Huffpost with the paper's encoder instead of the light one.
      only: words with which a part of the name must begin, each of them.
    """
    other = {"split": disjoint, "encoder": not albert}
    runs = {}
    for cell in cells:
        if cell.is_given:
            variant = cell.column.variant
            is_other = variant is not None and other[variant.argument]
            runs[cell.other_run if is_other else cell.run] = True
    jobs = [
        Job(run, seed, paper_config(run).train.steps if steps is None else steps)
        for seed in range(seeds)
        for run in runs
    ]
    found = [job for job in jobs if all(matches(job.name, word) for word in only)]
    if not found:
        raise nothing_named(only, jobs[0].name)
    return found


def nothing_named(only: Iterable[str], example: str) -> InputError:
    """The error for `--only` with words that no run's name has."""
    return InputError(
        f"no run's name has all of --only={','.join(only)}; names are like {example}, "
        "see --dry_run"
    )


def matches(name: str, word: str) -> bool:
    """Whether a part of a job's name begins with the word, as `anil` in no vanilla."""
    return re.search(rf"(^|[/_-]){re.escape(word)}", name) is not None
