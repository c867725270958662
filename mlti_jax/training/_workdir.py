"""A run's work directory: its config, its result, the variables that it tested."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from mlti_jax._internal.progress import say
from mlti_jax._internal.storage import (
    damaged,
    make_folder,
    read_json,
    remove_temporary,
    write_json,
)
from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.training._checkpoints import DamagedError, read_checkpoint
from mlti_jax.training._config import base_config, drop_without_effect, flat_fields
from mlti_jax.training._experiment import Experiment

CONFIG, RESULT = "config.json", "results.json"
CHECKPOINTS, METRICS = "checkpoints", "metrics.jsonl"
# Fields that concern test tasks only
_TEST_FIELDS = (
    "dataset.test_on",
    "dataset.min_images",  # also of the training classes: see their checksum
    "eval.num_tasks",
    "data.checksums.test",
)
# Fields of datasets that earlier versions did not have.
_DATA_FIELDS = ("dataset.missing_classes", "dataset.min_images", "dataset.draw")
# Inside of `checkpoints`: the processes and devices that have written them.
_LAYOUT = "layout.json"
# Fields of a result that programs read, with their types.
_RESULT_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("dataset", "learner", "strategy", "metric", "checkpoint"), str),
    **dict.fromkeys(("ways", "shots", "seed", "step", "train_steps"), int),
    "num_tasks": int,
    "source": (str, type(None)),
    **dict.fromkeys(("mean", "ci95"), (int, float)),
    "per_task": list,
}


def open_workdir(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Write the config of a new run, or check that of a run to resume.

    The caller must hold the lock of the directory.

    Raises:
      InputError: if the directory holds a run of another config.
    """
    remove_temporary(workdir)
    if (workdir / CONFIG).exists():
        check_config(workdir, config)
        return
    if (workdir / CHECKPOINTS).exists():
        raise InputError(
            f"{workdir} has checkpoints but no {CONFIG}; use another --workdir"
        )
    write_json(workdir / CONFIG, json.loads(json.dumps(config)), seal=True)


def note_layout(workdir: pathlib.Path, processes: int, devices: int) -> None:
    """Save how many processes and devices a run uses; say if they have changed.

    Args:
      workdir: the work directory.
      processes: number of processes.
      devices: number of devices of all processes.
    """
    path = workdir / CHECKPOINTS / _LAYOUT
    layout = {"processes": processes, "devices": devices}
    try:
        saved = read_json(path, "")
    except InputError:  # missing or damaged; nothing depends on it
        saved = None
    if saved == layout:
        return
    if saved is not None and (path.parent / "last").exists():
        say(
            f"this run was started on {_describe(saved)} and continues on "
            f"{_describe(layout)}; its results are the same up to rounding"
        )
    make_folder(path.parent)
    write_json(path, layout, seal=True)


def _describe(layout: Mapping[str, Any]) -> str:
    processes, devices = layout.get("processes"), layout.get("devices")
    return (
        f"{devices} device{'' if devices == 1 else 's'} of {processes} "
        f"process{'' if processes == 1 else 'es'}"
    )


def check_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raise `InputError` if a work directory holds a run of another config.

    Args:
      workdir: the directory.
      config: a nested dictionary of plain values.
    """
    if differences := _differences(workdir, config):
        raise InputError(
            f"{workdir} holds a run of a different config; use another --workdir, or "
            "the same config to resume it. The differences (saved -> given):\n  "
            + "\n  ".join(differences.values())
        )


def _differences(workdir: pathlib.Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Describe the fields in which a config differs from that of a work directory."""
    # Fields that an earlier version did not have had the effect of their defaults.
    defaults = json.loads(base_config().to_json_best_effort())
    saved = drop_without_effect(
        flat_fields(defaults) | flat_fields(read_config(workdir))
    )
    given = drop_without_effect(flat_fields(json.loads(json.dumps(config))))
    for name in _DATA_FIELDS:  # The checksums say which data it was.
        if name in given:
            saved.setdefault(name, given[name])
    return {
        name: f"{name}: {saved.get(name, 'absent')!r} -> {given.get(name, 'absent')!r}"
        for name in sorted({*saved, *given})
        if name not in saved or name not in given or saved[name] != given[name]
    }


def take_over(
    trained: pathlib.Path, workdir: pathlib.Path, config: Mapping[str, Any]
) -> None:
    """Copy the training of a finished run into a new work directory.

    A run that continues there has nothing left to train; only its test differs.

    Args:
      trained: the work directory of the finished run.
      workdir: the new one; its lock is held. Left as it is if it has checkpoints.
      config: the config of the new run. It may differ from that of the finished run
        in what concerns test tasks only.

    Raises:
      InputError: if `trained` has no finished run, or the configs differ in training.
    """
    if (workdir / CHECKPOINTS).exists():
        return
    for name in (CONFIG, RESULT):
        if not (trained / name).is_file():
            raise InputError(
                f"--trained={trained} has no {name}, so it is not a finished run; give "
                "the work directory of one"
            )
    test_only = set(_TEST_FIELDS)
    if "validation" not in config["data"]["checksums"]:
        test_only |= {"eval.queries", "data.eval_queries"}
    found = _differences(trained, config)
    if differences := [text for name, text in found.items() if name not in test_only]:
        raise InputError(
            f"the run in --trained={trained} was not trained with this config; give "
            "another one, or leave out --trained to train. The differences (trained "
            "-> given):\n  " + "\n  ".join(differences)
        )
    for name in (METRICS, CHECKPOINTS):  # The second one says that all is copied.
        source, copy = trained / name, workdir / f"{name}.copy"
        if source.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
        else:
            shutil.copy(source, copy)
        copy.rename(workdir / name)
    say(f"testing the variables of {trained}, which is already trained")


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
    """Return the verified content of `config.json`."""
    return read_json(
        workdir / CONFIG, "restore it from a copy, or use another --workdir"
    )


def read_result(workdir: pathlib.Path) -> dict[str, Any]:
    """Return the verified content of `results.json`.

    Raises:
      InputError: if it is damaged or not the result of a run.
    """
    path = workdir / RESULT
    advice = "remove it and run the same command again, which repeats only the test"
    result = read_json(path, advice)
    for name, kind in _RESULT_FIELDS.items():
        if name not in result or not isinstance(result[name], kind):
            fault = f"{name} is {result.get(name, 'missing')!r}"
            raise damaged(path, fault[:200], advice)
    if not all(math.isfinite(result[name]) for name in ("mean", "ci95")):
        raise damaged(path, "mean or ci95 is not finite", advice)
    return result


def tested_variables(
    experiment: Experiment, workdir: str | pathlib.Path
) -> tuple[Variables, int]:
    """Restore the variables that a finished run has tested.

    Args:
      experiment: the experiment of the run.
      workdir: its work directory.

    Returns:
      The variables, and the step at which they were saved.
    """
    workdir = pathlib.Path(workdir)
    result = read_result(workdir)
    kind, step = result["checkpoint"], result["step"]
    folder = workdir.absolute() / CHECKPOINTS / kind
    template = experiment.init_state()
    try:
        if kind == "best":
            return read_checkpoint(folder, step, template.variables), step
        return read_checkpoint(folder, step, template).evaluated, step
    except DamagedError as error:
        raise InputError(
            f"cannot read the checkpoint of step {step} in {folder} ({error}); run the "
            "experiment again in another --workdir"
        ) from error
