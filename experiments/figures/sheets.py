"""A sheet of interpolated samples per dataset: pairs of samples and their mixtures.

Images are arranged in columns: a sample of task i, one of task j, and their mixture at
the input with the dataset's method (CutMix or Mixup). Vectors are drawn as strips that
show only the features that are not zero in both samples.
"""

from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax import interpolation
from mlti_jax._internal.figures import COLUMN_WIDTH, new_figure
from mlti_jax.data import sample_task
from mlti_jax.training import Experiment, build
from mlti_jax.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("task i", "task j", "mixture")
IMAGE_LAMBDAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
VECTOR_LAMBDAS = (0.1, 0.3, 0.5, 0.7, 0.9)
MAX_FEATURES = 120


def dataset_experiment(name: str, data_dir: str | None = None) -> Experiment:
    """Build the experiment of a dataset's config, with its default learner."""
    config = importlib.import_module(f"experiments.configs.{name}").get_config()
    return build(config, data_dir)


def reason_to_skip(experiment: Experiment) -> str | None:
    """Return why a sheet cannot be drawn, or None if it can."""
    layers = tuple(experiment.config.interpolation.layers)
    if 0 not in layers:
        return (
            "its tasks are interpolated in hidden layers only "
            f"({', '.join(map(str, layers))}), not at the input"
        )
    return None


def sheet(experiment: Experiment, path: pathlib.Path, seed: int = 0) -> None:
    """Draw the sheet of a dataset and save it."""
    images = experiment.splits.train.x.ndim == 4
    lambdas = IMAGE_LAMBDAS if images else VECTOR_LAMBDAS
    pairs = mixed_pairs(experiment, lambdas, seed)
    draw = _images if images else _strips
    draw(experiment, lambdas, *pairs).savefig(path, dpi=200)


def mixed_pairs(
    experiment: Experiment, lambdas: tuple[float, ...], seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw samples from pairs of tasks with different sources and mixes them.

    Args:
      experiment: the pool, the episode and the interpolation method come from here.
      lambdas: one pair is drawn for each; the share of task i.
      seed: of the draw.

    Returns:
      `x [3, n, ...]`, the samples of i, of j, and the mixtures; their labels or targets
      `y [2, n, C]`, of i and j; and the share of i in the label `[n]`, which for CutMix
      is the area that i keeps.
    """
    number = len(lambdas)
    keys = jax.random.split(jax.random.key(seed), 4)
    key_tasks, key_partners, key_rows, key_mix = keys
    method = getattr(interpolation, experiment.config.interpolation.method)

    def mix_pair(key: Array, lam: Array, x_i: Array, x_j: Array):
        mixing = method(key, lam, x_i[None])
        return interpolation.mix(mixing, x_i, x_j), mixing.label_weight

    @jax.jit
    def draw(pool):
        tasks = jax.vmap(
            lambda k: sample_task(pool, k, **experiment.episode._asdict())
        )(jax.random.split(key_tasks, number))
        j = interpolation.sample_partners(key_partners, tasks.domain, "cross")
        samples = tasks.support
        rows = jax.random.randint(key_rows, (2, number), 0, samples.y.shape[1])
        x_i, y_i, x_j, y_j = (
            leaf[task, row]
            for task, row in ((jnp.arange(number), rows[0]), (j, rows[1]))
            for leaf in (samples.x, samples.y)
        )
        mixed, share = jax.vmap(mix_pair)(
            jax.random.split(key_mix, number), jnp.asarray(lambdas), x_i, x_j
        )
        return jnp.stack([x_i, x_j, mixed]), jnp.stack([y_i, y_j]), share

    return tuple(map(np.asarray, draw(experiment.splits.train)))


def _title(experiment: Experiment) -> str:
    section = experiment.config.interpolation
    own = experiment.config.strategy.mlti
    method = {"mixup": "Mixup", "cutmix": "CutMix"}[section.method]
    source = f" ({experiment.splits.source})" if experiment.splits.source else ""
    layers = tuple(section.layers)
    deeper = f", layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else ""
    return (
        f"{experiment.splits.name}{source}, {method} at the input; "
        f"in training λ ~ Beta({own.alpha:g}, {own.alpha:g}){deeper}"
    )


def _images(
    experiment: Experiment,
    lambdas: tuple[float, ...],
    x: np.ndarray,
    y: np.ndarray,
    share: np.ndarray,
) -> Figure:
    """One column per pair, with lambda and the mixed target below."""
    columns = len(lambdas)
    lines = {"λ": [f"{lam:.1f}" for lam in lambdas]}
    if experiment.config.interpolation.method == "cutmix":
        lines["i's area"] = [f"{value:.2f}" for value in share]
    if experiment.splits.setting == "regression":
        first, second = y[..., 0]
        targets = share * first + (1 - share) * second
        lines["target i"] = [f"{value:.1f}" for value in first]
        lines["target j"] = [f"{value:.1f}" for value in second]
        lines["mixed"] = [f"{value:.1f}" for value in targets]
    height, width = x.shape[2:4]
    left, top, gap = 0.55, 0.22, 0.03
    side = (COLUMN_WIDTH - left) / columns
    inches = top + len(ROWS) * side * height / width + 0.15 * len(lines) + 0.06
    fig = new_figure(COLUMN_WIDTH, inches)
    fig.suptitle(_title(experiment), fontsize=8, y=1 - 0.04 / inches)
    for row, name in enumerate(ROWS):
        bottom = inches - top - (row + 1) * side * height / width
        middle = bottom + side * height / width / 2
        fig.text(0.02, middle / inches, name, fontsize=7, va="center")
        for column in range(columns):
            box = [left + column * side, bottom, side - gap, side - gap]
            axis = fig.add_axes(np.divide(box, [COLUMN_WIDTH, inches] * 2))
            axis.imshow(np.squeeze(x[row, column]).clip(0, 1), cmap="gray", vmin=0)
            axis.set_axis_off()
    for line, (name, texts) in enumerate(lines.items()):
        level = (0.15 * (len(lines) - line) - 0.06) / inches
        fig.text(0.02, level, name, fontsize=7, va="center")
        for column, text in enumerate(texts):
            place = (left + column * side + (side - gap) / 2) / COLUMN_WIDTH
            fig.text(place, level, text, fontsize=7, va="center", ha="center")
    return fig


def _strips(
    experiment: Experiment,
    lambdas: tuple[float, ...],
    x: np.ndarray,
    y: np.ndarray,
    share: np.ndarray,
) -> Figure:
    """Three strips per pair, features that are larger in i on the left."""
    del y, share
    height = 0.75 + 0.58 * len(lambdas)
    fig = new_figure(COLUMN_WIDTH, height, layout="constrained")
    axes = fig.subplots(len(lambdas), 1)
    fig.suptitle(_title(experiment), fontsize=8)
    for pair, (axis, lam) in enumerate(zip(axes, lambdas, strict=True)):
        shown = features_shown(x[0, pair], x[1, pair])
        scale = {"vmin": min(0, x[:2].min()), "vmax": x[:2].max()}
        image = axis.pcolormesh(
            x[:, pair, shown], cmap="viridis", edgecolors="white", lw=0.25, **scale
        )
        axis.hlines([1, 2], 0, len(shown), color="white", lw=2)
        axis.set_yticks(np.arange(len(ROWS)) + 0.5, ROWS, fontsize=7)
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_title(
            f"λ = {lam:.1f}; {len(shown)} of {x.shape[-1]:,} features",
            fontsize=7,
            pad=2,
            loc="left",
        )
    fig.supxlabel(
        "features present in either sample, from those of i only to those of j only",
        fontsize=7,
    )
    bar = fig.colorbar(image, ax=axes, aspect=50, fraction=0.03, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return fig


def features_shown(x_i: np.ndarray, x_j: np.ndarray) -> np.ndarray:
    """Select the features that are largest in two samples.

    Args:
      x_i: `[D]`.
      x_j: `[D]`.

    Returns:
      Indices of at most `MAX_FEATURES` features that are not 0 in both samples, from
      those that are larger in `x_i` to those that are larger in `x_j`.
    """
    size = np.abs(x_i) + np.abs(x_j)
    largest = np.argsort(-size, kind="stable")[:MAX_FEATURES]
    largest = np.sort(largest[size[largest] > 0])
    return largest[np.argsort((x_j - x_i)[largest], kind="stable")]
