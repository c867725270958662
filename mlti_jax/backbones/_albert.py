"""ALBERT (Lan et al. 2019), the network for news titles (App. E.8).

Numerically that of the checkpoints of version 2 (`gelu_new`, no dropout). For inputs,
masks and what interpolation makes of them see `mlti_jax.backbones._text`.
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
from mlti_jax.backbones._stack import Context, Stack
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

POOLS = ("first", "mean")


class Part(nn.Module):
    """A module whose parameters are those of `NAMES[part]`.

    Attributes:
      config: sizes.
      pretrained: where parameters start; None for random ones.
    """

    config: AlbertConfig
    pretrained: Pretrained | None = None

    def parameters(self, part: str) -> dict[str, Array]:
        """All parameters of a part, by name."""
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
    """Vectors of token, position and segment, normalised and mapped to length H.

    `{"ids", "mask"}`, each `[N, T]`, to `{"h": [N, T, H], "mask": [N, T]}`.
    """

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> PyTree:
        del context
        ids, mask = text.tokens(h)
        length = ids.shape[1]
        if length > self.config.positions:
            raise InputError(
                f"sequences have {length} tokens, but ALBERT knows "
                f"{self.config.positions} positions; lower max_tokens"
            )
        p = self.parameters("embeddings")
        out = text.look_up(p["words"], ids) + p["positions"][:length] + p["types"][0]
        out = layer_norm(out, p, "norm", self.config.epsilon)
        return _sequence(linear(out, p, "projection"), mask)


class EncoderLayer(Part):
    """Self-attention and a feed-forward part, each normalised after its residual.

    `{"h": [N, T, H], "mask": [N, T]}` to the same.
    """

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> PyTree:
        del context
        p, epsilon = self.parameters("encoder"), self.config.epsilon
        mask, h = text.real(h["mask"]), h["h"]
        attended = linear(attention(h, mask, p, self.config.heads), p, "out")
        h = layer_norm(h + attended, p, "attention_norm", epsilon)
        wide = nn.gelu(linear(h, p, "wide"), approximate=True)
        h = layer_norm(h + linear(wide, p, "narrow"), p, "norm", epsilon)
        return _sequence(h, mask)


class Pool(nn.Module):
    """A sequence as one vector: `{"h": [N, T, H], "mask": [N, T]}` to `[N, H]`.

    Attributes:
      kind: `first`, the vector of the first token, which ALBERT's tokenizer puts there
        for this; or `mean`, over all tokens.
    """

    kind: str

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> Array:
        del context
        if self.kind == "first":
            return h["h"][:, 0]
        return text.masked_mean(h["h"], text.real(h["mask"]))


class Dense(Part):
    """The fully connected layer on top, with tanh: `[N, H]` to `[N, H]`."""

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        p = self.parameters("dense")
        out = context.linear(h, p["kernel"], jnp.matmul)
        return jnp.tanh(out + p["bias"])


def _sequence(h: Array, mask: Array) -> PyTree:
    # Zeros at padding: mixed with a longer sequence, it must not add anything.
    return {"h": h * mask[..., None], "mask": mask}


def linear(h: Array, p: Mapping[str, Array], name: str) -> Array:
    """The linear map `name` of the last axis."""
    return h @ p[f"{name}_kernel"] + p[f"{name}_bias"]


def layer_norm(h: Array, p: Mapping[str, Array], name: str, epsilon: float) -> Array:
    """Layer normalisation over the last axis, with scale and offset `name`."""
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    out = centred * jax.lax.rsqrt(variance + epsilon)
    return out * p[f"{name}_scale"] + p[f"{name}_offset"]


def attention(h: Array, mask: Array, p: Mapping[str, Array], heads: int) -> Array:
    r""":math:`\mathrm{softmax}(QK^\top/\sqrt d)\,V` for each head, `[N, T, H]`.

    Args:
      h: `[N, T, H]`.
      mask: `[N, T]`, 0 for tokens that none may look at.
      p: parameters of the maps query, key and value.
      heads: into how many parts the H numbers are cut.
    """
    query, key, value = (
        linear(h, p, name).reshape(*h.shape[:2], heads, -1)
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / np.sqrt(query.shape[-1])
    # The lowest number rather than -inf: a sequence of padding alone stays finite.
    lowest = jnp.finfo(scores.dtype).min
    scores = jnp.where(mask[:, None, None, :] > 0, scores, lowest)
    out = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), value)
    return out.reshape(h.shape)


# --------------------------------------------------------------------- the network


def albert(
    pretrained: str | os.PathLike[str] | None = None, pool: str = "first", **sizes: int
) -> Stack:
    """ALBERT with a fully connected layer on top.

    The layers are: 0, the embeddings; 1 to L, the encoder layer, whose parameters are
    those of layer 1 each time; L + 1, the pooling; L + 2, a fully connected layer with
    tanh, the first of the two of the paper's classifier. The second is the head that a
    gradient-based learner puts on top; a metric-based one compares what the first
    gives. ALBERT's own classifier is made in this way, so with `first` the layer
    starts from the checkpoint's pooler, where it has one.

    Args:
      pretrained: folder of a checkpoint that parameters start from, see
        `load_pretrained`; None for random ones.
      pool: how a sequence becomes a vector, `first` or `mean`, see `Pool`.
      **sizes: fields of `AlbertConfig`, if there is no checkpoint to tell them.
    """
    if pool not in POOLS:
        raise unknown_name("pooling of ALBERT", pool, POOLS)
    check_options("backbone albert", AlbertConfig, sizes)
    if pretrained is not None and sizes:
        raise InputError(
            f"ALBERT's sizes are those of the checkpoint {pretrained}; leave out "
            f"{', '.join(sizes)}, or pretrained"
        )
    start = None if pretrained is None else load_pretrained(pretrained)
    config = AlbertConfig(**sizes) if start is None else start.config
    repeated = (EncoderLayer(config, start),) * config.layers
    dense = Dense(config, start if pool == "first" else None)
    layers = (Embeddings(config, start), *repeated, Pool(pool), dense)
    tied = (0, *(1 for _ in repeated), config.layers + 1, config.layers + 2)
    return Stack(layers, tied)
