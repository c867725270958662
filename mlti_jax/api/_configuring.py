"""From the arguments of `fit` to a config: what is given, and what suits the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from mlti_jax.data import Splits
from mlti_jax.training._config import base_config, flat_fields, set_fields

SHOTS, QUERIES = 5, 10  # a class, where there are enough samples
VALIDATIONS = 10  # in the course of a run


def choose_config(
    splits: Splits, arguments: Mapping[str, Any], overrides: Mapping[str, Any]
) -> ConfigDict:
    """The config of a run; network, interpolation and ways may be left open.

    What it leaves open is filled in by `training.defaults`.

    Args:
      splits: the data.
      arguments: of `fit`, by the names of fields; None where not given.
      overrides: further fields, which take precedence.
    """
    config = open_config(splits.name)
    given = {name: v for name, v in arguments.items() if v is not None}
    given |= flat_fields(overrides)
    fields = {"learner.name": _choose_learner(splits), **given}
    shots = fields.setdefault("task.shots", _choose_shots(splits))
    if isinstance(shots, int):  # else refused below
        left = _smallest(splits.train) - shots
        fields.setdefault("task.queries", max(1, min(QUERIES, left)))
        left = min(map(_smallest, _pools(splits)[1:]), default=QUERIES + shots) - shots
        fields.setdefault("eval.queries", max(1, min(QUERIES, left)))
    steps = fields.get("train.steps")
    if isinstance(steps, int):
        fields.setdefault("eval.every", max(1, steps // VALIDATIONS))
    set_fields(config, fields)
    config.lock()
    return config


def open_config(name: str) -> ConfigDict:
    """A config that leaves open what the data of that name should choose."""
    config = base_config()
    config.dataset.name = name
    config.interpolation = {"method": "", "layers": ()}
    config.task = {"ways": placeholder(int), "shots": SHOTS, "queries": QUERIES}
    return config


def _choose_learner(splits: Splits) -> str:
    """ProtoNet, which takes any number of classes; MAML for targets."""
    return "maml" if splits.setting == "regression" else "protonet"


def _choose_shots(splits: Splits) -> int:
    """Five; of the smallest groups, half for the support set."""
    return max(1, min(SHOTS, min(map(_smallest, _pools(splits))) // 2))


def _pools(splits: Splits) -> list:
    pools = (splits.train, splits.validation, splits.test)
    return [pool for pool in pools if pool is not None]


def _smallest(pool: Any) -> int:
    return int(np.asarray(pool.count).min())
