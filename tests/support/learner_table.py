"""The table of learners and networks that tests run on, with small tasks for each.

A new learner is a row of `LEARNERS`, a new network a row of `NETWORKS`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mlti_jax import backbones, learners
from mlti_jax.backbones import Stack
from mlti_jax.types import Batch, Task
from tests.support.tasks import make_task

WAYS = 2


class LearnerRow(NamedTuple):
    """A learner.

    Attributes:
      options: for `learners.make`.
      regression: whether it can fit real numbers.
      networks: on which of `NETWORKS` it is tested; None for all that fit.
    """

    options: dict[str, Any]
    regression: bool = False
    networks: tuple[str, ...] | None = None


OF_VECTORS = ("mlp", "wrapped_linen", "wrapped_nnx", "wrapped_pair")
INNER_LOOP = LearnerRow({"steps": 1, "inner_learning_rate": 0.1}, regression=True)
LEARNERS = {
    "maml": INNER_LOOP,
    "anil": INNER_LOOP,
    "metasgd": INNER_LOOP,
    "meta_curvature": INNER_LOOP,
    "protonet": LearnerRow({}),
    "matchingnet": LearnerRow({}),
    "sl": LearnerRow({"steps": 2}, networks=OF_VECTORS),
    "mtl": LearnerRow({"steps": 20}, networks=OF_VECTORS),
}


MakeTask = Callable[[int, int], Task]  # from a seed, and samples a class in each set


def vectors(*shape: int) -> MakeTask:
    """Tasks of random arrays."""

    def task(seed: int, size: int) -> Task:
        task = make_task(seed, WAYS, size, size, shape)
        return task.replace(groups=np.arange(WAYS))

    return task


def angles(*shape: int) -> MakeTask:
    """The same, with a real number to predict for each sample."""

    def task(seed: int, size: int) -> Task:
        task = vectors(*shape)(seed, size)

        def regression(batch: Batch) -> Batch:
            return batch.replace(y=batch.x.mean(axis=(1, 2)))

        return task.replace(
            support=regression(task.support), query=regression(task.query)
        )

    return task


def sentences(seed: int, size: int) -> Task:
    """Tasks of samples with one to four tokens from a vocabulary of 20."""
    rng = np.random.default_rng(seed)
    task = vectors(1)(seed, size)

    def words(batch: Batch) -> Batch:
        mask = np.arange(4) < rng.integers(1, 5, (len(batch.y), 1))
        ids = rng.integers(0, 20, mask.shape)
        x = {"ids": ids.astype(np.int32), "mask": mask.astype(np.float32)}
        return batch.replace(x=x)

    return task.replace(support=words(task.support), query=words(task.query))


class NetworkRow(NamedTuple):
    """A network.

    Attributes:
      make: the network without a head.
      task: makes tasks for it.
      objective: classification or regression.
      slow: whether its tests are left out with `-m 'not slow'`.
      needs: a package without which it is skipped.
    """

    make: Callable[[], Stack]
    task: MakeTask
    objective: learners.Objective = learners.CLASSIFICATION
    slow: bool = False
    needs: str = "jax"


# Equal sizes wherever there is a choice: equal operations are compiled once.
tiny_albert = functools.partial(
    backbones.albert,
    vocabulary=20,
    embedding=4,
    hidden=4,
    layers=2,
    heads=2,
    intermediate=4,
    positions=4,
)


class LinenBlock(nn.Module):
    """A block of a user, in Flax linen."""

    features: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(self.features, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8)(x)
        return nn.leaky_relu(nn.Dropout(0.0, deterministic=not train)(x))


class NnxBlock(nnx.Module):
    """A block of a user, in Flax NNX."""

    def __init__(self, features: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, features, rngs=rngs)
        self.norm = nnx.LayerNorm(features, rngs=rngs)

    def __call__(self, x):
        return nnx.leaky_relu(self.norm(self.linear(x)))


def init_block(key, x):
    """Parameters of a block of a user, in plain JAX; not a dictionary."""
    return jax.random.normal(key, (x.shape[1], 4)) / 2, jnp.zeros(4)


def apply_block(params, x):
    kernel, bias = params
    return jnp.tanh(x @ kernel + bias)


# Networks that users bring, as sequences of two blocks.
WRAPPED = {
    "wrapped_linen": lambda: backbones.wrap([LinenBlock(4), LinenBlock(4)]),
    "wrapped_nnx": lambda: backbones.wrap([functools.partial(NnxBlock, 4)] * 2),
    "wrapped_pair": lambda: backbones.wrap([(init_block, apply_block)] * 2),
}
NETWORKS = {
    "mlp": NetworkRow(lambda: backbones.mlp((4, 4)), vectors(4)),
    "conv4": NetworkRow(lambda: backbones.conv4(2, blocks=2), vectors(8, 8, 2)),
    "resnet12": NetworkRow(
        lambda: backbones.resnet12((2, 2)), vectors(8, 8, 2), slow=True
    ),
    "pose": NetworkRow(
        lambda: backbones.pose(0.04), angles(32, 32, 1), learners.REGRESSION, slow=True
    ),
    "word_mean": NetworkRow(
        lambda: backbones.word_mean((4,)), sentences, needs="wordllama"
    ),
    "albert": NetworkRow(tiny_albert, sentences, slow=True),
    "wrapped_linen": NetworkRow(WRAPPED["wrapped_linen"], vectors(4)),
    "wrapped_nnx": NetworkRow(WRAPPED["wrapped_nnx"], vectors(4), slow=True),
    "wrapped_pair": NetworkRow(WRAPPED["wrapped_pair"], vectors(4), slow=True),
}

# Parameters that no loss depends on: learner, network and parameter, as patterns, and
# the reason. Only these may be without a gradient, and they must be.
UNREACHED = [
    (
        ".*",
        "albert",
        "model/1/key_bias",
        "adds the same to the scores of all tokens, which the softmax takes away",
    ),
]


def fits(learner: str, network: str) -> bool:
    row = LEARNERS[learner]
    regression = NETWORKS[network].objective is learners.REGRESSION
    named = row.networks is None or network in row.networks
    return named and (row.regression or not regression)
