"""Training runs of a selection as jobs: each job runs a share of them."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from absl import logging
from ml_collections import ConfigDict

from experiments import cli
from experiments.sweeps.command import Place
from experiments.sweeps.executors import ENDED, FOLDER, Local, Slurm, Submission
from mlti_jax import data
from mlti_jax._internal.progress import say, stop_signal
from mlti_jax.api._selection.candidates import Candidate
from mlti_jax.api._selection.folds import TaskSet, gather_tasks
from mlti_jax.api._selection.halving import Found
from mlti_jax.api._selection.run import read_scores, write_scores
from mlti_jax.api._selection.trainer import Fit, Trainer
from mlti_jax.errors import InputError, Interrupted

TAIL = 12  # lines of the output of a failed job that are printed
SECONDS_TO_APPEAR = 15.0  # of a file that another node has written


class Recipe(NamedTuple):
    """What a job needs to run fits; it can be pickled.

    Attributes:
      candidates: names, configs, and whether the average is that of `fit`.
      dataset: options of the dataset.
      data_dir: folder of prepared datasets.
      folds: positions of the tasks of each fold.
      metric: what is measured.
      episodes: test episodes per held-out task.
      compilation_cache: as in a config.
    """

    candidates: tuple[tuple[str, dict[str, Any], bool], ...]
    dataset: dict[str, Any]
    data_dir: str | None
    folds: tuple[tuple[int, ...], ...]
    metric: str
    episodes: int
    compilation_cache: str

    def trainer(self) -> Trainer:
        """Load the data, and return the trainer."""
        candidates = [
            Candidate(name, ConfigDict(fields), uses_default_ema=default)
            for name, fields, default in self.candidates
        ]
        tasks = load_tasks(self.dataset, self.data_dir)
        return Trainer(candidates, tasks, self.folds, self.metric, self.episodes)


def load_tasks(dataset: dict[str, Any], data_dir: str | None) -> TaskSet:
    """Return all tasks of a dataset, given by the options of a config."""
    options = dict(dataset)
    return gather_tasks(data.load(options.pop("name"), data_dir=data_dir, **options))


class RunFits:
    """Runs fits as a job of submitit, which can requeue it."""

    def __call__(
        self, recipe: Recipe, fits: list[Fit], folder: pathlib.Path, place: Place
    ) -> tuple[int, str]:
        """Run the fits that have no scores yet.

        Args:
          recipe: candidates and data.
          fits: the fits of this job.
          folder: where the scores are saved, a file per fit.
          place: where this job runs.

        Returns:
          An exit code, and the message of an error.
        """
        logging.set_verbosity(logging.ERROR)
        cli.use_compilation_cache(recipe.compilation_cache)
        with stop_signal() as stopped:
            place.enter()
            try:
                trainer = recipe.trainer()
                for fit in fits:
                    if stopped():
                        break
                    path = folder / fit.file
                    if not path.exists():
                        write_scores(path, trainer.run(fit))
                code = 128 + stopped() if stopped() else 0
            except Interrupted as stop:
                code = stop.exit_code
            except InputError as error:
                return 2, str(error)
        if code:
            place.wait_for_the_end()
        return code, ""

    def checkpoint(self, *arguments: Any) -> Any:
        """Return the submission that runs the fits which are missing then."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(RunFits(), *arguments)


class Shares:
    """Runs fits in jobs; see `mlti_jax.api._selection.run.Execute`.

    Args:
      dataset: options of the dataset.
      data_dir: folder of prepared datasets.
      compilation_cache: as in a config.
      workdir: work directory of the selection.
      executor: runs the jobs.
      jobs: into how many jobs the fits are divided.
    """

    def __init__(
        self,
        dataset: dict[str, Any],
        data_dir: str | None,
        compilation_cache: str,
        workdir: pathlib.Path,
        executor: Local | Slurm,
        jobs: int,
    ) -> None:
        self._dataset, self._data_dir = dataset, data_dir
        self._cache = compilation_cache
        self._workdir, self._folder = workdir, workdir / "fits"
        self._executor, self._jobs = executor, jobs

    def __call__(
        self, trainer: Trainer, fits: list[Fit]
    ) -> Iterator[tuple[Fit, Found]]:
        """Run fits; yield the scores of each as soon as they are there.

        Raises:
          Interrupted: after a signal.
          InputError: if a job failed.
        """
        missing = list(fits)
        recipe = self._recipe(trainer)
        with stop_signal() as stopped:
            records = (self._workdir / FOLDER).glob("fits*.json")
            if active := self._executor.find([path.stem for path in records]):
                say("waiting for jobs of this selection that already run")
                yield from self._collect(missing, active, stopped)
            while missing:
                before = len(missing)
                active = self._submit(recipe, missing)
                yield from self._collect(missing, active, stopped)
                if len(missing) == before:
                    raise InputError(
                        "the jobs ended without a result; their output is in "
                        f"{self._workdir / FOLDER}"
                    )

    def _recipe(self, trainer: Trainer) -> Recipe:
        return Recipe(
            tuple(
                (each.name, each.config.to_dict(), each.uses_default_ema)
                for each in trainer.candidates
            ),
            self._dataset,
            self._data_dir,
            tuple(tuple(fold) for fold in trainer.folds),
            trainer.metric,
            trainer.episodes,
            self._cache,
        )

    def _submit(self, recipe: Recipe, fits: list[Fit]) -> list[Submission]:
        # One after the other, so each job gets fits of all candidates.
        shares = [fits[number :: self._jobs] for number in range(self._jobs)]
        arguments = {
            f"fits{number}": (recipe, share, self._folder)
            for number, share in enumerate(shares)
            if share
        }
        return self._executor.submit(RunFits(), arguments)

    def _collect(
        self,
        missing: list[Fit],
        active: list[Submission],
        stopped: Callable[[], int],
    ) -> Iterator[tuple[Fit, Found]]:
        """Yield scores, and remove their fits from `missing`, until the jobs ended."""
        try:
            while active:
                states = self._executor.states(active)
                ended = [each for each in active if states.get(each.name) in ENDED]
                active = [each for each in active if each not in ended]
                self._pause(stopped, 0.0 if ended else self._executor.poll_seconds)
                answers = [self._answer(each, states[each.name]) for each in ended]
                for fit in list(missing):
                    if (path := self._folder / fit.file).exists():
                        missing.remove(fit)
                        yield fit, read_scores(path)
                for each, (code, message) in zip(ended, answers, strict=True):
                    self._check(each, code, message)
                if number := stopped():
                    done = self._executor.stop(active)
                    if self._executor.is_slurm:
                        say(done)
                    active = []
                    raise Interrupted(number, 0)
        finally:
            if active:
                self._executor.end(active)

    def _pause(self, stopped: Callable[[], int], seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not stopped():
            time.sleep(min(left, 0.1))

    def _answer(self, ended: Submission, state: str) -> tuple[int | None, str]:
        by_itself = self._executor.is_slurm and state == "COMPLETED"
        deadline = time.monotonic() + SECONDS_TO_APPEAR * by_itself
        while (answer := ended.answer()) is None and time.monotonic() < deadline:
            time.sleep(0.5)
        return answer or (None, "")

    def _check(self, ended: Submission, code: int | None, message: str) -> None:
        if code == 0:
            return
        if message:
            raise InputError(message)
        if code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
            raise Interrupted(code - 128, 0)
        tail = "\n".join(ended.output().splitlines()[-TAIL:])
        raise InputError(
            f"job {ended.id} of the selection was ended, possibly because it ran out "
            f"of memory; the end of its output:\n{tail}"
        )
