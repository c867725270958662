"""Load a finished run from its work directory."""

from __future__ import annotations

import json
import pathlib

from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training import Experiment, build
from mlti_jax.training._config import base_config, flat_fields, restore_config
from mlti_jax.training._workdir import read_config, tested_variables


def load(
    workdir: str | pathlib.Path, data_dir: str | None = None
) -> tuple[Experiment, Variables, int]:
    """Return the experiment of a finished run and the variables that it tested.

    Args:
      workdir: the run's work directory.
      data_dir: directory of prepared data; None for the default.

    Returns:
      The experiment, its variables, and the step at which they were saved.

    Raises:
      InputError: the directory has no finished run, or the run is of a version whose
        config lacks a field, or its data differs from the data found.
    """
    workdir = pathlib.Path(workdir)
    for name in ("config.json", "results.json"):
        if not (workdir / name).is_file():
            raise InputError(
                f"--workdir={workdir} has no {name}, so it is not a finished run; give "
                "the work directory of one (of a comparison: that of one strategy)"
            )
    saved = read_config(workdir)
    facts = saved.pop("data", None)
    known = flat_fields(saved)
    missing = [name for name in flat_fields(base_config()) if name not in known]
    if missing:
        more = f" and {len(missing) - 1} more fields" if missing[1:] else ""
        raise InputError(
            f"the run in {workdir} was made with another version of this project: its "
            f"config has no {missing[0]}{more}; run it again in another --workdir"
        )
    experiment = build(restore_config(saved), data_dir)
    found = json.loads(json.dumps(experiment.data_facts()))
    # Runs of earlier versions lack `part`, which follows from the checksums.
    if {**found, "part": None} != {**(facts or {}), "part": None}:
        raise InputError(
            f"the run in {workdir} was trained on different data; give the --data_dir "
            "that it was run with"
        )
    variables, step = tested_variables(experiment, workdir)
    return experiment, variables, step
