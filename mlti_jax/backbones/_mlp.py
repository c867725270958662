"""The fully connected networks for molecules and for cells (App. D.1 and E.1)."""

from __future__ import annotations

from mlti_jax.backbones._layers import DenseBlock
from mlti_jax.backbones._stack import Stack
from mlti_jax.errors import InputError


def mlp(
    hidden: tuple[int, ...] = (500, 500), slope: float = 0.01, dropout: float = 0.0
) -> Stack:
    """Fully connected blocks; the defaults are the network for molecules (1024 bits).

    The network for cells (2,866 genes) is `mlp((64, 64), slope=0.0, dropout=0.2)`.

    Args:
      hidden: outputs of each block.
      slope: of the leaky ReLU; 0 is ReLU.
      dropout: share of each block's outputs set to zero in training.
    """
    return Stack(dense_blocks(hidden, slope, dropout))


def dense_blocks(
    hidden: tuple[int, ...], slope: float, dropout: float, norm: bool = True
) -> tuple[DenseBlock, ...]:
    """Fully connected blocks with `hidden` outputs each; see `DenseBlock`."""
    if not hidden or min(hidden) < 1 or not 0 <= dropout < 1:
        raise InputError(
            "fully connected blocks need sizes >= 1 and a dropout in [0, 1), got "
            f"hidden={tuple(hidden)}, dropout={dropout}"
        )
    return tuple(DenseBlock(size, slope, dropout, norm) for size in hidden)
