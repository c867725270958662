"""A finished run, from its work directory: its config, its parts, its network."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from experiments.config import base_config
from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training import Experiment, build
from mlti_jax.training._finished import tested_variables
from mlti_jax.training._workdir import read_json


def load(
    workdir: str | pathlib.Path, data_dir: str | None = None
) -> tuple[Experiment, Variables, int]:
    """The experiment of a finished run, and what it was tested with.

    Args:
      workdir: of the run.
      data_dir: where prepared data lives; None for the default.

    Returns:
      The experiment, its variables, and the step that they are from.
    """
    workdir = pathlib.Path(workdir)
    for name in ("config.json", "results.json"):
        if not (workdir / name).is_file():
            raise InputError(
                f"--workdir={workdir} has no {name}, so it holds no finished run; give "
                "the work directory of one (of a comparison: one strategy's part of it)"
            )
    saved = read_json(workdir / "config.json")
    missing = [name for name in _names(base_config()) if name not in _names(saved)]
    if missing:
        more = f" and {len(missing) - 1} more fields" if missing[1:] else ""
        raise InputError(
            f"the run in {workdir} is of another version of this project: its config "
            f"has no {missing[0]}{more}; run it again, in another --workdir"
        )
    facts = saved.pop("data")
    experiment = build(ConfigDict(_with_tuples(saved)), data_dir)
    if json.loads(json.dumps(experiment.data_facts())) != facts:
        raise InputError(
            f"the run in {workdir} was trained on other data than this; give the "
            "--data_dir that it was run with"
        )
    variables, step = tested_variables(experiment, workdir)
    return experiment, variables, step


def _names(section: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The fields of a config, those of its sections as `train.steps`."""
    names = []
    for name, value in section.items():
        inner = isinstance(value, Mapping | ConfigDict)
        names += _names(value, f"{prefix}{name}.") if inner else [prefix + name]
    return names


def _with_tuples(value: Any) -> Any:
    """JSON's lists as the tuples that configs have."""
    if isinstance(value, dict):
        return {name: _with_tuples(part) for name, part in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(part) for part in value)
    return value
