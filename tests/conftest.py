"""What tests share: small tasks, and where real data is."""

from __future__ import annotations

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax.types import Batch, Task


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


def stack_tasks(tasks: list[Task]) -> Task:
    """Tasks as one pytree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)


def take(tree, index: int):
    """One entry of a pytree with a leading axis."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@pytest.fixture
def raw_dir() -> pathlib.Path:
    """The folder of real releases, where there is one."""
    folder = os.environ.get("MLTI_RAW_DIR")
    if not folder:
        pytest.skip("MLTI_RAW_DIR is not set: no real data here")
    return pathlib.Path(folder)
