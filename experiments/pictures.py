"""Pictures of tasks and of learning curves."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from mlti_jax import interpolation  # noqa: E402
from mlti_jax.data import sample_task  # noqa: E402
from mlti_jax.training import Experiment, metrics  # noqa: E402

COLOURS = ("#4c566a", "#c0392b", "#2471a3", "#229954", "#b7950b")


def interpolated_tasks(
    experiment: Experiment, path: pathlib.Path, rows: int = 4, seed: int = 0
) -> None:
    """Task i, task j, and what the strategy makes of them, one triple a row.

    Shows the support set (up to ten images), with the share of task i beside it.
    """
    strategy, pool = experiment.strategy, experiment.splits.train
    episode = experiment.episode._asdict()
    form = "label_sharing"
    if experiment.splits.setting != "label_sharing" or experiment.learner.class_pairs:
        form = "non_label_sharing"
    method = interpolation.METHODS[experiment.config.interpolation.method]
    alpha = experiment.config.strategy[strategy.name.split("+")[0]].alpha

    def triple(key):
        key_i, key_j, key_lambda, key_mix = jax.random.split(key, 4)
        task_i, task_j = (sample_task(pool, k, **episode) for k in (key_i, key_j))
        lam = interpolation.sample_lambda(key_lambda, alpha)
        mixed = interpolation.FORMS[form](key_mix, task_i, task_j, lam, method)
        return [task.support.x for task in (task_i, task_j, mixed)], lam

    keys = jax.random.split(jax.random.key(seed), rows)
    width = min(experiment.episode.ways * experiment.episode.shots, 10)
    height, image_width = pool.x.shape[1:3]
    fig, axes = plt.subplots(
        rows, 3, figsize=(3 * width * 0.42 + 0.6, rows * 0.62 + 0.4), squeeze=False
    )
    for row, key in enumerate(keys):
        images, lam = jax.jit(triple)(key)
        for column, x in enumerate(images):
            strip = np.ones((height, width * (image_width + 2) - 2, 3))
            for index in range(width):
                left = index * (image_width + 2)
                strip[:, left : left + image_width] = np.asarray(
                    jnp.broadcast_to(x[index], (height, image_width, 3))
                )
            axis = axes[row, column]
            axis.imshow(strip.clip(0, 1), interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
        axes[row, 2].set_ylabel(
            f"$\\lambda$={lam:.2f}", rotation=0, ha="right", va="center", fontsize=8
        )
    for column, title in enumerate(("task i", "task j", "interpolated")):
        axes[0, column].set_title(f"{title} (support set)", fontsize=9)
    fig.tight_layout(pad=0.4, w_pad=0.8)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def learning_curves(runs: dict[str, pathlib.Path], path: pathlib.Path) -> None:
    """Metric on training and on validation tasks against steps, one colour a run."""
    fig, axis = plt.subplots(figsize=(5.2, 3.4))
    for colour, (name, folder) in zip(COLOURS, runs.items(), strict=False):
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
    axis.legend(frameon=False, fontsize=8)
    fig.tight_layout()
    fig.savefig(path, dpi=150)
    plt.close(fig)
