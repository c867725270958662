"""False alarms, power and bias of `select` with trained networks.

Each repetition draws new tasks: two normal classes whose means differ by task. The
candidates are small ProtoNets. Those of the null study are the same method with other
seeds, so their expected difference is zero, however much training runs differ. Those
of the other study have a reference that hardly learns.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlti_jax._internal.progress import say, silence
from mlti_jax.api._selection.candidates import parse_candidates
from mlti_jax.api._selection.folds import TaskSet, gather_tasks, make_folds
from mlti_jax.api._selection.run import SelectionRun
from mlti_jax.api._selection.trainer import Fit, Trainer
from mlti_jax.training._config import with_fields

_FEATURES, _PER_CLASS = 8, 20
_TASKS, _NEW_TASKS = 5, 60
_STEPS, _EPISODES, _NEW_EPISODES = 80, 40, 600
_SMALL = {
    "backbone.mlp.hidden": (8,),
    "train.meta_batch_size": 2,
    "eval.tasks_per_pass": 64,
    "task.queries": 5,
    "eval.queries": 5,
    "train.learning_rate": 3e-3,
}
_CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "null": [
        {
            "name": f"seed {seed}",
            "learner": "protonet",
            "strategy": "vanilla",
            "seed": seed,
        }
        for seed in range(4)
    ],
    "one better": [
        {
            "name": name,
            "learner": "protonet",
            "strategy": "vanilla",
            "seed": seed,
            "overrides": {"train.learning_rate": rate},
        }
        for seed, (name, rate) in enumerate(
            [("reference", 1e-5), ("same", 1e-5), ("same too", 1e-5), ("better", 1e-2)]
        )
    ],
}


def draw_tasks(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Return tasks of two classes with means +-w, w = common + own part."""
    common = np.zeros(_FEATURES)
    common[:2] = 0.8
    tasks = {}
    for task in range(number):
        own = np.concatenate([0.3 * rng.normal(size=2), np.zeros(_FEATURES - 2)])
        label = np.repeat([0, 1], _PER_CLASS)
        x = rng.normal(size=(2 * _PER_CLASS, _FEATURES)) * np.array(
            [1.0] * 2 + [3.0] * 6
        )
        x += np.where(label, 1, -1)[:, None] * (common + own)
        tasks[f"task {task:03}"] = (x.astype(np.float32), label)
    return tasks


def _trainer(tasks: TaskSet, candidates: list[dict[str, Any]]) -> Trainer:
    splits = dataclasses.replace(tasks.splits, test=tasks.pool)
    shared = {"shots": 3, "overrides": _SMALL}
    return Trainer(
        parse_candidates(candidates, splits, shared),
        tasks,
        make_folds(tasks, None, None, nested=True),
        "accuracy",
        _EPISODES,
    )


def study(kind: str, repetitions: int, seed: int) -> Mapping[str, Any]:
    """Repeat selections on new data; return rates, power and biases.

    Args:
      kind: `null` or `one better`.
      repetitions: number of selections.
      seed: seed of the data.
    """
    rng = np.random.default_rng(seed)
    trainer: Trainer | None = None
    alarms, better, winners, nested, plain, errors, gaps = ([] for _ in range(7))
    truth, truth_of_folds = [], []
    start = time.monotonic()
    for repetition in range(repetitions):
        tasks = gather_tasks(draw_tasks(rng, _TASKS))
        new = gather_tasks(draw_tasks(rng, _NEW_TASKS))
        if trainer is None:
            trainer = _trainer(tasks, _CANDIDATES[kind])
        # The same parts, so nothing is compiled again; but new seeds, since with few
        # steps much depends on the initialization.
        candidates = [
            dataclasses.replace(
                candidate,
                config=with_fields(
                    candidate.config, {"seed": int(rng.integers(2**31))}
                ),
            )
            for candidate in trainer.candidates
        ]
        trainer = dataclasses.replace(trainer, tasks=tasks, candidates=candidates)
        with silence():
            run = SelectionRun(trainer, _STEPS, _STEPS, 1, True, None, 1)
            result = run.run(None, lambda: 0)
        assert result.estimate is not None
        names = [candidate.name for candidate in trainer.candidates]
        on_new = dataclasses.replace(trainer, episodes=_NEW_EPISODES)
        pool = new.subset(range(_NEW_TASKS))
        for held_out, found in (((), truth), ((0,), truth_of_folds)):
            # With another seed than the runs that were chosen by.
            fit = Fit(names.index(result.winner), held_out, _STEPS, repeat=1)
            experiment = trainer.experiment(fit)
            variables = trainer.train(experiment, fit)
            found.append(on_new.scores(experiment, variables, pool).mean())
        winners.append(result.winner)
        better.append("better" in result.clearly_better)
        alarms.append(bool(set(result.clearly_better) - {"better"}))
        nested.append(result.estimate.score.mean)
        plain.append(result.candidates[result.winner].score.mean)
        errors.append(result.estimate.score.error)
        gaps.append(result.estimate.gain.mean)
        if repetition % 10 == 9:
            seconds = time.monotonic() - start
            say(
                f"{kind}: {repetition + 1} of {repetitions}, {seconds:.0f} s, "
                f"{sum(alarms)} false alarms, power {np.mean(better):.3f}, nested "
                f"{np.mean(nested) - np.mean(truth):+.4f}, a task less "
                f"{np.mean(truth_of_folds) - np.mean(truth):+.4f}"
            )
    bias = np.array(nested) - np.array(truth)
    return {
        "tasks": _TASKS,
        "candidates": len(_CANDIDATES[kind]),
        "steps": _STEPS,
        "repetitions": repetitions,
        "false_alarms": float(np.mean(alarms)),
        "power": float(np.mean(better)) if kind != "null" else None,
        "chooses_best": float(np.mean([w == "better" for w in winners]))
        if kind != "null"
        else None,
        "accuracy_on_new_tasks": float(np.mean(truth)),
        # Of the networks of the cross-validation, which have one task less.
        "accuracy_with_a_task_less": float(np.mean(truth_of_folds)),
        "nested_gain": float(np.mean(gaps)),
        "bias_of_cross_validation": float(np.mean(plain) - np.mean(truth)),
        "bias_of_nested": float(bias.mean()),
        "uncertainty_of_bias": float(bias.std(ddof=1) / np.sqrt(len(bias))),
        "standard_error_of_nested": float(np.mean(errors)),
    }
