"""ALBERT (Lan et al. 2019), the backbone for news titles (App. E.8).

Numerically equal to the checkpoints of version 2 (`gelu_new`, no dropout). See
`mlti_jax.backbones._text` for inputs, masks and the interpolation of sequences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.backbones import _text as text
from mlti_jax.backbones._albert_checkpoint import (
    AlbertConfig,
    Pretrained,
    load_pretrained,
    shapes,
)
from mlti_jax.backbones._stack import Context, Stack, check_depth
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

POOLS = ("first", "mean")


class Part(nn.Module):
    """A module with the parameters of `NAMES[part]`.

    Attributes:
      config: sizes of the network.
      pretrained: initial parameters; None for random initialization.
    """

    config: AlbertConfig
    pretrained: Pretrained | None = None

    def parameters(self, part: str) -> dict[str, Array]:
        """Create the parameters of a part and return them by name."""
        start = {} if self.pretrained is None else self.pretrained.params.get(part, {})

        def init(name: str) -> Callable:
            if name in start:
                return lambda key, shape: jnp.asarray(start[name])
            if name.endswith("scale"):
                return nn.initializers.ones
            if name.endswith(("offset", "bias")):
                return nn.initializers.zeros
            return nn.initializers.normal(0.02)

        expected = shapes(self.config)[part]
        return {n: self.param(n, init(n), shape) for n, shape in expected.items()}


class Embeddings(Part):
    """Token, position and segment embeddings, normalized and projected to length H.

    `{"ids", "mask"}`, each `[N, T]`, to `{"h": [N, T, H], "mask": [N, T]}`.
    """

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> PyTree:
        del context
        ids, mask = text.tokens(h)
        length = ids.shape[1]
        if length > self.config.positions:
            raise InputError(
                f"sequences have {length} tokens, but ALBERT has "
                f"{self.config.positions} positions; reduce max_tokens"
            )
        p = self.parameters("embeddings")
        out = text.look_up(p["words"], ids) + p["positions"][:length] + p["types"][0]
        out = layer_norm(out, p, "norm", self.config.epsilon)
        return _sequence(linear(out, p, "projection"), mask)


class EncoderLayer(Part):
    """Self-attention and feed-forward block, each with residual and layer norm.

    `{"h": [N, T, H], "mask": [N, T]}` to the same.
    """

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> PyTree:
        del context
        p, epsilon = self.parameters("encoder"), self.config.epsilon
        mask, h = text.token_mask(h["mask"]), h["h"]
        attended = linear(attention(h, mask, p, self.config.heads), p, "out")
        h = layer_norm(h + attended, p, "attention_norm", epsilon)
        wide = nn.gelu(linear(h, p, "wide"), approximate=True)
        h = layer_norm(h + linear(wide, p, "narrow"), p, "norm", epsilon)
        return _sequence(h, mask)


class Pool(nn.Module):
    """Pools a sequence: `{"h": [N, T, H], "mask": [N, T]}` to `[N, H]`.

    Attributes:
      kind: `first` for the vector of the first token, the classification token of
        ALBERT's tokenizer; `mean` for the mean over all tokens.
    """

    kind: str

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> Array:
        del context
        if self.kind == "first":
            return h["h"][:, 0]
        return text.masked_mean(h["h"], text.token_mask(h["mask"]))


class Dense(Part):
    """Fully connected output layer with tanh: `[N, H]` to `[N, H]`."""

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        p = self.parameters("dense")
        out = context.linear(h, p["kernel"], jnp.matmul)
        return jnp.tanh(out + p["bias"])


def _sequence(h: Array, mask: Array) -> PyTree:
    # Padding must not contribute when mixed with a longer sequence.
    return {"h": h * mask[..., None], "mask": mask}


def linear(h: Array, p: Mapping[str, Array], name: str) -> Array:
    """Apply the linear map `name` to the last axis."""
    return h @ p[f"{name}_kernel"] + p[f"{name}_bias"]


def layer_norm(h: Array, p: Mapping[str, Array], name: str, epsilon: float) -> Array:
    """Normalize over the last axis, with scale and offset `name`; not in bfloat16."""
    precise = _not_bfloat16(h)
    centred = precise - precise.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    out = centred * jax.lax.rsqrt(variance + epsilon)
    return (out * p[f"{name}_scale"] + p[f"{name}_offset"]).astype(h.dtype)


def _not_bfloat16(h: Array) -> Array:
    """Convert bfloat16 to float32."""
    return h.astype(jnp.promote_types(h.dtype, jnp.float32))


def attention(h: Array, mask: Array, p: Mapping[str, Array], heads: int) -> Array:
    r"""Compute $\mathrm{softmax}(QK^\top/\sqrt d)\,V$ for each head, `[N, T, H]`.

    Args:
      h: `[N, T, H]`.
      mask: `[N, T]`, 0 for positions that are not attended to.
      p: parameters of the query, key and value maps.
      heads: number of heads, which divide the H features.
    """
    query, key, value = (
        linear(h, p, name).reshape(*h.shape[:2], heads, -1)
        for name in ("query", "key", "value")
    )
    scores = _not_bfloat16(jnp.einsum("nqhd,nkhd->nhqk", query, key))
    scores = scores / np.sqrt(query.shape[-1])
    # Not -inf, so the output of a sequence without tokens is finite.
    lowest = jnp.finfo(scores.dtype).min
    scores = jnp.where(mask[:, None, None, :] > 0, scores, lowest)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    out = jnp.einsum("nhqk,nkhd->nqhd", weights, value)
    return out.reshape(h.shape)


# ------------------------------------------------------------------------- backbone


def albert(
    pretrained: str | os.PathLike[str] | None = None, pool: str = "first", **sizes: int
) -> Stack:
    """Create ALBERT with a fully connected output layer.

    Layer 0 is the embeddings; layers 1 to L are the encoder layer with shared
    parameters, stored in layer 1; layer L + 1 is the pooling; layer L + 2 is a fully
    connected layer with tanh, the first of the two layers of the paper's classifier.
    The second is the head of a gradient-based learner; a metric-based learner compares
    the outputs of the first. With `pool="first"` layer L + 2 starts from the pooler of
    the checkpoint, if it has one.

    Args:
      pretrained: folder of a Hugging Face checkpoint of ALBERT, version 2, to
        initialize from; None for random initialization.
      pool: `first` for the vector of the first token, `mean` for the mean over tokens.
      **sizes: sizes of the network, only without `pretrained`: `vocabulary`,
        `embedding`, `hidden`, `layers`, `heads`, `intermediate`, `positions`,
        `token_types` and `epsilon`; the defaults are those of `albert-base-v2`.

    Raises:
      InputError: if an option is invalid or the checkpoint can't be read.
    """
    if pool not in POOLS:
        raise unknown_name("pooling of ALBERT", pool, POOLS)
    check_options("backbone albert", AlbertConfig, sizes)
    if pretrained is not None and sizes:
        raise InputError(
            f"ALBERT's sizes are those of the checkpoint {pretrained}; remove "
            f"{', '.join(sizes)}, or pretrained"
        )
    start = None if pretrained is None else load_pretrained(pretrained)
    config = AlbertConfig(**sizes) if start is None else start.config
    check_depth(config.layers)
    repeated = (EncoderLayer(config, start),) * config.layers
    dense = Dense(config, start if pool == "first" else None)
    layers = (Embeddings(config, start), *repeated, Pool(pool), dense)
    tied = (0, *(1 for _ in repeated), config.layers + 1, config.layers + 2)
    return Stack(layers, tied)
