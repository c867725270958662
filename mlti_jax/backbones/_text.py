"""Shared code of text backbones, and `word_mean`, the mean of word vectors.

The input of a text backbone is `{"ids": [N, T], "mask": [N, T]}`: integer token ids,
and a mask that is positive for tokens and 0 for padding. Layers that keep the sequence
pass on `{"h": [N, T, H], "mask": [N, T]}` with zeros in `h` at padding. Interpolation
mixes both leaves, so the mask of a mixed sequence is positive wherever one of the two
has a token. `token_mask` turns it into the union of both masks, and the shorter
sequence contributes zeros there.

Token ids can't be interpolated: use layers from 1 on.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp

from mlti_jax import ops
from mlti_jax._internal import extras
from mlti_jax.backbones._mlp import dense_blocks
from mlti_jax.backbones._stack import Context, Stack
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

WORDLLAMA_TABLE = "weights/l2_supercat_256.safetensors"
WORDLLAMA_TENSOR = "embedding.weight"


def tokens(x: PyTree) -> tuple[Array, Array]:
    """Check the input of a text backbone and return ids and 0/1 mask, `[N, T]` each.

    Raises:
      InputError: if the input has another structure, dtype or shape.
    """
    if not isinstance(x, dict) or not {"ids", "mask"} <= set(x):
        raise InputError(
            "a text backbone takes {'ids': [N, T], 'mask': [N, T]}, got "
            f"{sorted(x) if isinstance(x, dict) else type(x).__name__}; load the "
            "dataset with token features"
        )
    ids, mask = x["ids"], x["mask"]
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise InputError(
            f"token ids have dtype {ids.dtype}; expected integers. Tokens can't be "
            "interpolated: use layers from 1 on"
        )
    if ids.shape != mask.shape or ids.ndim != 2:
        raise InputError(
            f"ids have shape {ids.shape} and mask {mask.shape}; expected both [N, T]"
        )
    return ids, token_mask(mask)


def token_mask(mask: Array) -> Array:
    """Return 1 for tokens and 0 for padding, also for a mixed mask."""
    return (mask > 0).astype(jnp.float32)


def look_up(table: Array, ids: Array) -> Array:
    """Look up rows of a table, float32 `[N, T, D]`.

    Ids outside the table give NaN. Indexing would return the last row instead and hide
    the error.
    """
    rows = jnp.take(table, ids, axis=0, mode="fill", fill_value=jnp.nan)
    return rows.astype(jnp.float32)


def masked_mean(h: Array, mask: Array) -> Array:
    """Return the mean over tokens, `[N, T, D]` to `[N, D]`; 0 without tokens."""
    count = mask.sum(axis=1, keepdims=True)
    return jnp.einsum("ntd,nt->nd", h, mask) / jnp.maximum(count, 1.0)


# ------------------------------------------------------------------------ word_mean


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Word vectors `[V, D]`; compared by identity, which makes modules hashable."""

    vectors: Array


@functools.cache
def wordllama_table() -> Table:
    """Load the 32,000 vectors of length 256 of the package wordllama, float16."""
    safetensors = extras.require("safetensors", "text")
    # The package's own loader needs network access.
    path = extras.package_file("wordllama", WORDLLAMA_TABLE, "text")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            vectors = file.get_tensor(WORDLLAMA_TENSOR)
    except safetensors.SafetensorError as error:
        raise InputError(
            f"can't read {path} ({error}); install wordllama again"
        ) from error
    return Table(jnp.asarray(vectors))


class TokenMean(nn.Module):
    """Normalized mean of the word vectors of a title: `{ids, mask}` to `[N, D]`.

    The norm of the mean decreases with the number of words. It carries no meaning but
    would dominate distances, so the mean is scaled to norm 1.

    Attributes:
      table: the vectors.
      train_table: whether the vectors are parameters. Otherwise they are a constant of
        the compiled program, without gradients and not saved in checkpoints.
    """

    table: Table
    train_table: bool = False

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> Array:
        del context
        ids, mask = tokens(h)
        vectors = self.table.vectors
        if self.train_table:
            vectors = self.param("table", lambda _: vectors.astype(jnp.float32))
        return ops.unit(masked_mean(look_up(vectors, ids), mask))


def word_mean(
    hidden: tuple[int, ...] = (256,),
    slope: float = 0.01,
    dropout: float = 0.0,
    norm: bool = True,
    train_table: bool = False,
) -> Stack:
    """Create a backbone of wordllama's mean word vectors and fully connected blocks.

    A cheap replacement of ALBERT (App. E.8) that needs no download. Like ALBERT's, the
    default has one block before a learner's head.

    Args:
      hidden: number of outputs of each block.
      slope: slope of the leaky ReLU; 0 for ReLU.
      dropout: dropout rate of each block's outputs in training.
      norm: whether each block has batch normalization. Its feature scale suits inner
        learning rates of gradient-based learners, but squared distances of
        metric-based learners become far too large.
      train_table: whether to train the word vectors too.
    """
    blocks = dense_blocks(hidden, slope, dropout, norm)
    return Stack((TokenMean(wordllama_table(), train_table), *blocks))
