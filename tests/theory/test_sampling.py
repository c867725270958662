"""The lemmas' losses equal sampled losses of tasks that the package interpolates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import interpolation, theory
from mlti_jax.types import Batch, Task
from tests.support.tasks import stack_tasks

NUM_TASKS, PER_CLASS, NUM_DRAWS, ALPHA = 3, 2, 4000, 2.0


def make_tasks():
    """Tasks of two classes, each around its own center."""
    rng = np.random.default_rng(7)
    y = np.repeat(np.eye(2), PER_CLASS, axis=0)
    tasks = []
    for number in range(NUM_TASKS):
        centers = 2 * rng.normal(size=(2, 2)) + rng.normal(size=2)
        x = centers.repeat(PER_CLASS, axis=0) + rng.normal(size=(2, len(y), 2))
        support, query = (
            Batch(jnp.asarray(part, jnp.float32), jnp.asarray(y, jnp.float32))
            for part in x
        )
        tasks.append(Task(support, query, jnp.int32(number)))
    return stack_tasks(tasks)


@pytest.fixture(scope="module")
def tasks():
    return make_tasks()


@pytest.fixture(scope="module")
def heads(tasks):
    """Normalized differences of the class means."""
    x = tasks.query.x
    difference = x[:, PER_CLASS:].mean(axis=1) - x[:, :PER_CLASS].mean(axis=1)
    return difference / jnp.linalg.norm(difference, axis=1, keepdims=True)


def sampled(form, tasks, loss):
    """Mean and standard error of the loss of interpolated tasks."""

    def one(key):
        key_j, key_lambda, key_mix = jax.random.split(key, 3)
        j = interpolation.sample_partners(key_j, tasks.domain)
        lam = interpolation.sample_lambda(key_lambda, ALPHA, shape=(NUM_TASKS,))
        partners = jax.tree.map(lambda leaf: leaf[j], tasks)
        keys = jax.random.split(key_mix, NUM_TASKS)
        return loss(jax.vmap(form)(keys, tasks, partners, lam))

    keys = jax.random.split(jax.random.key(1), NUM_DRAWS)
    values = np.asarray(jax.jit(jax.vmap(one))(keys), np.float64)
    return values.mean(), values.std() / np.sqrt(NUM_DRAWS)


def loss_of_heads(heads):
    def loss(mixed):
        score = jnp.einsum("ind,id->in", mixed.query.x, heads)
        return theory.logistic(score, mixed.query.y[..., 1]).mean()

    return loss


@pytest.mark.slow
def test_lemma_1(tasks, heads):
    mean, error = sampled(interpolation.non_label_sharing, tasks, loss_of_heads(heads))
    data, law = (heads, tasks.query.x, tasks.query.y[..., 1]), theory.beta_law(ALPHA)
    loss = jax.jit(theory.non_label_sharing_loss)
    exchanged = theory.beta_law(ALPHA + 1, ALPHA)  # D_lambda of the paper
    assert abs(mean - loss(*data, law)) < 4 * error
    assert abs(mean - loss(*data, exchanged)) > 8 * error


def test_lemma_4(tasks, heads):
    mean, error = sampled(interpolation.label_sharing, tasks, loss_of_heads(heads))
    data = (heads, tasks.query.x, tasks.query.y[..., 1], theory.beta_law(ALPHA))
    assert abs(mean - jax.jit(theory.label_sharing_loss)(*data)) < 4 * error
    assert abs(mean - jax.jit(theory.non_label_sharing_loss)(*data)) > 8 * error


def test_lemma_2(tasks, heads):
    theta, law = heads[0], theory.beta_law(ALPHA)

    def prototypes(task):
        x = task.support.x
        return jnp.einsum("inc,ind->icd", task.support.y, x) / PER_CLASS

    def loss(mixed):
        score = (mixed.query.x - prototypes(mixed).mean(1, keepdims=True)) @ theta
        return theory.logistic(score, mixed.query.y[..., 1]).mean()

    mean, error = sampled(interpolation.non_label_sharing, tasks, loss)
    data = (theta, tasks.query.x, tasks.query.y[..., 1])
    expected = jax.jit(theory.protonet_loss)
    assert abs(mean - expected(*data, prototypes(tasks), law)) < 4 * error
    assert abs(mean - expected(*data, 0 * prototypes(tasks), law)) > 8 * error
