"""What suits the data, where a config leaves it open.

A config leaves open the classes of a task by `task.ways=None`, the network by an empty
`backbone.name`, and how samples are mixed by an empty `interpolation.method`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from mlti_jax.data import ClassPool, RegressionPool, Splits
from mlti_jax.errors import InputError

MOST_WAYS = 5  # classes of a task, drawn from many
BLOCKS = 4  # of conv4, each of which halves a picture


def choose_ways(splits: Splits) -> int:
    """All classes that tasks share; else five, or as many as every split has."""
    if isinstance(splits.train, RegressionPool):
        return 1
    if not isinstance(splits.train, ClassPool):
        return len(splits.train.classes)
    pools = (splits.train, splits.validation, splits.test)
    return min(MOST_WAYS, *(len(pool.classes) for pool in pools if pool is not None))


def choose_backbone(splits: Splits) -> tuple[str, dict[str, Any]]:
    """A network for the inputs: its name, and options where they must differ.

    Vectors `[D]` are given the `mlp`, pictures `[H, W, C]` the `conv4`, with fewer
    blocks where the picture is too small to be halved four times.
    """
    leaves = [leaf.shape[1:] for leaf in jax.tree.leaves(splits.train.x)]
    shape = leaves[0]
    if len(leaves) == 1 and len(shape) == 1:
        return "mlp", {}
    if len(leaves) > 1 or len(shape) != 3:
        shapes = ", ".join(str(list(shape)) for shape in leaves)
        raise InputError(
            f"there is no network to choose for samples {shapes}; make them vectors"
            " [D], or pictures [H, W, C] (grey ones: x[..., None]), or name one"
            " (backbone.name)"
        )
    height, width, channels = shape
    if height <= 4 < min(width, channels):
        raise InputError(
            f"pictures {list(shape)} seem to have their channels first; expected"
            " [H, W, C]: x.transpose(0, 2, 3, 1)"
        )
    fitting = min(height, width).bit_length() - 1
    if fitting < 1:
        raise InputError(
            f"pictures {list(shape)} are too small for a convolution; make them"
            " vectors, x.reshape(len(x), -1)"
        )
    return "conv4", ({} if fitting >= BLOCKS else {"blocks": fitting})


def choose_interpolation(splits: Splits) -> dict[str, Any]:
    """How samples are mixed: as in the paper on data of the same kind.

    Pictures by CutMix, vectors by Mixup at the input or after the first block. Targets
    of pictures have no part that a box could stand for: Mixup at the input. Whole
    numbers, as tokens, have no mean: after the first layer.
    """
    leaves = jax.tree.leaves(splits.train.x)
    if any(leaf.dtype.kind == "i" for leaf in leaves):
        return {"method": "mixup", "layers": (1,)}
    if len(leaves) == 1 and leaves[0].ndim == 2:
        return {"method": "mixup", "layers": (0, 1)}
    pictures = len(leaves) == 1 and leaves[0].ndim == 4
    if pictures and not isinstance(splits.train, RegressionPool):
        return {"method": "cutmix", "layers": (0,)}
    return {"method": "mixup", "layers": (0,)}


def fill_in(config: Any, splits: Splits) -> tuple[Any, list[str]]:
    """A config with nothing left open, and what was chosen, in words.

    A config that leaves nothing open is returned as it is; else a copy.
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
            # Whoever asks for fewer blocks than fit is given them.
            value = min(value, config.backbone[name][option])
            chosen[f"backbone.{name}.{option}"] = value
    if not method:
        for name, value in choose_interpolation(splits).items():
            chosen[f"interpolation.{name}"] = value
    config = config.copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        for field, value in chosen.items():
            _set(config, field, value)
    words = ", ".join(f"{field}={value}" for field, value in chosen.items())
    return config, [f"chosen by the data: {words}"]


def _set(config: Mapping[str, Any], field: str, value: Any) -> None:
    *sections, name = field.split(".")
    for section in sections:
        config = config[section]
    config[name] = value
