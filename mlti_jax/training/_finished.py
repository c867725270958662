"""What a finished run was tested with, from its work directory."""

from __future__ import annotations

import pathlib

from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training._checkpoints import Checkpoints
from mlti_jax.training._experiment import Experiment
from mlti_jax.training._workdir import read_json


def tested_variables(
    experiment: Experiment, workdir: str | pathlib.Path
) -> tuple[Variables, int]:
    """The variables that the run's result is of, and the step that they are from.

    Args:
      experiment: of the run.
      workdir: where `train_and_evaluate` has left its result.
    """
    workdir = pathlib.Path(workdir)
    result = read_json(workdir / "results.json")
    kind, step = result["checkpoint"], result["step"]
    folder = workdir / "checkpoints" / kind
    template = experiment.init_state()
    if kind == "best":
        template = template.variables
    saved = None
    if folder.is_dir():
        checkpoints = Checkpoints(folder, keep=None)
        try:
            saved = checkpoints.restore(template, step)
        finally:
            checkpoints.close()
    if saved is None:
        raise InputError(
            f"the checkpoint of step {step} is not in {folder}, or can't be read; run "
            "it anew in another --workdir"
        )
    state = saved[1]
    return (state if kind == "best" else state.variables), step
