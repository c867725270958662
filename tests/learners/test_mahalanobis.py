"""ProtoNet's Mahalanobis distance against a NumPy loop and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, learners
from mlti_jax.errors import InputError
from mlti_jax.learners._mahalanobis import mahalanobis
from mlti_jax.types import Batch
from tests.support.tasks import init, make_task, task_loss

KEY = jax.random.key(0)
SIZES = (7, 2, 1)  # samples of each class
# With 10 samples, 5 dimensions are solved directly and 40 in the space of samples.
DIMENSIONS = (5, 40)


def support_and_queries(dimensions, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), SIZES)
    x = 3 + rng.normal(size=(10, dimensions)) * rng.uniform(0.5, 2, dimensions)
    x += labels[:, None]
    queries = 3 + rng.normal(size=(4, dimensions))
    return x.astype(np.float32), labels, queries.astype(np.float32)


def by_loops(x, labels, queries):
    """The definition in float64, with an explicit inverse."""
    x, queries = x.astype(np.float64), queries.astype(np.float64)
    size = x.shape[1]
    everything = np.cov(x.T).reshape(size, size)
    distances = np.empty((len(queries), 3))
    for label in range(3):
        own = x[labels == label]
        covariance = np.zeros((size, size))
        if len(own) > 1:
            for sample in own:
                difference = sample - own.mean(0)
                covariance += np.outer(difference, difference) / (len(own) - 1)
        trust = len(own) / (len(own) + 1)
        inverse = np.linalg.inv(
            trust * covariance + (1 - trust) * everything + np.eye(size)
        )
        for row, query in enumerate(queries):
            difference = query - own.mean(0)
            distances[row, label] = difference @ inverse @ difference
    return distances


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_distances_equal_a_loop(dimensions):
    x, labels, queries = support_and_queries(dimensions)
    support = Batch(jnp.asarray(x), jnp.eye(3)[labels])
    found = jax.jit(mahalanobis)(queries, support)
    np.testing.assert_allclose(found, by_loops(x, labels, queries), rtol=2e-4)


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_padding_does_not_count(dimensions):
    x, labels, queries = support_and_queries(dimensions)
    padded = np.concatenate([x, np.full((3, dimensions), 50, np.float32)])
    support = Batch(
        jnp.asarray(padded),
        jnp.eye(3)[np.append(labels, [0, 1, 2])],
        jnp.asarray(np.arange(13) < 10, jnp.float32),
    )
    found = jax.jit(mahalanobis)(queries, support)
    np.testing.assert_allclose(found, by_loops(x, labels, queries), rtol=5e-4)


def test_a_weight_of_two_has_the_prototype_of_two_copies():
    x, labels, queries = support_and_queries(5)
    twice = np.append(np.arange(10), 0)
    copies = Batch(jnp.asarray(x[twice]), jnp.eye(3)[labels[twice]])
    weighted = Batch(jnp.asarray(x), jnp.eye(3)[labels], jnp.ones(10).at[0].set(2.0))
    np.testing.assert_allclose(
        mahalanobis(queries, weighted), mahalanobis(queries, copies), rtol=1e-4
    )


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_derivatives_equal_finite_differences(dimensions):
    rng = np.random.default_rng(1)
    x, labels, queries = support_and_queries(dimensions)
    wanted = rng.normal(size=(4, 3))
    weight = np.ones(10)
    weight[[1, 8]] = 0, 0.5

    def objective(queries, x, weight):
        support = Batch(x, jnp.eye(3)[labels], weight)
        return jnp.sum(wanted * mahalanobis(queries, support))

    with jax.enable_x64(True):
        point = [np.asarray(part, np.float64) for part in (queries, x, weight)]
        slopes = jax.grad(objective, (0, 1, 2))(*point)
        for place, slope in enumerate(slopes):
            assert np.isfinite(slope).all()
            direction = rng.normal(size=slope.shape)
            if place == 2:
                direction = np.abs(direction)  # weights are not negative
            ends = []
            for sign in (1, -1):
                moved = list(point)
                moved[place] = point[place] + sign * 1e-5 * direction
                ends.append(float(objective(*moved)))
            np.testing.assert_allclose(
                np.sum(np.asarray(slope) * direction),
                (ends[0] - ends[1]) / 2e-5,
                rtol=1e-4,
            )


def test_protonet_uses_it_for_many_tasks_at_once():
    learner = learners.protonet(backbones.mlp((6, 8)), 3, distance="mahalanobis")
    tasks = [make_task(seed) for seed in (1, 2)]
    variables = init(learner, KEY, tasks[0].support.x)

    def loss(params, task):
        moved = variables.replace(params=params)
        return learner.loss(moved, task, learners.TaskContext(KEY, True))[0]

    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), *tasks)
    batched = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(variables.params, both)
    for number, task in enumerate(tasks):
        alone = jax.grad(loss)(variables.params, task)
        for one, many in zip(
            jax.tree.leaves(alone), jax.tree.leaves(batched), strict=True
        ):
            np.testing.assert_allclose(many[number], one, rtol=1e-3, atol=1e-5)
    outputs = task_loss(learner, variables, tasks[0], KEY, 0, True)[1].outputs
    euclidean = learners.protonet(backbones.mlp((6, 8)), 3)
    others = task_loss(euclidean, variables, tasks[0], KEY, 0, True)[1].outputs
    # The covariances are at least I.
    assert (np.asarray(outputs) >= np.asarray(others) - 1e-4).all()


def test_unknown_distances_are_named():
    with pytest.raises(InputError, match="unknown distance 'manhattan'.*mahalanobis"):
        learners.protonet(backbones.mlp((6,)), 3, distance="manhattan")
    with pytest.raises(InputError, match="unknown distance 'mahalanobis'"):
        learners.matchingnet(backbones.mlp((6,)), 3, distance="mahalanobis")
