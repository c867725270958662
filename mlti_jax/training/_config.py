"""The fields of every config and their defaults, and access to fields by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from mlti_jax._internal.checks import did_you_mean
from mlti_jax._internal.options import options_of
from mlti_jax.backbones import BACKBONES
from mlti_jax.errors import InputError
from mlti_jax.learners import FAMILIES
from mlti_jax.learners._maml import gradient_learner
from mlti_jax.strategies import STRATEGIES

# Fields that accept None although their default is a number: all remaining samples.
_OPTIONAL = ("eval.queries",)
# Former options, which never changed a result: ignored in saved configs.
_REMOVED = ("unroll",)


def base_config() -> ConfigDict:
    """Returns a config with every field; values are the paper's where it has one.

    The options of each backbone, learner and strategy (`learner.maml.steps`) are those
    of its factory, where they are documented; an option whose default is None is a
    placeholder of its type.
    """
    return ConfigDict(
        {
            "seed": 0,
            # Directory of compiled programs: "beside" the work directory, "off", a path
            "compilation_cache": "beside",
            "dataset": {"name": ""},
            "backbone": {"name": "", **_sections(BACKBONES)},
            "learner": {
                "name": "",
                **_sections(FAMILIES["gradient"], gradient_learner, eval_steps=5),
                **_sections(FAMILIES["metric"]),
                **_sections(FAMILIES["supervised"]),
            },
            "strategy": {"name": "", **_sections(STRATEGIES)},
            "interpolation": {"method": "mixup", "layers": (0,)},
            "task": {"ways": 5, "shots": 1, "queries": 15},
            "train": {
                "steps": 10_000,
                "meta_batch_size": 4,
                "learning_rate": 1e-3,
                "log_every": 100,
                "checkpoint_every": 500,
                # Devices that share a meta-batch; None: chosen for the machine
                "devices": placeholder(int),
                # Tasks that a device runs at a time; None: chosen for the machine
                "tasks_per_pass": placeholder(int),
                "compute_dtype": "float32",  # or bfloat16, for accelerators
            },
            "eval": {
                # None: all remaining samples. A reference, so None can be overridden.
                "queries": FieldReference(15, field_type=int),
                "num_tasks": 600,
                "validation_tasks": 200,
                "every": 1000,
                "seed": 0,
                "tasks_per_pass": 8,
            },
        }
    )


def _sections(
    factories: Mapping[str, Callable[..., Any]],
    forwards_to: Callable[..., Any] | None = None,
    **values: Any,
) -> dict[str, dict[str, Any]]:
    """Returns the fields of each factory that has options.

    Args:
      factories: by name.
      forwards_to: the function that receives the factories' `**options`.
      **values: defaults of a config that differ from the factories'.
    """
    sections = {}
    for name, factory in factories.items():
        fields = {
            option: placeholder(kind) if default is None else default
            for option, (default, kind) in options_of(factory, forwards_to).items()
        }
        if fields:
            sections[name] = fields | values
    return sections


def flat_fields(
    section: Mapping[str, Any] | ConfigDict, prefix: str = ""
) -> dict[str, Any]:
    """Returns the fields of a config by their full names, such as `train.steps`."""
    fields: dict[str, Any] = {}
    for name, value in section.items():
        if isinstance(value, Mapping | ConfigDict):
            fields |= flat_fields(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def set_fields(config: ConfigDict, fields: Mapping[str, Any]) -> None:
    """Sets fields by their full names.

    Raises `InputError` for a name that the config does not have (those of the section
    `dataset` cannot be set), and for a value of another type.
    """
    known = [name for name in flat_fields(config) if not name.startswith("dataset.")]
    for name, value in fields.items():
        if name not in known:
            raise InputError(f"unknown config field {name!r}{_nearest(name, known)}")
        if isinstance(value, np.generic):
            value = value.item()
        value = tuple(value) if isinstance(value, list) else value
        before = flat_fields(config)[name]
        wrong = InputError(
            f"config field {name} is {value!r}; expected a value such as {before!r}"
        )
        if value is None and before is not None and name not in _OPTIONAL:
            raise wrong
        try:
            config.update_from_flattened_dict({name: value})
        except (TypeError, ValueError):
            raise wrong from None


def restore_config(saved: Mapping[str, Any]) -> ConfigDict:
    """Returns the config that was saved as JSON, in `config.json` or a manifest.

    Fields that `saved` lacks have their defaults. Raises `InputError` for unknown
    fields, except those that were removed without an effect on results.
    """
    config = base_config()
    dataset = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in saved["dataset"].items()
    }
    others = {name: value for name, value in saved.items() if name != "dataset"}
    set_fields(config, drop_removed(flat_fields(others)))
    with config.unlocked():
        config.dataset = dataset
    config.lock()
    return config


def drop_removed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields by full name, without those that no longer exist."""
    return {
        name: value
        for name, value in fields.items()
        if name.rpartition(".")[2] not in _REMOVED
    }


def _nearest(name: str, known: list[str]) -> str:
    """Suggests fields with the same last part, or else a similar name."""
    last = name.rpartition(".")[2]
    same = [field for field in known if field.rpartition(".")[2] == last]
    same.sort(key=lambda field: field.count("."))
    if same:
        return f" (did you mean {' or '.join(map(repr, same[:3]))}?)"
    sections = sorted({field.partition(".")[0] for field in known})
    return did_you_mean(name, known) or f"; sections: {', '.join(sections)}"
