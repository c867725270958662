"""Choose a method for given tasks by cross-validation over the tasks."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mlti_jax._internal.checks import check_range
from mlti_jax._internal.progress import silence
from mlti_jax.api._fit import fit
from mlti_jax.api._selection.budget import parse_budget
from mlti_jax.api._selection.candidates import parse_candidates
from mlti_jax.api._selection.folds import choose_ways, gather_tasks
from mlti_jax.api._selection.result import Selection
from mlti_jax.api._selection.run import run_selection
from mlti_jax.data import Splits
from mlti_jax.errors import InputError

_EPISODES = 100


def select(
    tasks: Splits | Mapping[str, Any],
    candidates: Sequence[Any] | None = None,
    *,
    folds: int | None = None,
    metric: str | None = None,
    budget: str | int = "10min",
    seeds: int = 1,
    nested: bool = True,
    episodes: int = _EPISODES,
    workdir: str | pathlib.Path | None = None,
    verbose: bool = True,
    **fit_arguments: Any,
) -> Selection:
    """Choose a method for your tasks by cross-validation over the tasks.

    With few tasks, a single split into training and test tasks is too noisy to choose
    by. Here every task is held out once. All candidates are trained on the same folds
    and tested on the same episodes; those in the worse half are stopped early
    (successive halving). The others are compared with the reference, the first
    candidate whose strategy is `vanilla` (or else the first), by paired differences.
    Their intervals account for the variation between tasks and between episodes, and
    for the number of candidates. The candidate with the best mean is trained again on
    all tasks.

    With `nested`, the choice is repeated without each fold and tested on that fold,
    which gives an unbiased estimate for new tasks. It multiplies the training runs by
    `(folds + 1) / 2`.

    The same arguments and data give the same result; with a time as budget, the
    measured speed determines the number of steps, which `workdir` records. When a
    selection resumes, networks and optimizers that are objects are taken for the same
    as before.

    Args:
      tasks: as in `fit`; of `Splits`, all pools together. Samples that were
        standardized are standardized again on the training tasks of each fold.
      candidates: pairs `(learner, strategy)`, or dictionaries of arguments of `fit`,
        such as `{"learner": "maml", "overrides": {"train.learning_rate": 1e-4}}`; an
        entry `name` sets the name in the table. None: `vanilla` and `mlti` of two
        learners for the kind of data, and `sl` if tasks are drawn from classes.
      folds: number of folds; None: one per task for up to 8 tasks, otherwise 6, or as
        many as leave enough classes for a task in each fold.
      metric: `accuracy` or `log_loss`, for regression `mse`; None for the first.
      budget: a time for everything, such as `90s`, `10min` or `2h`, from which the
        number of training steps is chosen, up to `steps` (2,000 by default); or a
        number of training steps.
      seeds: number of training runs of each candidate on each fold.
      nested: whether to estimate the performance on new tasks.
      episodes: test episodes for each held-out task (for each fold, if tasks are drawn
        from classes).
      workdir: directory in which an interrupted selection resumes, with the scores of
        all training runs, `selection.json`, `selection.png`, `report.html` and the
        fitted learner; None keeps everything in memory.
      verbose: whether to print the plan, progress and the result.
      **fit_arguments: arguments of `fit` for all candidates: `ways`, `shots`, `steps`,
        `seed`, `network`, `optimizer`, `adapted`, `overrides`.

    Raises:
      InputError: before any training, if an argument is invalid, a candidate does not
        apply to the data, or the tasks do not suffice.
    """
    steps, _ = parse_budget(budget)
    largest = fit_arguments.pop("steps", None)
    if steps is not None and largest is not None:
        raise InputError(
            f"steps is {largest} and budget is {budget}, both a number of training "
            "steps; omit steps"
        )
    if largest is None:
        largest = inspect.signature(fit).parameters["steps"].default
    check_range("steps", largest, 2**31 - 1)
    gathered = gather_tasks(tasks)
    if folds is not None:
        check_range("folds", folds, 1000, smallest=2)
    ways = choose_ways(gathered, fit_arguments.pop("ways", None), folds)
    everything = dataclasses.replace(gathered.splits, test=gathered.pool)
    found = parse_candidates(candidates, everything, {**fit_arguments, "ways": ways})
    with silence(not verbose):
        result = run_selection(
            gathered,
            found,
            folds=folds,
            metric=metric,
            budget=budget,
            largest_steps=largest,
            seeds=seeds,
            nested=nested,
            episodes=episodes,
            workdir=workdir,
        )
    if verbose:
        print(result)
    return result
