"""Small sentences and sizes of ALBERT."""

import jax.numpy as jnp
import numpy as np

ALBERT_SIZES = {
    "vocabulary": 50,
    "embedding": 8,
    "hidden": 32,
    "layers": 3,
    "heads": 4,
    "intermediate": 48,
    "positions": 12,
}


def sentences(lengths, width, seed=0, vocabulary=50):
    """Random tokens and padding; the same seed gives the same tokens at any width."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), width), np.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(1, vocabulary, length)
    mask = np.arange(width) < np.array(lengths)[:, None]
    junk = np.random.default_rng(seed + 100 + width).integers(0, vocabulary, ids.shape)
    return {"ids": jnp.asarray(np.where(mask, ids, junk)), "mask": jnp.asarray(mask)}
