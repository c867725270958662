"""Figures of interpolated tasks and of learning curves.

Both functions return a `matplotlib.figure.Figure`, which a notebook displays, and
save it if they are given a path. They need matplotlib (`pip install
'mlti_jax[plot]'`) and leave its backend alone.
"""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from mlti_jax._internal.figures import COLORS, COLUMN_WIDTH, new_figure
from mlti_jax.data import sample_task
from mlti_jax.data._placement import kind_of
from mlti_jax.data._pools import Pool, task_inputs
from mlti_jax.data._task_source import read_tasks
from mlti_jax.errors import InputError
from mlti_jax.strategies import Strategy
from mlti_jax.strategies._base import repeat_support
from mlti_jax.training import Episode, Experiment
from mlti_jax.training import _metrics as metrics
from mlti_jax.types import Array, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["interpolated_tasks", "learning_curves"]

_COMPILE_FAST: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
_IMAGES_PER_TASK = 10
_DPI = 150


def interpolated_tasks(
    experiment: Experiment,
    path: str | os.PathLike[str] | None = None,
    *,
    rows: int = 4,
    seed: int = 0,
) -> Figure:
    """Plot a meta-batch before and after interpolation, one task per row.

    Shows the first ten images of each support set: on the left as drawn from the
    training pool, on the right as the strategy changes them at the input (layer 0).

    Args:
      experiment: an experiment on images, as built by `mlti_jax.training.build`.
      path: where to save the figure; not saved if None.
      rows: number of tasks in the meta-batch.
      seed: for the tasks and for the interpolation.

    Returns:
      The figure.

    Raises:
      InputError: if the strategy changes no inputs, if the inputs are not
        images, or if matplotlib is not installed.
    """
    pool = experiment.splits.train
    if not experiment.strategy.changes_inputs:
        raise InputError(
            f"strategy {experiment.strategy.name!r} leaves tasks as they are drawn;"
            " choose one that interpolates them, such as 'mlti'"
        )
    shapes = [leaf.shape for leaf in jax.tree.leaves(pool.x)]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise InputError(
            f"the training pool has inputs of shape {shapes[0]}; expected"
            " images [N, height, width, channels]"
        )
    tasks, changed = _draw_tasks(
        pool, experiment.strategy, experiment.episode, rows, seed
    )
    sets = (tasks.support.x, changed.support.x)
    change = "interpolated" if experiment.strategy.transform else "changed"
    titles = ("tasks of a meta-batch", f"{change} ({experiment.strategy.name})")
    fig = new_figure(7.0, 0.42 * rows + 0.35)
    axes = fig.subplots(rows, 2, squeeze=False)
    for column, (title, images_of) in enumerate(zip(titles, sets, strict=True)):
        axes[0, column].set_title(title, fontsize=9)
        for row in range(rows):
            images = np.asarray(images_of[row][:_IMAGES_PER_TASK])
            axes[row, column].imshow(_side_by_side(images))
            axes[row, column].set_axis_off()
    fig.tight_layout(pad=0.3, w_pad=1.2, h_pad=0.3)
    return _saved(fig, path)


def _draw_tasks(
    pool: Pool, strategy: Strategy, episode: Episode, number: int, seed: int = 0
) -> tuple[Task, Task]:
    """Draw a meta-batch of tasks, and the same as a strategy changes it at the input.

    Returns:
      Two tasks with leading axis `[number]`, of a strategy that makes several versions
      of a task, the first. Both are the same if the strategy changes no inputs.
    """
    key_tasks, key_mix = jax.random.split(jax.random.key(seed))
    augment, transform = strategy.augment, strategy.transform

    # Runs once, so compiling fast matters more than running fast.
    @partial(jax.jit, compiler_options=_COMPILE_FAST)
    def draw(source: Pool | Task, keys: Array) -> tuple[Task, Task]:
        if isinstance(source, Task):
            tasks = task_inputs(source)
        else:
            sizes = episode._asdict()
            tasks = jax.vmap(lambda key: sample_task(source, key, **sizes))(keys)
        seen = tasks
        if augment is not None:
            own_keys = jax.random.split(jax.random.fold_in(key_tasks, number), number)
            seen = jax.vmap(augment)(own_keys, tasks)
        if transform is None:
            return tasks, seen
        changed = repeat_support(transform(seen, key_mix, number))
        return tasks, jax.tree.map(lambda leaf: leaf[:, 0], changed)

    keys = jax.random.split(key_tasks, number)
    if kind_of(pool) == "device":
        return draw(pool, keys)
    return draw(read_tasks(pool, keys, **episode._asdict()), keys)


def learning_curves(
    runs: Mapping[str, str | os.PathLike[str]],
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Plot the metric on training and validation tasks against training steps.

    Training curves are dotted. Validation curves are solid, with a band for the 95 %
    confidence interval.

    Args:
      runs: work directory of each run by the name to show in the legend. Runs are
        given different colors.
      path: where to save the figure; not saved if None.

    Returns:
      The figure.

    Raises:
      InputError: if `runs` is empty, if a run has not logged any metric yet, or if
        matplotlib is not installed.
    """
    if not runs:
        raise InputError("runs is empty; expected work directories of runs by name")
    fig = new_figure(COLUMN_WIDTH, 3.4)
    axis = fig.subplots()
    for color, (name, workdir) in zip(
        itertools.cycle(COLORS), runs.items(), strict=False
    ):
        metric = _plot_run(axis, name, pathlib.Path(workdir), color)
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
    return _saved(fig, path)


def _plot_run(axis: Axes, name: str, workdir: pathlib.Path, color: str) -> str:
    """Plot the curves of one run; return the name of its metric."""
    file = workdir / "metrics.jsonl"
    lines = metrics.read(file) if file.is_file() else []
    if not lines:
        raise InputError(
            f"run {name!r} has no metrics in {file}; give the work directory of a run"
            " that has been evaluated at least once"
        )
    metric = next(key for key in ("accuracy", "mse") if key in lines[0])
    scale = 100 if metric == "accuracy" else 1
    for split, style in (("train", ":"), ("validation", "-")):
        points = [line for line in lines if line["split"] == split]
        if not points:
            continue
        steps = np.array([point["step"] for point in points])
        values = scale * np.array([point[metric] for point in points])
        axis.plot(steps, values, style, color=color, lw=1.4, label=f"{name}, {split}")
        if split == "validation":
            ci95 = scale * np.array([point["ci95"] for point in points])
            axis.fill_between(
                steps, values - ci95, values + ci95, color=color, alpha=0.15, lw=0
            )
    return metric


def _side_by_side(images: np.ndarray, gap: int = 2) -> np.ndarray:
    """Put images `[N, H, W, C]` into one row on white."""
    number, height, width, _ = images.shape
    row = np.ones((height, number * (width + gap) - gap, 3))
    for index, image in enumerate(images):
        left = index * (width + gap)
        row[:, left : left + width] = image
    return row.clip(0, 1)


def _saved(fig: Figure, path: str | os.PathLike[str] | None) -> Figure:
    if path is not None:
        fig.savefig(path, dpi=_DPI)
    return fig
