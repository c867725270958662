"""Figures of training tasks, as drawn and as the strategy changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from mlti_jax.data import ClassPool
from mlti_jax.data._pools import Pool
from mlti_jax.plotting import _draw_tasks, _side_by_side
from mlti_jax.report._charts import WIDTH, short
from mlti_jax.report._page import Part, Picture
from mlti_jax.report._statistics import principal_axes
from mlti_jax.report._svg import COLORS
from mlti_jax.strategies import Strategy
from mlti_jax.training import Episode
from mlti_jax.types import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IMAGE_TASKS, _VECTOR_TASKS = 4, 3
_IMAGES_PER_TASK = 10
_LARGEST_SIDE = 48  # pixels of an image
_MARKERS = "os^Dv<>pP*"


def task_parts(pool: Pool, strategy: Strategy, episode: Episode) -> tuple[Part, ...]:
    """Return figures of tasks before and after the strategy, or say why there are none.

    Args:
      pool: the training pool.
      strategy: the strategy.
      episode: size of a training task.
    """
    leaves = jax.tree.leaves(pool.x)
    kind = leaves[0].dtype.kind if len(leaves) == 1 else ""
    images = len(leaves) == 1 and leaves[0].ndim == 4
    if kind not in ("f", "u") or not (images or leaves[0].ndim == 2):
        return (
            "The inputs are neither images nor vectors of numbers, so no tasks are "
            "shown.",
        )
    unchanged = not strategy.changes_inputs
    if 0 not in strategy.layers:
        strategy = strategy._replace(transform=None)
    hidden = not unchanged and not strategy.changes_inputs
    number = _IMAGE_TASKS if images else _VECTOR_TASKS
    drawn, changed = jax.device_get(_draw_tasks(pool, strategy, episode, number))
    names = _names(pool, drawn)
    draw = _image_figures if images else _vector_figures
    before, after = draw(drawn, changed, names, strategy.name, episode)
    if unchanged:
        text = f"The strategy {strategy.name} leaves samples as they are drawn."
        return (text, before)
    if hidden:
        layers = " or ".join(map(str, strategy.layers))
        text = (
            f"The strategy {strategy.name} changes tasks inside the network (layer "
            f"{layers}), which a figure of the inputs cannot show."
        )
        return (text, before)
    deeper = [str(layer) for layer in strategy.layers if layer]
    text = f"{number} training tasks, and what {strategy.name} makes of them."
    if deeper:
        text += f" Here at the input; in training also at layer {' or '.join(deeper)}."
    return (text, before, after)


def _names(pool: Pool, tasks: Task) -> list[str]:
    if isinstance(pool, ClassPool):
        return [f"task {i + 1}" for i in range(len(tasks.domain))]
    return [pool.domains[domain] for domain in tasks.domain]


def _image_figures(
    drawn: Task, changed: Task, names: Sequence[str], strategy: str, episode: Episode
) -> tuple[Picture, Picture]:
    """Draw one row of images per task, classes in turn."""
    order = np.arange(drawn.support.y.shape[1]).reshape(episode.ways, -1).T.reshape(-1)
    order = order[:_IMAGES_PER_TASK]
    low = min(0.0, float(drawn.support.x.min()))
    high = max(1.0, float(drawn.support.x.max()))

    def picture(tasks: Task, caption: str) -> Picture:
        rows = [
            _side_by_side(_small((images[order] - low) / (high - low)))
            for images in tasks.support.x
        ]

        def draw(fig: Figure) -> None:
            axes = fig.subplots(len(rows), 1, squeeze=False)[:, 0]
            for axis, row, name in zip(axes, rows, names, strict=True):
                axis.imshow(row)
                axis.set_xticks([])
                axis.set_yticks([row.shape[0] / 2], [short(name, 16)])
                axis.tick_params(length=0, labelsize=7)
                axis.spines[:].set_visible(False)

        height = 0.1 + len(rows) * min(0.9, 0.12 + 3.9 * _aspect(rows[0]))
        return Picture(draw, caption, caption, (WIDTH, height))

    return (
        picture(drawn, "Tasks as drawn, one per row."),
        picture(changed, f"The same tasks after {strategy}."),
    )


def _aspect(row: np.ndarray) -> float:
    return row.shape[0] / row.shape[1]


def _small(images: np.ndarray) -> np.ndarray:
    """Make images `[N, H, W, C]` small and RGB or gray, to keep the file small."""
    if images.shape[-1] not in (1, 3):
        images = images.mean(axis=-1, keepdims=True)
    factor = -(-max(images.shape[1:3]) // _LARGEST_SIDE)
    if factor == 1:
        return images
    height, width = (side // factor for side in images.shape[1:3])
    images = images[:, : height * factor, : width * factor]
    shape = (len(images), height, factor, width, factor, images.shape[-1])
    return images.reshape(shape).mean(axis=(2, 4))


def _vector_figures(
    drawn: Task, changed: Task, names: Sequence[str], strategy: str, episode: Episode
) -> tuple[Picture, Picture]:
    """Scatter the samples of tasks in the plane of their principal components."""
    sets = [
        np.concatenate([task.support.x, task.query.x], axis=1)
        for task in (drawn, changed)
    ]
    mean, axes = principal_axes(sets[0].reshape(-1, sets[0].shape[-1]))
    points = [(x - mean) @ axes for x in sets]
    low = np.min([p.min(axis=(0, 1)) for p in points], axis=0)
    high = np.max([p.max(axis=(0, 1)) for p in points], axis=0)
    room = 0.05 * (high - low) + 1e-6

    def picture(tasks: Task, position: np.ndarray, caption: str) -> Picture:
        labels = np.concatenate([tasks.support.y, tasks.query.y], axis=1).argmax(-1)

        def draw(fig: Figure) -> None:
            axis = fig.subplots()
            for index, name in enumerate(names):
                color = COLORS[index % len(COLORS)]
                for label in np.unique(labels[index]):
                    own = position[index][labels[index] == label]
                    axis.plot(
                        own[:, 0],
                        own[:, 1],
                        _MARKERS[label % len(_MARKERS)],
                        ms=4,
                        mew=0,
                        alpha=0.7,
                        color=color,
                    )
                axis.plot([], [], "o", ms=4, color=color, label=short(name))
            axis.set(xlabel="first component", ylabel="second component")
            axis.set(xlim=(low[0] - room[0], high[0] + room[0]))
            axis.set(ylim=(low[1] - room[1], high[1] + room[1]))
            fig.legend(loc="outside upper center", ncols=3)

        return Picture(draw, caption, caption, (WIDTH, 3.2))

    shapes = " The shape of a dot is its class." if episode.ways > 1 else ""
    return (
        picture(
            drawn,
            points[0],
            f"Tasks as drawn, in their first two principal components.{shapes}",
        ),
        picture(changed, points[1], f"The same tasks after {strategy}, same axes."),
    )
