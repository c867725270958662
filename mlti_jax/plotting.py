"""Pictures of tasks and of learning curves; what all figures share."""

from __future__ import annotations

import itertools
import pathlib

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from mlti_jax.data import sample_task  # noqa: E402
from mlti_jax.training import Experiment  # noqa: E402
from mlti_jax.training import _metrics as metrics  # noqa: E402

COLOURS = ("#4c566a", "#c0392b", "#2471a3", "#229954", "#b7950b")


def interpolated_tasks(
    experiment: Experiment, path: pathlib.Path, rows: int = 4, seed: int = 0
) -> None:
    """A meta-batch, and what the strategy makes of it, one task a row.

    Shows the first ten images of the support sets.
    """
    strategy, pool = experiment.strategy, experiment.splits.train
    key_tasks, key_mix = jax.random.split(jax.random.key(seed))
    episode = experiment.episode._asdict()

    @jax.jit
    def draw(pool):
        keys = jax.random.split(key_tasks, rows)
        tasks = jax.vmap(lambda k: sample_task(pool, k, **episode))(keys)
        mixed = strategy.transform(None, tasks, key_mix, 0, rows)
        return tasks.support.x, mixed.support.x[:, 0]

    titles = ("tasks of a meta-batch", "what the strategy makes of them")
    columns = dict(zip(titles, draw(pool), strict=True))
    fig, axes = plt.subplots(rows, 2, figsize=(7.0, 0.42 * rows + 0.35), squeeze=False)
    for column, (title, sets) in enumerate(columns.items()):
        axes[0, column].set_title(title, fontsize=9)
        for row in range(rows):
            axes[row, column].imshow(_strip(np.asarray(sets[row][:10])))
            axes[row, column].set_axis_off()
    fig.tight_layout(pad=0.3, w_pad=1.2, h_pad=0.3)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def _strip(images: np.ndarray, gap: int = 2) -> np.ndarray:
    """Images `[N, H, W, C]` side by side on white."""
    number, height, width, _ = images.shape
    strip = np.ones((height, number * (width + gap) - gap, 3))
    for index, image in enumerate(images):
        left = index * (width + gap)
        strip[:, left : left + width] = image
    return strip.clip(0, 1)


def learning_curves(runs: dict[str, pathlib.Path], path: pathlib.Path) -> None:
    """Metric on training and on validation tasks against steps, one colour a run."""
    fig, axis = plt.subplots(figsize=(5.2, 3.4))
    for colour, (name, folder) in zip(
        itertools.cycle(COLOURS), runs.items(), strict=False
    ):
        lines = metrics.read(folder / "metrics.jsonl")
        metric = next(key for key in ("accuracy", "mse") if key in lines[0])
        scale = 100 if metric == "accuracy" else 1
        for split, style in (("train", ":"), ("validation", "-")):
            points = [line for line in lines if line["split"] == split]
            if not points:
                continue
            steps = np.array([point["step"] for point in points])
            values = scale * np.array([point[metric] for point in points])
            axis.plot(
                steps, values, style, color=colour, lw=1.4, label=f"{name}, {split}"
            )
            if split == "validation":
                ci95 = scale * np.array([point["ci95"] for point in points])
                axis.fill_between(
                    steps, values - ci95, values + ci95, color=colour, alpha=0.15, lw=0
                )
    axis.set_xlabel("training steps")
    axis.set_ylabel("accuracy, %" if metric == "accuracy" else metric)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(
        frameon=False,
        fontsize=8,
        ncols=2,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
    fig.tight_layout()
    fig.savefig(path, dpi=150)
    plt.close(fig)


def make_light(axes: np.ndarray) -> None:
    """Small letters, and no frame above and to the right."""
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)


def finish(fig, axes, path: pathlib.Path, columns: int, legend_of=None) -> None:
    """One legend above all axes; saves and closes.

    Args:
      fig, axes: the figure, and its axes in an array of any shape.
      path: the file to write.
      columns: of the legend.
      legend_of: the axes whose lines the legend names; the first if not given.
    """
    axes = np.ravel(axes)
    make_light(axes)
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
    fig.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(fig)
