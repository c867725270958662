"""What networks for text share, and the light one: the mean of word vectors.

The input of a text network is `{"ids": [N, T], "mask": [N, T]}`: the numbers of the
tokens, whole, and what is above 0 where a token is real and 0 where it is padding.
Networks that keep the sequence hand `{"h": [N, T, H], "mask": [N, T]}` from layer to
layer, with zeros in `h` at padding. Interpolation mixes both leaves alike, which makes
the mask of a mixed sequence positive wherever one of the two has a token: the union,
as soon as a layer reads it by `real`. What the shorter one adds there is zero.

Tokens themselves have no mean: interpolate at the layers from 1 up.
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
    """The tokens `[N, T]` and their mask, of zeros and ones, from a network's input."""
    if not isinstance(x, dict) or not {"ids", "mask"} <= set(x):
        raise InputError(
            "a text network takes {'ids': [N, T], 'mask': [N, T]}, got "
            f"{sorted(x) if isinstance(x, dict) else type(x).__name__}; load the "
            "dataset with features of tokens"
        )
    ids, mask = x["ids"], x["mask"]
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise InputError(
            f"ids of tokens are {ids.dtype}; expected whole numbers. Tokens can't be "
            "interpolated: take layers from 1 up"
        )
    if ids.shape != mask.shape or ids.ndim != 2:
        raise InputError(
            f"ids have shape {ids.shape} and mask {mask.shape}; expected [N, T] twice"
        )
    return ids, real(mask)


def real(mask: Array) -> Array:
    """1 where there is a token and 0 at padding; see above on mixed sequences."""
    return (mask > 0).astype(jnp.float32)


def look_up(table: Array, ids: Array) -> Array:
    """Rows of a table, float32 `[N, T, D]`; NaN for a token that it does not have.

    Indexing would take the table's last row instead, and the mistake be hidden.
    """
    rows = jnp.take(table, ids, axis=0, mode="fill", fill_value=jnp.nan)
    return rows.astype(jnp.float32)


def masked_mean(h: Array, mask: Array) -> Array:
    """The mean over the tokens, `[N, T, D]` to `[N, D]`; zero where there is none."""
    count = mask.sum(axis=1, keepdims=True)
    return jnp.einsum("ntd,nt->nd", h, mask) / jnp.maximum(count, 1.0)


# ------------------------------------------------------------------ the mean of words


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Word vectors `[V, D]`; a table is equal to itself alone, so modules can be."""

    vectors: Array


@functools.cache
def wordllama_table() -> Table:
    """The 32,000 vectors of length 256 that come with wordllama, float16."""
    safetensors = extras.require("safetensors", "text")
    # The package's own loader looks the file up on a hub, so it needs a network.
    path = extras.package_file("wordllama", WORDLLAMA_TABLE, "text")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            vectors = file.get_tensor(WORDLLAMA_TENSOR)
    except safetensors.SafetensorError as error:
        raise InputError(
            f"{path} can't be read ({error}); install wordllama again"
        ) from error
    return Table(jnp.asarray(vectors))


class TokenMean(nn.Module):
    """The direction of the mean of a title's word vectors: `{ids, mask}` to `[N, D]`.

    The mean of few words is longer than that of many, which says nothing of what they
    mean and rules distances; so it is brought to length 1.

    Attributes:
      table: the vectors.
      train_table: whether they are parameters. If not, they are a constant of the
        compiled program, and so neither in a gradient nor in a checkpoint.
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
    """The mean of wordllama's vectors at length 1, then fully connected blocks.

    A stand-in for ALBERT (App. E.8) that is there once installed and cheap to run; as
    with ALBERT, the default has one block, which a learner's head follows.

    Args:
      hidden: outputs of each block.
      slope: of the leaky ReLU; 0 is ReLU.
      dropout: share of each block's outputs set to zero in training.
      norm: whether each block has a batch-norm. It gives features a scale that inner
        learning rates suit; squared distances are far too large at that scale.
      train_table: whether the vectors are trained too.
    """
    blocks = dense_blocks(hidden, slope, dropout, norm)
    return Stack((TokenMean(wordllama_table(), train_table), *blocks))
