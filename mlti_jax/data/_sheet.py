"""Sheets that show a dataset: sample images, or statistics of its vectors."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import jax
import numpy as np

from mlti_jax._internal.figures import new_figure
from mlti_jax.data._pools import ClassPool, DomainPool, Pool
from mlti_jax.data._splits import Splits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPLITS = ("train", "validation", "test")
ROWS, COLUMNS = 10, 10
MAX_BARS = 200  # groups with a bar and a name
_SAMPLES_PER_PASS = 4096
COLORS = {"train": "#2471a3", "validation": "#b7950b", "test": "#c0392b"}


def save_sheet(splits: Splits, path: pathlib.Path) -> None:
    """Plot the first classes or domains of each split and save the figure."""
    pools = {name: getattr(splits, name) for name in SPLITS}
    pools = {name: pool for name, pool in pools.items() if pool is not None}
    leaves = jax.tree.leaves(splits.train.x)
    if len(leaves) == 1 and leaves[0].ndim == 4:
        fig = _images(pools)
    else:
        fig = _vectors(pools)
    fig.suptitle(splits.name, fontsize=10)
    fig.savefig(path, dpi=110)


def _images(pools: dict[str, Pool]) -> Figure:
    """Plot samples: one panel per split, one row per class or domain."""
    rows = max(len(pool.count[:ROWS]) for pool in pools.values())
    fig = new_figure(4.6 * len(pools), 0.7 + 0.38 * rows, layout="constrained")
    axes = fig.subplots(1, len(pools), squeeze=False)
    for ax, (split, pool) in zip(axes[0], pools.items(), strict=True):
        names, samples = _groups(pool)
        tiles = [np.asarray(pool.x[part]) for part in samples]
        height, width = pool.x.shape[1:3]
        canvas = np.full((len(tiles) * height, COLUMNS * width, 3), 255, np.uint8)
        for i, part in enumerate(tiles):
            for j, image in enumerate(part):
                canvas[i * height : (i + 1) * height, j * width : (j + 1) * width] = (
                    image
                )
        ax.imshow(canvas)
        ax.set_anchor("N")
        ax.set_yticks([(i + 0.5) * height for i in range(len(names))], names)
        ax.tick_params(labelsize=6, length=0)
        ax.set_xticks([])
        ax.set_title(f"{split}: first {len(names)} of {_number(pool)}", fontsize=8)
        for spine in ax.spines.values():
            spine.set_visible(False)
    return fig


def _groups(pool: Pool) -> tuple[list[str], list[np.ndarray]]:
    """Return names of the first classes or domains and indices of their samples."""
    rng = np.random.default_rng(0)
    index, count = np.asarray(pool.index), np.asarray(pool.count)
    names, rows = [], []
    groups = pool.classes if isinstance(pool, ClassPool) else pool.domains
    for i, name in enumerate(groups[:ROWS]):
        if isinstance(pool, DomainPool):  # One sample per class.
            classes = range(min(COLUMNS, len(pool.classes)))
            picked = [index[i, c, rng.integers(count[i, c])] for c in classes]
        else:
            picked = index[i, rng.permutation(count[i])[:COLUMNS]]
        names.append(_short(name))
        rows.append(np.array(picked))
    return names, rows


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def _number(pool: Pool) -> str:
    if isinstance(pool, ClassPool):
        return f"{len(pool.classes)} classes"
    kind = "domains" if isinstance(pool, DomainPool) else "objects"
    return f"{len(pool.domains)} {kind}"


def _vectors(pools: dict[str, Pool]) -> Figure:
    """Plot how many features of a sample are nonzero, and the sizes of the groups."""
    fig = new_figure(8.4, 3.4, layout="constrained")
    left, right = fig.subplots(1, 2)
    nonzero = {split: _nonzero(pool.x) for split, pool in pools.items()}
    largest = max(values.max() for values in nonzero.values())
    # Bin widths are integers, so each bin covers equally many values.
    bins = np.arange(0, largest + 2, max(1, largest // 40)) - 0.5
    ticks: list[int] = []
    names: list[str] = []
    many = any(len(pool.count) > MAX_BARS for pool in pools.values())
    for split, pool in pools.items():
        color = COLORS[split]
        left.hist(
            nonzero[split],
            bins,
            density=True,
            histtype="step",
            linewidth=1.3,
            color=color,
            label=split,
        )
        sizes = np.asarray(pool.count).reshape(len(pool.count), -1).sum(axis=1)
        places = (ticks[-1] + 2 if ticks else 0) + np.arange(len(sizes))
        if many:
            right.step(places, np.sort(sizes)[::-1], color=color)
        else:
            right.bar(places, sizes, color=color)
        ticks += places.tolist()
        names += pool.classes if isinstance(pool, ClassPool) else pool.domains
    features = next(iter(pools.values())).x.shape[1]
    left.set_xlabel(f"nonzero features per sample, of {features:,}", fontsize=8)
    left.set_ylabel("density", fontsize=8)
    right.set_ylabel("samples", fontsize=8)
    if many:
        right.set_yscale("log")
        right.set_xlabel("groups, from the largest to the smallest", fontsize=8)
    else:
        small = 7 if len(names) <= 20 else 3.5
        right.set_xticks(ticks, map(_short, names), rotation=90, fontsize=small)
    left.legend(fontsize=7, frameon=False)
    left.tick_params(labelsize=7)
    right.tick_params(axis="y", labelsize=7)
    return fig


def _nonzero(x: np.ndarray) -> np.ndarray:
    """Count the features of each sample that are not 0, without a copy of all of x."""
    starts = range(0, len(x), _SAMPLES_PER_PASS)
    parts = [np.asarray(x[start : start + _SAMPLES_PER_PASS]) for start in starts]
    return np.concatenate([np.count_nonzero(part, axis=1) for part in parts])
