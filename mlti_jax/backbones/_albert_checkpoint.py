"""Sizes and parameters of ALBERT, and a reader of Hugging Face checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from mlti_jax._internal import extras
from mlti_jax._internal.checks import check_range
from mlti_jax.errors import InputError

Shapes = dict[str, tuple[int, ...]]
CONFIG, WEIGHTS = "config.json", "model.safetensors"
DOWNLOAD = (
    "expected the folder of a Hugging Face checkpoint of ALBERT, version 2, with"
    f" {CONFIG} and {WEIGHTS}"
)


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """Sizes of the network; the defaults are those of `albert-base-v2`.

    Attributes:
      vocabulary: number of tokens.
      embedding: length E of a token embedding.
      hidden: length H of a hidden vector.
      layers: number of times the encoder layer is applied.
      heads: number of attention heads, which divide the H features.
      intermediate: width of the feed-forward block.
      positions: length of the longest sequence.
      token_types: number of segment types; titles use the first.
      epsilon: epsilon of the layer normalization.
    """

    vocabulary: int = 30_000
    embedding: int = 128
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    positions: int = 512
    token_types: int = 2
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        for field in SIZES:
            check_range(f"ALBERT's {field}", getattr(self, field), 10**6)
        if self.hidden % self.heads:
            raise InputError(
                f"ALBERT's hidden is {self.hidden}; expected a multiple of heads "
                f"({self.heads})"
            )


# Names of the sizes in config.json.
SIZES = {
    "vocabulary": "vocab_size",
    "embedding": "embedding_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
    "token_types": "type_vocab_size",
}

# Names of the parameters in a checkpoint, where kernels are transposed.
_LAYER = "encoder.albert_layer_groups.0.albert_layers.0."
NAMES = {
    "embeddings": {
        "words": "embeddings.word_embeddings.weight",
        "positions": "embeddings.position_embeddings.weight",
        "types": "embeddings.token_type_embeddings.weight",
        "norm_scale": "embeddings.LayerNorm.weight",
        "norm_offset": "embeddings.LayerNorm.bias",
        "projection_kernel": "encoder.embedding_hidden_mapping_in.weight",
        "projection_bias": "encoder.embedding_hidden_mapping_in.bias",
    },
    "encoder": {
        "query_kernel": _LAYER + "attention.query.weight",
        "query_bias": _LAYER + "attention.query.bias",
        "key_kernel": _LAYER + "attention.key.weight",
        "key_bias": _LAYER + "attention.key.bias",
        "value_kernel": _LAYER + "attention.value.weight",
        "value_bias": _LAYER + "attention.value.bias",
        "out_kernel": _LAYER + "attention.dense.weight",
        "out_bias": _LAYER + "attention.dense.bias",
        "attention_norm_scale": _LAYER + "attention.LayerNorm.weight",
        "attention_norm_offset": _LAYER + "attention.LayerNorm.bias",
        "wide_kernel": _LAYER + "ffn.weight",
        "wide_bias": _LAYER + "ffn.bias",
        "narrow_kernel": _LAYER + "ffn_output.weight",
        "narrow_bias": _LAYER + "ffn_output.bias",
        "norm_scale": _LAYER + "full_layer_layer_norm.weight",
        "norm_offset": _LAYER + "full_layer_layer_norm.bias",
    },
    "dense": {"kernel": "pooler.weight", "bias": "pooler.bias"},
}


def shapes(config: AlbertConfig) -> dict[str, Shapes]:
    """Return the shape of every parameter, by module and name as in `NAMES`."""
    e, h, w = config.embedding, config.hidden, config.intermediate
    encoder: Shapes = {}
    for name in ("query", "key", "value", "out"):
        encoder |= {f"{name}_kernel": (h, h), f"{name}_bias": (h,)}
    for name in ("attention_norm", "norm"):
        encoder |= {f"{name}_scale": (h,), f"{name}_offset": (h,)}
    encoder |= {"wide_kernel": (h, w), "wide_bias": (w,)}
    encoder |= {"narrow_kernel": (w, h), "narrow_bias": (h,)}
    return {
        "embeddings": {
            "words": (config.vocabulary, e),
            "positions": (config.positions, e),
            "types": (config.token_types, e),
            "norm_scale": (e,),
            "norm_offset": (e,),
            "projection_kernel": (e, h),
            "projection_bias": (h,),
        },
        "encoder": encoder,
        "dense": {"kernel": (h, h), "bias": (h,)},
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A checkpoint; compared by identity, which makes modules hashable.

    Attributes:
      config: sizes of the network.
      params: arrays by module and name, as in `NAMES`; without `dense` if the
        checkpoint has no pooler.
    """

    config: AlbertConfig
    params: dict[str, dict[str, np.ndarray]]


def load_pretrained(directory: str | os.PathLike[str]) -> Pretrained:
    """Read a Hugging Face checkpoint of ALBERT, version 2.

    Args:
      directory: folder with `config.json` and `model.safetensors`, of the bare encoder
        or of a model that contains it as `albert`.

    Raises:
      InputError: if a file is missing or damaged, or is not such a checkpoint.
    """
    safetensors = extras.require("safetensors", "text")
    directory = pathlib.Path(directory)
    config = _read_config(_existing(directory / CONFIG))
    path = _existing(directory / WEIGHTS)
    try:
        with safetensors.safe_open(path, "numpy") as file:
            params = _read_params(path, file, shapes(config))
    except safetensors.SafetensorError as error:
        raise InputError(
            f"can't read {path} ({error}): it is damaged or truncated; download it "
            "again"
        ) from error
    return Pretrained(config, params)


def _existing(path: pathlib.Path) -> pathlib.Path:
    if not path.is_file():
        raise InputError(f"{path} not found; {DOWNLOAD}")
    return path


def _read_config(path: pathlib.Path) -> AlbertConfig:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(
            f"{path} is not valid JSON ({error}); download it again"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a JSON object; download it again")
    # The only supported values of the options besides sizes.
    expected = {
        "model_type": "albert",
        "hidden_act": "gelu_new",
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    }
    for field, value in expected.items():
        if found.get(field) != value:
            raise InputError(
                f"{path} has {field} {found.get(field)!r}; expected {value!r}; "
                f"{DOWNLOAD}"
            )
    for field in SIZES.values():
        if field not in found:
            raise InputError(f"{path} has no {field}; {DOWNLOAD}")
    sizes = {ours: found[theirs] for ours, theirs in SIZES.items()}
    epsilon = found.get("layer_norm_eps", AlbertConfig.epsilon)
    try:
        return AlbertConfig(**sizes, epsilon=float(epsilon))
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}; download it again") from error


def _read_params(
    path: pathlib.Path, file: Any, expected: dict[str, Shapes]
) -> dict[str, dict[str, np.ndarray]]:
    """Read the parameters of all parts that the open file has."""
    stored = set(file.keys())
    prefix = "albert." if any(name.startswith("albert.") for name in stored) else ""
    pooler = all(prefix + name in stored for name in NAMES["dense"].values())
    return {
        part: {
            ours: _read_tensor(
                path, file, prefix + theirs, expected[part][ours], "kernel" in ours
            )
            for ours, theirs in names.items()
        }
        for part, names in NAMES.items()
        if part != "dense" or pooler
    }


def _read_tensor(
    path: pathlib.Path, file: Any, name: str, shape: tuple[int, ...], transposed: bool
) -> np.ndarray:
    """Read a tensor as float32 of `shape`."""
    if name not in file.keys():  # noqa: SIM118, the file is not iterable
        raise InputError(f"{path} has no tensor {name}; {DOWNLOAD}")
    values = file.get_tensor(name).astype(np.float32)
    stored_shape = shape[::-1] if transposed else shape
    if values.shape != stored_shape:
        raise InputError(
            f"{path}: the tensor {name} has shape {list(values.shape)}; expected "
            f"{list(stored_shape)} from {CONFIG}; the two files belong to different "
            "checkpoints: download both again"
        )
    if not np.isfinite(values).all():
        raise InputError(
            f"{path}: the tensor {name} has NaN or infinite values; download the file "
            "again, or use an earlier checkpoint"
        )
    return values.T if transposed else values
