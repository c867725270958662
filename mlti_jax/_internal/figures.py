"""Style shared by all figures of the project; matplotlib is imported on use."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from mlti_jax._internal.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_WIDTH = 5.2  # inches; every figure is legible at this width
COLORS = ("#4c566a", "#c0392b", "#2471a3", "#229954", "#b7950b")


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Create a figure without pyplot, so the user's backend is left alone.

    Args:
      width: in inches.
      height: in inches.
      **options: passed to `matplotlib.figure.Figure`.

    Raises:
      InputError: if matplotlib is not installed.
    """
    require("matplotlib", "plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **options)


def style_axes(axes: np.ndarray) -> None:
    """Use small labels and remove the top and right spines of all axes."""
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)


def save_with_legend(
    fig: Figure,
    axes: np.ndarray | Axes,
    path: str | os.PathLike[str],
    columns: int,
    legend_of: Axes | None = None,
) -> None:
    """Style the axes, draw one legend above all of them and save the figure.

    Args:
      fig: the figure.
      axes: its axes, one or an array of any shape.
      path: the file to write.
      columns: number of columns of the legend.
      legend_of: the axes whose labels the legend lists; the first if None.
    """
    axes = np.ravel(np.asarray(axes, dtype=object))
    style_axes(axes)
    fig.tight_layout()
    handles, labels = (legend_of or axes[0]).get_legend_handles_labels()
    fig.legend(
        handles,
        labels,
        frameon=False,
        fontsize=7,
        ncols=columns,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
    fig.savefig(pathlib.Path(path), dpi=150, bbox_inches="tight")
