"""t-SNE embedding of original and interpolated tasks (Fig. 3).

A task is represented as in the paper: by the mean of its prototypes, computed from
support and query samples together. The interpolated tasks are generated from the
originals as in training; their color shows which originals are near.
"""

from __future__ import annotations

import pathlib
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax import interpolation
from mlti_jax._internal.extras import require
from mlti_jax._internal.figures import COLUMN_WIDTH, new_figure
from mlti_jax.backbones import Context
from mlti_jax.data import sample_task
from mlti_jax.data._pools import Pool
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables, prototypes
from mlti_jax.learners._base import concatenate, concatenate_weights
from mlti_jax.strategies._base import repeat_support
from mlti_jax.training import Episode, Experiment
from mlti_jax.types import Array, Batch, Task

PAIRING = frozenset(["mlti", "intra", "cross"])  # strategies that mix pairs of tasks
ORIGINALS, INTERPOLATED = 3, 300
# Red, blue and yellow: no mixture of two of them looks like the third.
PALETTE = np.array([[0.84, 0.13, 0.15], [0.10, 0.33, 0.78], [0.97, 0.75, 0.05]])
# Running averages: with the statistics of each task, batch normalization would remove
# the mean by which tasks differ.
RUNNING = Context(train=False, batch_statistics=False)


class Features(NamedTuple):
    """How samples are represented.

    Attributes:
      variables: of the network whose last hidden layer is used; None for raw inputs.
      name: shown in the title.
    """

    variables: Variables | None
    name: str


# ------------------------------------------------------------------ representation


def mean_prototype(task: Task, regression: bool = False) -> Array:
    r"""Represent a task as one vector, $\frac1R \sum_r c_r$, `[D]`.

    $c_r$ is the mean of all samples of class r, support and query together; samples
    with soft labels count for each class with their label's weight.

    Args:
      task: with features x `[N, ...]`.
      regression: whether y holds targets; then all samples form one class.
    """
    x = concatenate(task.support.x, task.query.x)
    y = concatenate(task.support.y, task.query.y)
    weight = concatenate_weights(task.support, task.query)
    if regression:
        y = jnp.ones((y.shape[0], 1))
    x = x.reshape(x.shape[0], -1)
    return prototypes(x, Batch(x, y, weight)).mean(axis=0)


def hidden(
    learner: Learner, variables: Variables, task: Task, start: int, stop: int
) -> Task:
    """Run layers `start` to `stop` on a task's x, each sample independently."""

    def run(batch: Batch) -> Batch:
        h, _ = learner.stack.apply(
            variables.params["model"], variables.state, batch.x, start, stop, RUNNING
        )
        return batch.replace(x=h)

    return task.replace(support=run(task.support), query=run(task.query))


def last_hidden_layer(learner: Learner) -> int:
    """Index of the head's input; metric-based learners have no head."""
    return len(learner.stack) - (learner.family != "metric")


# --------------------------------------------------------------------------- tasks


def original_tasks(
    pool: Pool, key: Array, episode: Episode, number: int = ORIGINALS
) -> Task:
    """Draw `number` tasks from different sources."""
    keys = jax.random.split(key, 32 * number)

    @jax.jit
    def draw(pool: Pool, keys: Array) -> Task:
        return jax.vmap(lambda k: sample_task(pool, k, **episode._asdict()))(keys)

    # Only the source is returned, so XLA does not compute the samples.
    domains = np.asarray(jax.jit(lambda *args: draw(*args).domain)(pool, keys))
    _, first = np.unique(domains, return_index=True)
    if len(first) < number:
        raise InputError(
            f"the figure needs tasks from {number} sources, but the training pool has "
            f"{len(first)}; raise dataset.train_classes"
        )
    return draw(pool, keys[np.sort(first)[:number]])


def task_vectors(
    experiment: Experiment,
    features: Features,
    interpolated: int = INTERPOLATED,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute vectors of original tasks `[3, D]` and of interpolated ones `[n, D]`.

    The originals form a meta-batch, which the strategy interpolates as in training, at
    a randomly drawn layer, until n = `interpolated` tasks are collected.

    Raises:
      InputError: if the strategy does not interpolate pairs of tasks, if raw inputs are
        chosen but tasks are interpolated in hidden layers only, or if the pool has
        fewer than three sources.
    """
    learner, strategy = experiment.learner, experiment.strategy
    if not learner.episodic or not PAIRING.intersection(strategy.name.split("+")):
        raise InputError(
            f"strategy {strategy.name!r} does not interpolate pairs of tasks; choose "
            "mlti, intra or cross"
        )
    layers = strategy.layers
    if features.variables is None:
        if 0 not in layers:
            raise InputError(
                f"the tasks are interpolated at the hidden layers {tuple(layers)}, not "
                "at the input; use --features=network"
            )
        layers, stop, variables = (0,), 0, None
    else:
        stop = last_hidden_layer(learner)
        variables = features.variables
    regression = experiment.splits.setting == "regression"
    key_tasks, key_draws = jax.random.split(jax.random.key(experiment.config.seed))
    tasks = original_tasks(experiment.splits.train, key_tasks, experiment.episode)
    size = tasks.domain.shape[0]

    @partial(jax.jit, static_argnums=3)
    def vectors(variables, tasks, key, layer):
        """Vectors of tasks interpolated at `layer`, or of the originals if None."""

        def move(tasks, start, stop):
            if start == stop:
                return tasks
            one = partial(hidden, learner, variables, start=start, stop=stop)
            return jax.vmap(one)(tasks)

        if layer is not None:
            tasks = move(tasks, 0, layer)
            tasks = repeat_support(strategy.transform(tasks, key, size))
            tasks = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tasks)
        tasks = move(tasks, layer or 0, stop)
        return jax.vmap(partial(mean_prototype, regression=regression))(tasks)

    originals = np.asarray(vectors(variables, tasks, key_draws, None))
    made, number = [], 0
    while number < interpolated:
        key_layer, key_mix = jax.random.split(jax.random.fold_in(key_draws, len(made)))
        layer = layers[int(interpolation.sample_layer(key_layer, layers))]
        made.append(np.asarray(vectors(variables, tasks, key_mix, layer)))
        number += len(made[-1])
    return originals, np.concatenate(made)[:interpolated]


# ------------------------------------------------------------------------- drawing


def nearness(vectors: np.ndarray, originals: np.ndarray) -> np.ndarray:
    r"""Weights of the originals in a vector's color, $d_k^{-4} / \sum_l d_l^{-4}$.

    Args:
      vectors: `[n, D]`.
      originals: `[3, D]`; one that equals a vector gets weight 1.

    Returns:
      `[n, 3]`, with rows that sum to 1.
    """
    square = ((vectors[:, None] - originals[None]) ** 2).sum(axis=-1)
    # Relative to the nearest, to avoid a division by zero.
    nearest = square.min(axis=1, keepdims=True)
    ratio = np.where(square > 0, nearest / np.where(square > 0, square, 1), 1.0)
    share = ratio**2
    return share / share.sum(axis=1, keepdims=True)


def plane(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
    """Embed vectors `[n, D]` in the plane with t-SNE; `[n, 2]`."""
    require("sklearn", "examples")
    from sklearn.manifold import TSNE  # slow to import

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    return tsne.fit_transform(np.asarray(vectors, np.float64))


def distances(originals: np.ndarray, vectors: np.ndarray) -> str:
    """Describe how far interpolated tasks are from originals, which t-SNE hides."""
    norm = np.linalg.norm
    between = [norm(a - b) for i, a in enumerate(originals) for b in originals[:i]]
    nearest = norm(vectors[:, None] - originals[None], axis=-1).min(axis=1)
    low, middle, high = np.quantile(nearest / np.mean(between), (0.1, 0.5, 0.9))
    return (
        "distance from an interpolated task to the nearest original, relative to the "
        f"mean distance between originals: median {middle:.2f}, 80 % from {low:.2f} "
        f"to {high:.2f}"
    )


def draw(
    originals: np.ndarray,
    vectors: np.ndarray,
    path: pathlib.Path,
    title: str,
    seed: int = 0,
) -> None:
    """Draw originals as stars and interpolated tasks as dots, and save the figure."""
    points = plane(np.concatenate([originals, vectors]), seed)
    colors = nearness(vectors, originals) @ PALETTE
    fig = new_figure(COLUMN_WIDTH, 3.9, layout="constrained")
    axis = fig.subplots()
    axis.scatter(*points[len(originals) :].T, s=11, c=colors, lw=0, alpha=0.85)
    for number, (place, color) in enumerate(
        zip(points[: len(originals)], PALETTE, strict=True), 1
    ):
        star = {"marker": "*", "s": 190, "edgecolor": "black", "lw": 0.9, "zorder": 3}
        axis.scatter(*place, color=[color], label=f"original task {number}", **star)
    axis.scatter(
        [], [], s=11, color="#808080", label=f"{len(vectors)} interpolated tasks"
    )
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=8)
    axis.legend(
        frameon=False,
        fontsize=7,
        ncols=4,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        handletextpad=0.1,
        columnspacing=1.0,
        markerscale=0.7,
    )
    fig.savefig(path, dpi=200)
