"""The figure of tasks by t-SNE: vectors of tasks, distances and plot."""

import math

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from experiments.figures import tsne
from experiments.figures.tsne import Features
from mlti_jax.errors import InputError
from mlti_jax.training import build
from mlti_jax.types import Batch
from tests.support.figure_cases import assert_drawn, small_config
from tests.support.tasks import make_task


def numpy_mean_prototype(task, features):
    """Class by class, sample by sample."""
    samples = [*task.support.x, *task.query.x]
    labels = [*np.asarray(task.support.y), *np.asarray(task.query.y)]
    means = []
    for c in range(len(labels[0])):
        total, weight = 0.0, 0.0
        for sample, label in zip(samples, labels, strict=True):
            total = total + label[c] * np.ravel(features(sample))
            weight += label[c]
        means.append(total / weight)
    return np.mean(means, axis=0)


def test_a_task_is_the_mean_of_its_prototypes():
    task = make_task(0, ways=3, shots=1, queries=4, shape=(2, 5))
    expected = numpy_mean_prototype(task, lambda x: x)
    assert expected.shape == (10,)
    np.testing.assert_allclose(tsne.mean_prototype(task), expected, rtol=1e-5)
    # Soft labels weigh, and classes of different size count alike.
    soft = jax.random.dirichlet(jax.random.key(1), jnp.ones(3), (12,))
    task = task.replace(query=task.query.replace(y=soft))
    expected = numpy_mean_prototype(task, lambda x: x)
    np.testing.assert_allclose(tsne.mean_prototype(task), expected, rtol=1e-5)
    pooled = np.concatenate([task.support.x, task.query.x]).reshape(-1, 10).mean(axis=0)
    assert np.abs(expected - pooled).max() > 0.05
    vector = tsne.mean_prototype(task, regression=True)
    np.testing.assert_allclose(vector, pooled, rtol=1e-5)


def test_padding_does_not_count():
    task = make_task(1, ways=2, shots=1, queries=2)
    query = task.query
    padded = Batch(
        x=jnp.concatenate([query.x, 9 * jnp.ones((3, 5))]),
        y=jnp.concatenate([query.y, jnp.eye(2)[jnp.array([0, 0, 1])]]),
        weight=jnp.array([1.0] * 4 + [0.0] * 3),
    )
    np.testing.assert_allclose(
        tsne.mean_prototype(task.replace(query=padded)),
        tsne.mean_prototype(task),
        rtol=1e-5,
    )


@pytest.mark.slow
def test_vectors_of_raw_tasks():
    experiment = build(small_config())
    raw = Features(None, "raw")
    originals, vectors = tsne.task_vectors(experiment, raw, interpolated=9)
    assert originals.shape == (3, 28 * 28 * 3)
    assert vectors.shape == (9, 28 * 28 * 3)
    key = jax.random.split(jax.random.key(0))[0]
    tasks = tsne.original_tasks(experiment.splits.train, key, experiment.episode)
    assert len(set(np.asarray(tasks.domain).tolist())) == 3
    for number, vector in enumerate(originals):
        task = jax.tree.map(lambda leaf, n=number: leaf[n], tasks)
        expected = numpy_mean_prototype(task, lambda x: x)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    # A task that is mixed with itself keeps its mean; others are far from all three.
    nearest = np.abs(vectors[:, None] - originals[None]).max(axis=-1).min(axis=1)
    assert ((nearest < 1e-5) | (nearest > 1e-2)).all()
    assert (nearest < 1e-5).any()
    assert (nearest > 1e-2).any()


def test_mixup_leads_from_one_task_to_the_other():
    config = small_config(strategy="cross")
    config.interpolation.method = "mixup"
    experiment = build(config)
    raw = Features(None, "raw")
    originals, vectors = tsne.task_vectors(experiment, raw, interpolated=12)
    pairs = [(0, 1), (0, 2), (1, 2)]
    seen = set()
    for vector in vectors:
        # The mean is linear: each lies on the way between two originals.
        off_line = []
        for i, j in pairs:
            way = originals[j] - originals[i]
            share = ((vector - originals[i]) @ way / (way @ way)).clip(0, 1)
            off_line.append(np.abs(originals[i] + share * way - vector).max())
        assert min(off_line) < 1e-4
        seen.add(int(np.argmin(off_line)))
    assert len(seen) > 1


@pytest.mark.slow
def test_features_of_a_sample_do_not_depend_on_its_task():
    experiment = build(small_config())
    variables = jax.jit(experiment.init_state)().variables
    # As after training: averages that are neither 0 nor 1.
    state = jax.tree.map(lambda leaf: leaf + 0.3, variables.state)
    variables = variables.replace(state=state)
    learner = experiment.learner
    assert tsne.last_hidden_layer(learner) == len(learner.stack) == 4

    @jax.jit
    def alone(sample):
        return learner.stack.apply(
            variables.params["model"], state, sample[None], context=tsne.RUNNING
        )[0]

    key = jax.random.split(jax.random.key(0))[0]
    tasks = tsne.original_tasks(experiment.splits.train, key, experiment.episode)
    originals, vectors = tsne.task_vectors(
        experiment, Features(variables, "network"), interpolated=3
    )
    task = jax.tree.map(lambda leaf: leaf[1], tasks)
    expected = numpy_mean_prototype(task, alone)
    np.testing.assert_allclose(originals[1], expected, rtol=1e-4, atol=1e-5)
    assert vectors.shape == (3, expected.size)
    assert np.isfinite(vectors).all()


@pytest.mark.slow
def test_the_head_of_a_gradient_based_learner_is_left_out():
    experiment = build(small_config("maml"))
    assert tsne.last_hidden_layer(experiment.learner) == 4
    assert len(experiment.learner.stack) == 5
    variables = jax.jit(experiment.init_state)().variables
    originals, vectors = tsne.task_vectors(
        experiment, Features(variables, ""), interpolated=2
    )
    assert originals.shape == (3, 4)
    assert vectors.shape == (2, 4)  # of three that a meta-batch gives


def test_experiments_without_interpolated_tasks_raise():
    raw = Features(None, "raw")
    with pytest.raises(InputError, match="'vanilla' does not interpolate pairs"):
        tsne.task_vectors(build(small_config(strategy="vanilla")), raw)
    config = small_config()
    config.interpolation = {"method": "mixup", "layers": (1,)}
    with pytest.raises(InputError, match=r"layers \(1,\).*--features=network"):
        tsne.task_vectors(build(config), raw)
    few = small_config(**{"dataset.train_classes": 2})
    with pytest.raises(InputError, match="from 3 sources, but the training pool has 2"):
        tsne.task_vectors(build(few), raw)


def test_nearness_by_hand():
    originals = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.5, 0.0], [0.0, 3.0]])
    share = tsne.nearness(points, originals)
    np.testing.assert_allclose(share.sum(axis=1), 1)
    np.testing.assert_allclose(share[0], [1, 0, 0])  # it is the first original
    # Squared distances 1, 4 and 17.
    expected = np.array([1, 1 / 16, 1 / 289])
    np.testing.assert_allclose(share[1], expected / expected.sum())
    assert share[2, 0] == pytest.approx(share[2, 1])
    assert share.argmax(axis=1).tolist()[3] == 2


def test_format_of_distances():
    originals = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]])
    vectors = np.repeat([[0.5, 0.0]], 5, axis=0)
    assert "median 0.25, 80 % from 0.25 to 0.25" in tsne.distances(originals, vectors)


def test_tsne_keeps_groups_together_and_is_the_same_again(tmp_path):
    rng = np.random.default_rng(0)
    originals = 20 * np.eye(3, 8)
    group = np.repeat(np.arange(3), 20)
    vectors = originals[group] + rng.normal(size=(60, 8))
    plane = tsne.plane(np.concatenate([originals, vectors]), seed=1)
    np.testing.assert_array_equal(
        plane, tsne.plane(np.concatenate([originals, vectors]), seed=1)
    )
    distance = np.linalg.norm(plane[3:, None] - plane[None, :3], axis=-1)
    assert (distance.argmin(axis=1) == group).all()
    path = tmp_path / "tsne.png"
    tsne.draw(originals, vectors, path, "title\nfeatures")
    assert_drawn(path)
    image = matplotlib.image.imread(path)[..., :3]
    for color in tsne.PALETTE:  # that of each star
        assert (np.abs(image - color).max(axis=-1) < 0.01).sum() > 100
