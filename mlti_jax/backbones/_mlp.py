"""Fully connected networks for molecules and cells (App. D.1 and E.1)."""

from __future__ import annotations

from mlti_jax.backbones._layers import DenseBlock
from mlti_jax.backbones._stack import Stack, are_sizes
from mlti_jax.errors import InputError


def mlp(
    hidden: tuple[int, ...] = (500, 500), slope: float = 0.01, dropout: float = 0.0
) -> Stack:
    """Build a fully connected network; the defaults are the one for molecules.

    The network for cells (2,866 genes) is `mlp((64, 64), slope=0.0, dropout=0.2)`.

    Args:
      hidden: output size of each block.
      slope: slope of the leaky ReLU; 0 is ReLU.
      dropout: fraction of each block's outputs set to zero in training.

    Returns:
      A stack from vectors `[N, D]` to `[N, hidden[-1]]`.

    Examples:
      >>> len(mlp((32, 32)))
      2
    """
    return Stack(dense_blocks(hidden, slope, dropout))


def dense_blocks(
    hidden: tuple[int, ...], slope: float, dropout: float, norm: bool = True
) -> tuple[DenseBlock, ...]:
    """Build one `DenseBlock` per entry of `hidden`."""
    if not are_sizes(hidden) or not 0 <= dropout < 1:
        raise InputError(
            "fully connected blocks need integers >= 1 as sizes and a dropout in "
            f"[0, 1), got hidden={tuple(hidden)}, dropout={dropout}"
        )
    return tuple(DenseBlock(size, slope, dropout, norm) for size in hidden)
