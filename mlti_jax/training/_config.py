"""The fields of every config, access to them by name, and choices from the data."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from mlti_jax._internal.checks import did_you_mean, first_few
from mlti_jax._internal.options import options_of
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.data import ClassPool, DomainPool, RegressionPool, Splits
from mlti_jax.errors import InputError
from mlti_jax.learners._maml import gradient_learner
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies._registry import STRATEGIES
from mlti_jax.training._optimizer import optimizer_fields, schedule_fields

# Fields that accept None although their default is a number: all remaining samples.
_OPTIONAL = ("eval.queries",)
# Options that never change a result, the first a former one: ignored in saved configs.
_WITHOUT_EFFECT = ("unroll", "compilation_cache")
# Where samples are, and what reads them
_PLACEMENT = ("dataset.pool", "dataset.workers")
_MAX_WAYS = 5  # classes per task, if they are drawn from more
_CONV4_BLOCKS = 4  # each halves an image


def base_config() -> ConfigDict:
    """Return a config with every field; values are the paper's where it has one.

    The options of each backbone, learner and strategy (`learner.maml.steps`) are those
    of its factory, where they are documented; an option whose default is None is a
    placeholder of its type.
    """
    return ConfigDict(
        {
            "seed": 0,
            # Where compiled programs are kept: "user" for a private folder in the
            # user's cache directory, "off", or a path that contains a /
            "compilation_cache": "user",
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
                # Of optax by name, with its arguments; see `make_optimizer`
                "optimizer": optimizer_fields(),
                # constant, cosine, warmup_cosine or exponential; see `make_schedule`
                "schedule": schedule_fields(),
                # Largest global norm of a meta-gradient; None: not clipped
                "clip_norm": placeholder(float),
                # Decoupled, as in AdamW; None: the optimizer's default
                "weight_decay": placeholder(float),
                # Decay of the moving average of all variables, which validation and
                # test then use; 0: none
                "ema": 0.0,
                # Validations without an improvement until training ends; None: never
                "patience": placeholder(int),
                "log_every": 100,
                "checkpoint_every": 500,
                # Devices that share a meta-batch; None: chosen for the machine
                "devices": placeholder(int),
                # Tasks that a device runs at a time; None: chosen for the machine
                "tasks_per_pass": placeholder(int),
                "compute_dtype": "float32",  # or bfloat16, for accelerators
                # Of products of float32 arrays: default, high or highest. The default
                # is fast on accelerators and rounds operands, on TPUs to bfloat16
                "precision": "default",
            },
            "eval": {
                # None: all remaining samples. A reference, so None can be overridden.
                "queries": FieldReference(15, field_type=int),
                "num_tasks": 600,
                "validation_tasks": 200,
                "every": 1000,
                "seed": 0,
                "tasks_per_pass": 32,
            },
        }
    )


def _sections(
    factories: Mapping[str, Callable[..., Any]],
    forwards_to: Callable[..., Any] | None = None,
    **values: Any,
) -> dict[str, dict[str, Any]]:
    """Return the fields of each factory that has options.

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
    """Return the fields of a config by their full names, such as `train.steps`."""
    fields: dict[str, Any] = {}
    for name, value in section.items():
        if isinstance(value, Mapping | ConfigDict):
            fields |= flat_fields(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def set_fields(config: ConfigDict, fields: Mapping[str, Any]) -> None:
    """Set fields by their full names.

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
    """Return the config that was saved as JSON, in `config.json` or a manifest.

    Fields that `saved` lacks have their defaults. Raises `InputError` for unknown
    fields, except those that were removed without an effect on results.
    """
    config = base_config()
    dataset = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in saved["dataset"].items()
    }
    others = {name: value for name, value in saved.items() if name != "dataset"}
    set_fields(config, drop_without_effect(flat_fields(others)))
    with config.unlocked():
        config.dataset = dataset
    config.lock()
    return config


def drop_without_effect(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields by full name, without those that never change a result.

    Arguments of optimizers that are not set are among them: which ones exist depends on
    the version of optax.
    """

    def has_effect(name: str, value: Any) -> bool:
        if name.startswith("train.optimizer.") and value is None:
            return False
        if name in _PLACEMENT:
            return False
        if name == "eval.tasks_per_pass":  # only the order of roundings
            return False
        if name.startswith("data.part."):  # follows from the checksums
            return False
        return name.rpartition(".")[2] not in _WITHOUT_EFFECT

    return {name: value for name, value in fields.items() if has_effect(name, value)}


def _nearest(name: str, known: list[str]) -> str:
    """Suggest the fields of a section, the same last part, or a similar name."""
    inside = [field for field in known if field.startswith(f"{name}.")]
    if inside:
        return f"; it is a section with the fields {first_few(inside)}"
    if closest := difflib.get_close_matches(name, known, n=1, cutoff=0.9):
        return f" (did you mean {closest[0]!r}?)"
    last = name.rpartition(".")[2]
    same = [field for field in known if field.rpartition(".")[2] == last]
    same.sort(key=lambda field: field.count("."))
    if same:
        return f" (did you mean {' or '.join(map(repr, same[:3]))}?)"
    sections = sorted({field.partition(".")[0] for field in known})
    return did_you_mean(name, known) or f"; sections: {', '.join(sections)}"


# ------------------------------------------------------------ choices from the data


def fill_in(
    config: ConfigDict,
    splits: Splits,
    deepest_layer: Callable[[ConfigDict, Splits], int],
) -> tuple[ConfigDict, list[str]]:
    """Choose what a config leaves open: `task.ways`, the network, the interpolation.

    A config leaves them open with `task.ways=None`, an empty `backbone.name` and an
    empty `interpolation.method`, whose layers are chosen too if they are empty.

    Args:
      config: the config.
      splits: the data.
      deepest_layer: returns the deepest layer at which the learner of a config, with
        its network chosen, can interpolate tasks.

    Returns:
      The config, a copy if anything was open, and notes for the user.
    """
    ways, network = config.task.ways, config.backbone.name
    method = config.interpolation.method
    if ways is not None and network and method:
        return config, []
    chosen: dict[str, Any] = {}
    if ways is None:
        chosen["task.ways"] = choose_ways(splits)
    if not network:
        name, options = choose_backbone(splits)
        chosen["backbone.name"] = name
        for option, value in options.items():
            # A config may ask for fewer blocks than possible.
            value = min(value, config.backbone[name][option])
            chosen[f"backbone.{name}.{option}"] = value
    config = with_fields(config, chosen)
    if not method:
        interpolation = choose_interpolation(splits)
        given, layers = config.interpolation.layers, interpolation["layers"]
        deepest = deepest_layer(config, splits)
        # If none exists, the error of the first choice is raised later.
        existing = tuple(layer for layer in layers if layer <= deepest)
        interpolation["layers"] = given or existing or layers
        fields = {f"interpolation.{name}": v for name, v in interpolation.items()}
        config, chosen = with_fields(config, fields), chosen | fields
    text = ", ".join(f"{field}={value}" for field, value in chosen.items())
    return config, [f"chosen from the data: {text}"]


def with_fields(config: ConfigDict, fields: Mapping[str, Any]) -> ConfigDict:
    """Return a copy of a config with other values, of any type."""
    config = config.copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        for field, value in fields.items():
            *sections, name = field.split(".")
            place = config
            for section in sections:
                place = place[section]
            place[name] = value
    return config


def choose_ways(splits: Splits) -> int:
    """Return all shared classes; else five, or as many as every split has."""
    if isinstance(splits.train, RegressionPool):
        return 1
    if isinstance(splits.train, DomainPool):
        return len(splits.train.classes)
    pools = (splits.train, splits.validation, splits.test)
    return min(
        _MAX_WAYS, *(len(pool.classes) for pool in pools if isinstance(pool, ClassPool))
    )


def choose_backbone(splits: Splits) -> tuple[str, dict[str, Any]]:
    """Return the name of a network for the inputs, and options if they must differ.

    Vectors `[D]` get `mlp`, images `[H, W, C]` get `conv4`, with fewer blocks if the
    image is too small to be halved four times. Raises `InputError` for other shapes.
    """
    leaves = [leaf.shape[1:] for leaf in jax.tree.leaves(splits.train.x)]
    shape = leaves[0]
    if len(leaves) == 1 and len(shape) == 1:
        return "mlp", {}
    if len(leaves) > 1 or len(shape) != 3:
        shapes = ", ".join(str(list(shape)) for shape in leaves)
        raise InputError(
            f"cannot choose a network for samples {shapes}; make them vectors [D] or"
            " images [H, W, C] (grayscale: x[..., None]), or set backbone.name"
        )
    height, width, channels = shape
    if height <= 4 < min(width, channels):
        raise InputError(
            f"images {list(shape)} seem to have their channels first; expected"
            " [H, W, C]: x.transpose(0, 2, 3, 1)"
        )
    possible = min(height, width).bit_length() - 1
    if possible < 1:
        raise InputError(
            f"images {list(shape)} are too small for a convolution; make them"
            " vectors, x.reshape(len(x), -1)"
        )
    return "conv4", ({} if possible >= _CONV4_BLOCKS else {"blocks": possible})


def choose_interpolation(splits: Splits) -> dict[str, Any]:
    """Return method and layers of interpolation: the paper's for this kind of data.

    CutMix for images, Mixup at the input or after the first block for vectors. For
    regression from images Mixup at the input, since a box of an image does not
    determine its target. For integers such as tokens Mixup after the first layer.
    """
    leaves = jax.tree.leaves(splits.train.x)
    if any(leaf.dtype.kind == "i" for leaf in leaves):
        return {"method": "mixup", "layers": (1,)}
    if len(leaves) == 1 and leaves[0].ndim == 2:
        return {"method": "mixup", "layers": (0, 1)}
    images = len(leaves) == 1 and leaves[0].ndim == 4
    if images and not isinstance(splits.train, RegressionPool):
        return {"method": "cutmix", "layers": (0,)}
    return {"method": "mixup", "layers": (0,)}
