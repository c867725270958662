"""What all configs share: the fields, their defaults, and the argument's grammar."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.learners import FAMILIES
from mlti_jax.training._config import base_config

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


def paper_config(
    arg: str | None,
    *,
    shots: int,
    gradient_alpha: float = 2.0,
    metric_alpha: float = 2.0,
    **defaults,
) -> tuple[ConfigDict, ConfigDict]:
    """A config for the paper's experiments on one dataset.

    Args:
      arg: the text behind the colon, see `parse_arg`.
      shots: the default number of shots.
      gradient_alpha: of Beta(alpha, alpha) for MAML and its kin.
      metric_alpha: the same for ProtoNet and its kin.
      **defaults: names that this config knows beside learner, strategy and shots.

    Returns:
      The config, with these set, and the choice that the text makes.
    """
    known = {"learner": "maml", "strategy": "mlti", "shots": shots, **defaults}
    choice = parse_arg(arg, **known)
    config = base_config()
    config.learner.name = choice.learner
    config.strategy.name = choice.strategy
    config.task.shots = choice.shots
    metric_based = choice.learner in FAMILIES["metric"]
    for name in ("mlti", "intra", "cross", "metamix", "maxup"):
        config.strategy[name].alpha = metric_alpha if metric_based else gradient_alpha
    return config, choice


def molecule_config(name: str, arg: str | None, **alphas: float) -> ConfigDict:
    """What NCI and Metabolism share: network, interpolation, tasks (D.1)."""
    config, choice = paper_config(arg, shots=5, split="paper", **alphas)
    config.dataset = {
        "name": name,
        "split": choice.split,  # paper, or disjoint: no test molecule in training
        "train_classes": placeholder(int),  # training assays; None: all
        "molecules_per_assay": 1000,
        "fingerprint": "morgan",  # or path
        "seed": 0,
    }
    config.backbone.name = "mlp"
    config.interpolation = {"method": "mixup", "layers": (0, 1)}
    config.task.ways = 2
    config.task.queries = 10
    config.train.steps = 10_000
    config.eval.queries = 10
    return config


def image_config(
    name: str,
    arg: str | None,
    *,
    ways: int,
    train_classes: int,
    eval_queries: int | None = 15,
    **alphas: float,
) -> ConfigDict:
    """What the image sets with classes of their own share (E.1)."""
    config, choice = paper_config(arg, shots=1, test_on="", **alphas)
    config.dataset = {
        "name": name,
        "train_classes": train_classes,
        "test_on": placeholder(str),  # another dataset: cross-domain adaptation
    }
    config.eval.queries = eval_queries
    if choice.test_on:
        config.dataset.test_on = choice.test_on
        config.eval.queries = 15  # all that are left may be thousands there
    config.backbone.name = "conv4"
    config.interpolation = {"method": "cutmix", "layers": (0,)}
    config.strategy.mlti.within = "query"
    config.strategy.intra.within = "query"
    config.task.ways = ways
    config.train.steps = 50_000
    return config
