"""What every learner offers: the learner seam.

A learner speaks of *one* task. Strategies batch it over tasks with `jax.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import unknown_name
from mlti_jax.backbones import Hook, Mode, Stack
from mlti_jax.types import Array, Batch, PyTree, Task

NORM_POLICIES = ("batch", "running")


@flax.struct.dataclass
class Variables:
    """All that training changes.

    Attributes:
      params: the learner's parameters, changed by the optimiser.
      state: running averages of the normalisation, one entry a layer.
      strategy: parameters of the strategy, changed by the optimiser too.
    """

    params: PyTree
    state: PyTree = ()
    strategy: PyTree = ()


@flax.struct.dataclass
class Aux:
    """What a learner tells of a task besides the loss.

    Attributes:
      state: the running averages, brought up to date.
      metric: scalar, accuracy or mean squared error on the query set.
      outputs: `[N_q, C]`, logits or predictions for the query set.
      loss_before: scalar, the query loss before adaptation (equal to the loss where
        nothing is adapted).
      outputs_before: `[N_q, C]`, the outputs before adaptation.
      weight: `[N_q]`, that of the query samples; None if all count.
    """

    state: PyTree
    metric: Array
    outputs: Array
    loss_before: Array
    outputs_before: Array
    weight: Array | None = None


class Perturbation(NamedTuple):
    """What is done to hidden outputs inside a task, before they are normalised.

    Gradient-based learners take it, for Meta-Dropout.

    Attributes:
      support: `key -> Hook`, noise for the support set; the inner loop draws it anew
        in every step, in training and at test.
      query: the hook for the query set, without noise.
      samples: draws whose losses are averaged in each inner step of training.
      eval_samples: the same at test time.
    """

    support: Callable[[Array], Hook]
    query: Hook
    samples: int = 1
    eval_samples: int = 1


class Objective(NamedTuple):
    """What is minimised and what is reported.

    Attributes:
      metric_name: as it stands in results, `accuracy` or `mse`.
      loss: `(outputs [N, C], batch) -> scalar`.
      metric: `(outputs [N, C], batch) -> scalar`.
      higher_is_better: whether a larger metric is better.
    """

    metric_name: str
    loss: Callable[[Array, Batch], Array]
    metric: Callable[[Array, Batch], Array]
    higher_is_better: bool


class Learner(Protocol):
    """A meta-learning algorithm, for one task.

    Attributes:
      family: `gradient` (adapts by gradients), `metric` (compares) or `supervised`
        (trains a classifier); which strategies apply is told by it.
      episodic: whether it trains on tasks; if not, on flat batches.
      stack: the network.
      objective: loss and metric.
      joint_statistics: whether support and query are normalised as one batch.
      class_pairs: whether interpolated tasks must keep hard labels, so that Eq. 6
        serves on label-sharing tasks too.
      shared_layers: how many of the first layers are the same for all tasks.
      deepest_mixing_layer: tasks can be interpolated at the layers from 0 to this one,
        the last whose input is shared by all tasks; never at the output.
      norm: which statistics normalise at test time, one of `NORM_POLICIES`.
    """

    family: str
    episodic: bool
    stack: Stack
    objective: Objective
    joint_statistics: bool
    class_pairs: bool
    norm: str

    @property
    def shared_layers(self) -> int:
        """How many of the first layers are the same for all tasks."""
        ...

    @property
    def deepest_mixing_layer(self) -> int:
        """The last layer at whose input tasks can be interpolated."""
        ...

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialises on an input `x`, every leaf `[N, ...]`."""
        ...

    def embed(
        self, variables: Variables, task: Task, key: Array, layer: int, train: bool
    ) -> tuple[Task, PyTree]:
        """Moves a task's x from the input to the static `layer`."""
        ...

    def loss(
        self, variables: Variables, task: Task, key: Array, layer: int, train: bool
    ) -> tuple[Array, Aux]:
        """The task's loss, where the task's x enters at the static `layer`."""
        ...

    def predict(
        self, variables: Variables, support: Batch, query_x: PyTree, key: Array
    ) -> Array:
        """Outputs `[N_q, C]` for new samples, given a support set."""
        ...


# -------------------------------------------------------------------- objectives


def weighted_mean(values: Array, weight: Array | None) -> Array:
    """The mean of `values [N]` over the samples that count."""
    if weight is None:
        return values.mean()
    return jnp.sum(values * weight) / jnp.maximum(weight.sum(), 1.0)


def cross_entropy(logits: Array, batch: Batch) -> Array:
    r""":math:`-\frac1N \sum_k \sum_r y_{kr} \log \mathrm{softmax}(z_k)_r`."""
    log_probabilities = jax.nn.log_softmax(logits)
    return weighted_mean(-jnp.sum(batch.y * log_probabilities, axis=-1), batch.weight)


def accuracy(logits: Array, batch: Batch) -> Array:
    """The share of samples whose likeliest class is that of the largest label."""
    correct = jnp.argmax(logits, axis=-1) == jnp.argmax(batch.y, axis=-1)
    return weighted_mean(correct.astype(jnp.float32), batch.weight)


def mean_squared_error(outputs: Array, batch: Batch) -> Array:
    r""":math:`\frac{1}{ND} \sum_k \|f(x_k) - y_k\|^2`, for targets of length D."""
    return weighted_mean(jnp.mean((outputs - batch.y) ** 2, axis=-1), batch.weight)


CLASSIFICATION = Objective("accuracy", cross_entropy, accuracy, True)
REGRESSION = Objective("mse", mean_squared_error, mean_squared_error, False)


# ------------------------------------------------------------- running the network


def check_norm(norm: str) -> None:
    """Refuses a batch-norm policy that there is not."""
    if norm not in NORM_POLICIES:
        raise unknown_name("batch-norm policy", norm, NORM_POLICIES)


def mode_for(norm: str, train: bool) -> Mode:
    """How the network is run, by the batch-norm policy.

    In training the statistics of the set at hand normalise, and the running averages
    follow; at test time, `batch` goes on with the set at hand and `running` uses the
    averages.
    """
    return Mode(train=train, batch_statistics=train or norm == "batch")


def shared_features(learner: Learner, variables: Variables, x: PyTree) -> PyTree:
    """What the shared layers make of samples at test time, one by one.

    Needs the batch-norm policy `running`: with the statistics of the set at hand a
    sample's features depend on the task that it is in.

    Args:
      learner: whose layers.
      variables: of the learner.
      x: samples, every leaf `[N, ...]`.

    Returns:
      Their representation at layer `learner.shared_layers`.
    """
    h, _ = learner.stack.apply(
        variables.params["model"],
        variables.state,
        x,
        0,
        learner.shared_layers,
        mode=mode_for(learner.norm, train=False),
    )
    return h


def concatenate(a: PyTree, b: PyTree) -> PyTree:
    """Support and query inputs as one batch, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b)


def concatenate_weights(support: Batch, query: Batch) -> Array | None:
    """The weights of support and query as one batch; None if all samples count."""
    if support.weight is None and query.weight is None:
        return None

    def ones_if_none(batch: Batch) -> Array:
        ones = jnp.ones(batch.y.shape[0])
        return ones if batch.weight is None else batch.weight

    return jnp.concatenate([ones_if_none(support), ones_if_none(query)])


def run_task(
    stack: Stack,
    params: PyTree,
    state: PyTree,
    task: Task,
    start: int,
    stop: int | None,
    *,
    key: Array,
    mode: Mode,
    joint: bool,
    hooks: tuple[Hook | None, Hook | None] = (None, None),
) -> tuple[Task, PyTree]:
    """Runs the layers `start..stop-1` on both sets of a task.

    Args:
      joint: whether the two sets are normalised as one batch or each by itself.
      hooks: for the support and the query set, where they are not one batch.

    Returns:
      The task with x at layer `stop`, and the state.
    """
    if start == stop:
        return task, state
    key_support, key_query = jax.random.split(key)

    def run(state, x, weight, key, hook=None):
        return stack.apply(
            params, state, x, start, stop, key=key, mode=mode, weight=weight, hook=hook
        )

    support, query = task.support, task.query
    if joint:
        weight = concatenate_weights(support, query)
        both = concatenate(support.x, query.x)
        h, state = run(state, both, weight, key_support)
        size = support.y.shape[0]
        support_x = jax.tree.map(lambda leaf: leaf[:size], h)
        query_x = jax.tree.map(lambda leaf: leaf[size:], h)
    else:
        support_x, state = run(state, support.x, support.weight, key_support, hooks[0])
        query_x, state = run(state, query.x, query.weight, key_query, hooks[1])
    task = task.replace(
        support=support.replace(x=support_x), query=query.replace(x=query_x)
    )
    return task, state
