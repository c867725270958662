"""Metric-based learners against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, learners
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext, prototypes
from mlti_jax.learners._metric import squared_euclidean
from mlti_jax.types import Batch
from tests.support.tasks import init, make_task, task_loss

KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def embed(learner, variables, task, key, layer, train):
    return learner.embed(variables, task, TaskContext(key, train), layer)


def test_protonet_logits_equal_a_numpy_version():
    learner = learners.protonet(backbones.mlp((6, 7)), 3)
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    loss, aux = task_loss(learner, variables, task, KEY, 0, True)

    x = np.concatenate([task.support.x, task.query.x]).astype(np.float64)
    for layer in variables.params["model"]:  # support and query are one batch
        x = x @ np.asarray(layer["kernel"], np.float64)
        x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
        x = np.where(x > 0, x, 0.01 * x)
    support, query = x[:6], x[6:]
    labels = np.asarray(task.support.y).argmax(1)
    centres = [support[labels == r].mean(0) for r in range(3)]
    logits = np.array([[-((q - c) ** 2).sum() for c in centres] for q in query])
    np.testing.assert_allclose(aux.outputs, logits, rtol=1e-4, atol=1e-4)
    answer = np.asarray(task.query.y).argmax(1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    by_hand = -np.mean([np.log(p[k, answer[k]]) for k in range(len(answer))])
    np.testing.assert_allclose(loss, by_hand, rtol=1e-4)
    np.testing.assert_allclose(aux.metric, (logits.argmax(1) == answer).mean())


def test_distances_and_their_derivatives_far_from_the_origin():
    rng = np.random.default_rng(0)
    a, b = (100 + rng.normal(size=(n, 5)).astype(np.float32) for n in (4, 3))
    wanted = rng.normal(size=(4, 3)).astype(np.float32)
    difference = a[:, None].astype(np.float64) - b[None]
    squares = (difference**2).sum(-1)
    np.testing.assert_allclose(squared_euclidean(a, b), squares, rtol=1e-5, atol=1e-4)
    # By hand: 2 sum_r w_kr (a_k - b_r), and the same with a minus sign for b.
    by_a, by_b = jax.jit(
        jax.grad(lambda a, b: jnp.sum(wanted * squared_euclidean(a, b)), (0, 1))
    )(a, b)
    slope = 2 * wanted[..., None] * difference
    np.testing.assert_allclose(by_a, slope.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_b, -slope.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distance", ["cosine", "squared_euclidean"])
def test_matchingnet_equals_a_numpy_version(distance):
    learner = learners.matchingnet(
        backbones.mlp((6, 7)), 3, distance=distance, scale=2.0
    )
    task = make_task(5)
    variables = init(learner, KEY, task.support.x)
    task, _ = embed(learner, variables, task, KEY, 2, False)
    support, query = np.asarray(task.support.x), np.asarray(task.query.x)
    labels = np.asarray(task.support.y)
    logits = task_loss(learner, variables, task, KEY, 2, False)[1].outputs
    probability = np.asarray(jax.nn.softmax(logits))
    for q, row in zip(query, probability, strict=True):
        if distance == "cosine":
            norms = np.linalg.norm(support, axis=1) * np.linalg.norm(q)
            scores = 2 * (support @ q) / norms
        else:
            scores = -2 * ((support - q) ** 2).sum(axis=1)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        expected = sum(w * y for w, y in zip(weights, labels, strict=True))
        np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(row.sum(), 1.0, rtol=1e-5)


def test_matchingnet_leaves_padding_out():
    support = Batch(
        x=jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]),
        y=jnp.eye(2)[jnp.array([0, 1, 1])],
        weight=jnp.array([1.0, 1.0, 0.0]),
    )
    query = jnp.array([[0.3, 0.9]])
    learner = learners.matchingnet(backbones.mlp((2,)), 2)
    padded = learner.classify(support, query)
    without = learner.classify(Batch(x=support.x[:2], y=support.y[:2]), query)
    np.testing.assert_allclose(padded, without, rtol=1e-5)


def test_prototypes_leave_padding_out():
    embeddings = jnp.array([[1.0], [3.0], [100.0], [5.0]])
    y = jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    support = Batch(embeddings, y, jnp.array([1.0, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose(prototypes(embeddings, support), [[2.0], [5.0]])


@pytest.mark.parametrize("name", ["protonet", "matchingnet"])
def test_order_of_support_samples_does_not_matter(name):
    learner = learners.make(name, backbones.mlp((6, 7)), 3)
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    order = np.random.default_rng(0).permutation(6)
    shuffled = jax.tree.map(lambda leaf: leaf[order], task.support)
    predict = jax.jit(learner.predict)
    a = predict(variables, task.support, task.query.x, KEY)
    b = predict(variables, shuffled, task.query.x, KEY)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_protonet_refuses_regression():
    with pytest.raises(InputError, match="regression"):
        learners.protonet(backbones.mlp(), 1, objective=learners.REGRESSION)
