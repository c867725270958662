"""Small tasks, and jitted versions of what tests call most."""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax.data import DomainPool
from mlti_jax.learners import TaskContext
from mlti_jax.strategies import meta_objective
from mlti_jax.types import Batch, Task

ROOT = pathlib.Path(__file__).parent.parent.parent
KEY = jax.random.key(0)


def make_task(seed: int, ways=3, shots=2, queries=4, shape=(5,), domain=None) -> Task:
    """A random task; every class has a mean of its own, so that it can be learned."""
    rng = np.random.default_rng(seed)
    means = 2 * rng.normal(size=(ways, *shape))

    def batch(per_class: int) -> Batch:
        labels = np.repeat(np.arange(ways), per_class)
        x = means[labels] + rng.normal(size=(len(labels), *shape))
        return Batch(
            x=jnp.asarray(x, jnp.float32),
            y=jnp.asarray(np.eye(ways)[labels], jnp.float32),
        )

    number = seed if domain is None else domain
    return Task(support=batch(shots), query=batch(queries), domain=jnp.int32(number))


def image_pool() -> DomainPool:
    """Random 8x8 images of 4 domains with 2 classes each."""
    rng = np.random.default_rng(0)
    domain = np.repeat(np.arange(4), 20)
    label = np.tile(np.repeat(np.arange(2), 10), 4)
    x = rng.normal(size=(80, 8, 8, 3)) + label[:, None, None, None]
    return DomainPool.from_arrays(x.astype(np.float32), domain, label)


def stack_tasks(tasks: list[Task]) -> Task:
    """Tasks as one pytree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)


@functools.partial(jax.jit, static_argnums=0)
def init(learner, key, x):
    """Call `learner.init` as one program."""
    return learner.init(key, x)


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def task_loss(learner, variables, task, key, layer, train):
    """Call `learner.loss` as one program, the same for all tests of equal learners."""
    return learner.loss(variables, task, TaskContext(key, train), layer)


@functools.partial(jax.jit, static_argnums=(0, 1, 5, 6))
def objective(learner, strategy, variables, tasks, key=KEY, layer=0, size=4):
    """Call `meta_objective` as one program, for four tasks at the input."""
    return meta_objective(learner, strategy, variables, tasks, key, layer, size)


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def embed(learner, variables, task, key, layer, train):
    """Call `learner.embed` as one program."""
    return learner.embed(variables, task, TaskContext(key, train), layer)


def take(tree, index: int):
    """One entry of a pytree with a leading axis."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
