"""What all configs share: the fields, their defaults, and the argument's grammar."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from mlti_jax.errors import InputError, unknown_name

CONFIG_DIR = pathlib.Path(__file__).parent / "configs"


def config_names() -> list[str]:
    """The names of all config files."""
    return sorted(
        path.stem for path in CONFIG_DIR.glob("*.py") if path.stem != "__init__"
    )


def parse_arg(arg: str | None, **defaults):
    """Reads `learner=maml,strategy=mlti`, the part of `--config` behind the colon.

    Args:
      arg: the text; None or empty for all defaults.
      **defaults: the names that are known, each with its default, whose type a value
        must have.

    Returns:
      A `ConfigDict` with a value for every name.
    """
    values = dict(defaults)
    for part in filter(None, (arg or "").split(",")):
        name, equals, text = part.partition("=")
        if not equals:
            raise InputError(
                f"config argument {part!r} is not of the form name=value; known names: "
                f"{', '.join(defaults)}"
            )
        if name not in defaults:
            raise unknown_name("config argument", name, defaults)
        kind = type(defaults[name])
        try:
            values[name] = kind(text)
        except ValueError:
            raise InputError(
                f"config argument {name} must be of type {kind.__name__}, got {text!r}"
            ) from None
    return ConfigDict(values)


def base_config() -> ConfigDict:
    """The fields of every config; the values are the paper's where it has one."""
    return ConfigDict(
        {
            "seed": 0,
            "dataset": {"name": ""},
            "backbone": {"name": ""},
            "learner": {
                "name": "",
                "maml": {
                    "adapted_layers": (-2, -1),
                    "inner_learning_rate": 0.01,
                    "steps": 5,
                    "eval_steps": 5,
                    "second_order": True,
                    "remat": False,
                    "unroll": True,
                    "norm": "batch",
                },
                "protonet": {"norm": "running"},
            },
            "strategy": {
                "name": "",
                "mlti": {
                    "alpha": 2.0,  # Beta(alpha, alpha)
                    "alpha_intra": placeholder(float),  # where i = j; None: as alpha
                    "intra_sets": "both",  # mixed where i = j: "both" or the "query"
                },
                "intra": {"alpha": 2.0, "intra_sets": "both"},
                "cross": {"alpha": 2.0},
            },
            "interpolation": {"method": "mixup", "layers": (0,)},
            "task": {"ways": 5, "shots": 1, "queries": 15},
            "train": {
                "steps": 10_000,
                "meta_batch_size": 4,
                "learning_rate": 1e-3,
                "log_every": 100,
                "checkpoint_every": 500,
            },
            "eval": {
                "queries": 15,
                "num_tasks": 600,
                "validation_tasks": 200,
                "every": 1000,
                "seed": 0,
                "tasks_per_pass": 8,
            },
        }
    )
