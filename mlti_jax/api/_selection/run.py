"""The stages of a selection: plan, training runs, results, refit; and its files."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mlti_jax._internal.checks import check_range
from mlti_jax._internal.locks import locked
from mlti_jax._internal.progress import (
    Progress,
    format_seconds,
    say,
    stop_signal,
)
from mlti_jax._internal.storage import (
    make_folder,
    read_json,
    remove_temporary,
    write_json,
)
from mlti_jax.api._fit import from_experiment
from mlti_jax.api._model import FittedLearner, load
from mlti_jax.api._selection.budget import (
    choose_steps,
    describe_rungs,
    measure,
    parse_budget,
)
from mlti_jax.api._selection.candidates import Candidate
from mlti_jax.api._selection.folds import TaskSet, make_folds
from mlti_jax.api._selection.halving import Found, Searcher, count_fits, plan_rungs
from mlti_jax.api._selection.result import (
    Selection,
    candidate_results,
    nested_estimate,
)
from mlti_jax.api._selection.trainer import Fit, Trainer, check_metric, higher_is_better
from mlti_jax.api._serialization import MANIFEST
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.report import write_page
from mlti_jax.training._experiment import checksum

# Share of samples that occur in several tasks, from which a warning is printed.
_REPEATED = 0.01

STATE, RESULT, FIGURE = "select.json", "selection.json", "selection.png"
REPORT = "report.html"

# Runs fits, in any order and perhaps in several processes.
Execute = Callable[[Trainer, list[Fit]], Iterable[tuple[Fit, Found]]]


class SelectionStopped(Interrupted):
    """A signal stopped `select`. Finished fits are saved."""

    def __init__(self, exit_code: int) -> None:
        Exception.__init__(
            self,
            "stopped; finished training runs are saved, run the same command again to "
            "resume",
        )
        self.exit_code = exit_code


def run_selection(
    tasks: TaskSet,
    candidates: Sequence[Candidate],
    *,
    folds: int | None,
    metric: str | None,
    budget: str | int,
    largest_steps: int,
    seeds: int,
    nested: bool,
    episodes: int,
    workdir: str | pathlib.Path | None,
    execute: Execute | None = None,
    jobs: int = 1,
) -> Selection:
    """Run a selection; arguments as in `select`.

    Args:
      tasks: all tasks.
      candidates: the candidates, with configs.
      folds, metric, budget, seeds, nested, episodes, workdir: as in `select`.
      largest_steps: the number of steps that a time budget does not exceed.
      execute: runs fits; None: one after the other in this process.
      jobs: number of processes of `execute`.
    """
    check_range("seeds", seeds, 1000)
    check_range("episodes", episodes, 10**6, smallest=2)
    ways = {candidate.config.task.ways for candidate in candidates}
    classes = max((number for number in ways if number is not None), default=None)
    trainer = Trainer(
        candidates,
        tasks,
        make_folds(tasks, folds, classes, nested=nested),
        check_metric(metric, tasks.splits.setting),
        episodes,
    )
    trainer.check()
    run = SelectionRun(trainer, budget, largest_steps, seeds, nested, execute, jobs)
    folder = None if workdir is None else pathlib.Path(workdir)
    if folder is None:
        with stop_signal() as stopped:
            try:
                return run.run(None, stopped)
            except Interrupted as stop:
                raise KeyboardInterrupt(
                    "stopped, nothing is saved; with a workdir, select can resume"
                ) from stop
    make_folder(folder, f"--workdir={folder}")
    with locked(folder, "--workdir"), stop_signal() as stopped:
        remove_temporary(folder)
        make_folder(folder / "fits")
        remove_temporary(folder / "fits")
        try:
            return run.run(folder, stopped)
        except Interrupted as stop:
            raise SelectionStopped(stop.exit_code) from stop


def _text(adapted: Any) -> list[str] | str | None:
    """Return `adapted` for a file; of a function only that it is one."""
    return "a function" if callable(adapted) else adapted and list(adapted)


def in_this_process(trainer: Trainer, fits: list[Fit]) -> Iterator[tuple[Fit, Found]]:
    """Run fits one after the other."""
    for one in fits:
        yield one, trainer.run(one)


class SelectionRun:
    """The stages of a selection; arguments as in `run_selection`."""

    def __init__(
        self,
        trainer: Trainer,
        budget: str | int,
        largest_steps: int,
        seeds: int,
        nested: bool,
        execute: Execute | None,
        jobs: int,
    ) -> None:
        self._trainer, self._budget, self._largest = trainer, budget, largest_steps
        self._seeds, self._nested = seeds, nested
        self._execute_fits, self._jobs = execute or in_this_process, jobs
        self._steps_given, self._seconds = parse_budget(budget)
        vanilla = [n for n, c in enumerate(trainer.candidates) if c.is_vanilla]
        self._reference = (vanilla or [0])[0]
        self._higher = higher_is_better(trainer.metric)
        self._start = time.monotonic()
        self._fits = 0

    def run(self, folder: pathlib.Path | None, stopped: Callable[[], int]) -> Selection:
        """Plan, search, refit."""
        trainer = self._trainer
        names = [candidate.name for candidate in trainer.candidates]
        steps = self._plan(folder)
        rungs = plan_rungs(len(names), steps)
        total = count_fits(rungs, len(trainer.folds), self._nested, self._seeds)
        say(f"plan: {describe_rungs(rungs)}; about {total} fits")
        searcher = Searcher(
            len(names),
            self._reference,
            len(trainer.folds),
            rungs,
            self._seeds,
            self._higher,
            lambda fits: self._execute(fits, folder, stopped),
        )
        search = searcher.search(self._nested)
        results = candidate_results(searcher, search, names)
        expected = nested_estimate(searcher, search, names)
        winner = search.choice.winner
        score = expected.score if expected else results[names[winner]].score
        selection = Selection(
            winner=names[winner],
            reference=names[self._reference],
            metric=trainer.metric,
            candidates=results,
            estimate=expected,
            learner=self._refit(winner, steps, score, folder),
            folds=self._fold_names(),
            steps=steps,
            fits=self._fits,
        )
        if folder is not None:
            write_json(folder / RESULT, selection.to_dict(), seal=True)
            try:
                selection.plot(folder / FIGURE)
                write_page(selection.page(), folder / REPORT)
            except InputError as error:  # without Matplotlib or Jinja
                say(f"no figure and no report: {error}")
        return selection

    # -------------------------------------------------------------------------- plan

    def _plan(self, folder: pathlib.Path | None) -> int:
        """Return the steps of the last rung: given, saved, or from the time budget."""
        trainer = self._trainer
        folds = len(trainer.folds)
        sets = folds + (folds * (folds - 1) // 2 if self._nested else 0)
        kind = trainer.tasks.kind
        number = len(trainer.tasks.names)
        how = f"leave-one-out over {number} {kind}"
        if folds < number:
            how = f"{folds} folds of {number} {kind}"
        how += ", nested" if self._nested else ""
        say(
            f"{len(trainer.candidates)} candidates, {how}, {self._seeds} seed(s): "
            f"{sets * self._seeds} training sets per candidate; reference "
            f"{trainer.candidates[self._reference].name}, metric {trainer.metric}"
        )
        repeated = trainer.tasks.repeated_share()
        if repeated >= _REPEATED:
            say(
                f"warning: {100 * repeated:.0f} % of the samples also occur in other "
                f"{kind}, so networks have seen samples of held-out {kind}; new {kind} "
                "may be harder than these"
            )
        identity = self._identity()
        if folder is not None and (folder / STATE).exists():
            saved = read_json(folder / STATE, "use another --workdir")
            _check_identity(folder, saved["identity"], identity)
            say(f"resuming {folder}")
            return int(saved["steps"])
        if self._steps_given is not None:
            steps = self._steps_given
        else:
            assert self._seconds is not None
            costs = measure(trainer)
            shapes = len({len(fold) for fold in trainer.folds}) * (1 + self._nested)
            left = self._seconds - (time.monotonic() - self._start)
            steps, note = choose_steps(
                costs,
                left,
                fold_sets=sets * self._seeds,
                shapes=shapes,
                largest=self._largest,
                jobs=self._jobs,
            )
            say(note)
        if folder is not None:
            state = {"identity": identity, "steps": steps}
            write_json(folder / STATE, state, seal=True)
        return steps

    def _identity(self) -> dict[str, Any]:
        """Return what distinguishes this selection from others."""
        trainer = self._trainer
        inputs = trainer.tasks.splits.inputs
        configs = {
            candidate.name: {
                **json.loads(candidate.config.to_json_best_effort()),
                "compilation_cache": "",
                "parts": sorted(candidate.parts),
                "adapted": _text(candidate.parts.get("adapted")),
            }
            for candidate in trainer.candidates
        }
        return {
            "candidates": configs,
            "folds": [list(names) for names in self._fold_names()],
            "metric": trainer.metric,
            "episodes": trainer.episodes,
            "seeds": self._seeds,
            "nested": self._nested,
            "budget": self._budget,
            "largest_steps": self._largest,
            "data": checksum(trainer.tasks.pool),
            # Units and statistics of the raw data.
            "inputs": None if inputs is None else json.loads(inputs.to_json()),
        }

    def _fold_names(self) -> tuple[tuple[str, ...], ...]:
        names = self._trainer.tasks.names
        return tuple(tuple(names[t] for t in fold) for fold in self._trainer.folds)

    # -------------------------------------------------------------------------- fits

    def _execute(
        self, fits: list[Fit], folder: pathlib.Path | None, stopped: Callable[[], int]
    ) -> dict[Fit, Found]:
        """Run the fits that have no saved scores; save each as soon as it is done."""
        found: dict[Fit, Found] = {}
        for one in fits:
            saved = None if folder is None else folder / "fits" / one.file
            if saved is not None and saved.exists():
                found[one] = read_scores(saved)
        missing = [one for one in fits if one not in found]
        steps = fits[0].steps
        bar = Progress(f"fits of {steps} steps", len(fits), len(found), unit="fit")
        start = time.monotonic()
        for number, (one, scores) in enumerate(
            self._execute_fits(self._trainer, missing), 1
        ):
            found[one] = scores
            if folder is not None:
                write_scores(folder / "fits" / one.file, scores)
            bar.update(1)
            if signal := stopped():
                bar.close()
                raise SelectionStopped(128 + signal)
            if number == 1:
                seconds = time.monotonic() - start
                left = format_seconds(seconds * (len(missing) - 1) / self._jobs)
                say(
                    f"the first of {len(missing)} fits of {steps} steps took "
                    f"{seconds:.1f} s, with compilation; at most {left} left for them"
                )
        bar.close()
        self._fits += len(fits)
        return found

    # ------------------------------------------------------------------------ results

    def _refit(
        self, winner: int, steps: int, score: Any, folder: pathlib.Path | None
    ) -> FittedLearner:
        """Return the winner, trained on all tasks; its result is the estimate."""
        splits = self._trainer.tasks.refit_splits()
        candidate = self._trainer.candidates[winner]
        saved = None if folder is None else folder / "learner"
        finished = saved is not None and (saved / MANIFEST).is_file()
        if saved is not None and finished and not candidate.parts:
            return dataclasses.replace(load(saved), splits=splits)
        say(f"training {candidate.name} on all {self._trainer.tasks.kind}")
        experiment, variables = self._trainer.refit(winner, steps)
        result = {
            **experiment.description(),
            "split": "cross-validation",
            "metric": self._trainer.metric,
            "step": steps,
            "train_steps": steps,
            "checkpoint": "last",
            "mean": score.mean,
            "ci95": score.half_width,
            "num_tasks": len(self._trainer.folds),
            "per_task": [],
        }
        fitted = dataclasses.replace(
            from_experiment(experiment, variables, result), splits=splits
        )
        if saved is not None:
            fitted.save(saved)
        return fitted


def _check_identity(
    folder: pathlib.Path, saved: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    given = json.loads(json.dumps(given))
    for name in given:
        if saved.get(name) != given[name]:
            raise InputError(
                f"{folder} holds a selection with other {name}; use another --workdir, "
                "or the same arguments and data to resume it"
            )


def write_scores(path: pathlib.Path, scores: Found) -> None:
    """Save the scores of a fit."""
    value = {str(fold): np.asarray(array).tolist() for fold, array in scores.items()}
    write_json(path, value, seal=True)


def read_scores(path: pathlib.Path) -> Found:
    """Read the scores of a fit."""
    value = read_json(path, "remove it and run the same command again")
    return {int(fold): np.asarray(array, np.float64) for fold, array in value.items()}
