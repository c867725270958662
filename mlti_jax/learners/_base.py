"""The learner seam: what every learner offers, for *one* task.

Strategies batch a learner over the tasks of a meta-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import unknown_name
from mlti_jax.backbones import Context, Stack
from mlti_jax.backbones._stack import Hook
from mlti_jax.learners._objectives import Objective
from mlti_jax.types import Array, Batch, PyTree, Task

NORM_POLICIES = ("batch", "running")


class Variables(flax.struct.PyTreeNode):
    """Everything that training changes.

    Attributes:
      params: parameters of the learner, updated by the optimizer.
      state: running averages of the normalization, one entry per layer.
      strategy: parameters of the strategy, also updated by the optimizer.
    """

    params: PyTree
    state: PyTree = ()
    strategy: PyTree = ()


class Aux(flax.struct.PyTreeNode):
    """Outputs of `Learner.loss` besides the loss.

    Attributes:
      state: updated running averages.
      metric: scalar, accuracy or mean squared error on the query set.
      outputs: `[N_q, C]`, logits or predictions for the query set.
      loss_before: scalar, the query loss before adaptation (equal to the loss if
        nothing is adapted).
      outputs_before: `[N_q, C]`, the outputs before adaptation.
      weight: `[N_q]`, the weight of the query samples; None if all count.
    """

    state: PyTree
    metric: Array
    outputs: Array
    loss_before: Array
    outputs_before: Array
    weight: Array | None = None


class Perturbation(NamedTuple):
    """Noise on hidden outputs within a task, before they are normalized.

    Only gradient-based learners support it (Meta-Dropout).

    Attributes:
      support: `key -> Hook`, the noise on the support set; the inner loop draws it
        again in every step, in training and at test time.
      query: the hook for the query set, without noise.
      samples: draws whose losses are averaged in each inner step of training.
      eval_samples: the same at test time.
    """

    support: Callable[[Array], Hook]
    query: Hook
    samples: int = 1
    eval_samples: int = 1


class TaskContext(flax.struct.PyTreeNode):
    """How a learner processes one task.

    Attributes:
      key: PRNG key for all randomness within the task.
      train: static; whether this is training. It sets the number of inner steps, the
        noise and the batch-norm statistics.
      perturbation: static; noise on hidden outputs, None for none.
    """

    key: Array
    train: bool = flax.struct.field(pytree_node=False, default=False)
    perturbation: Perturbation | None = flax.struct.field(
        pytree_node=False, default=None
    )


class Learner(Protocol):
    """A meta-learning algorithm for one task.

    Attributes:
      family: `gradient` (adapts with gradient steps), `metric` (compares embeddings)
        or `supervised` (trains a classifier); determines which strategies apply.
      episodic: whether training uses tasks; if not, it uses flat batches.
      stack: the network.
      objective: loss and metric.
      norm: statistics used at test time, one of `NORM_POLICIES`.
      joint_statistics: whether support and query are normalized as one batch.
      class_pairs: whether interpolated tasks must keep hard labels, so that Eq. 6
        applies to label-sharing tasks too.
      shared_layers: number of leading layers that all tasks share.
      deepest_mixing_layer: tasks can be interpolated at the layers from 0 to this one,
        the last whose input is shared by all tasks; never at the output.
    """

    @property
    def family(self) -> str: ...  # noqa: D102

    @property
    def episodic(self) -> bool: ...  # noqa: D102

    @property
    def stack(self) -> Stack: ...  # noqa: D102

    @property
    def objective(self) -> Objective: ...  # noqa: D102

    @property
    def norm(self) -> str: ...  # noqa: D102

    @property
    def joint_statistics(self) -> bool: ...  # noqa: D102

    @property
    def class_pairs(self) -> bool: ...  # noqa: D102

    @property
    def shared_layers(self) -> int: ...  # noqa: D102

    @property
    def deepest_mixing_layer(self) -> int: ...  # noqa: D102

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialize on an input `x`, every leaf `[N, ...]`."""
        ...

    def embed(
        self, variables: Variables, task: Task, context: TaskContext, layer: int
    ) -> tuple[Task, PyTree]:
        """Move the x of a task from the input to the static `layer`.

        Returns:
          The task, and the updated state.
        """
        ...

    def loss(
        self, variables: Variables, task: Task, context: TaskContext, layer: int = 0
    ) -> tuple[Array, Aux]:
        """Compute the loss of a task whose x is at the static `layer`."""
        ...

    def predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        context: TaskContext,
    ) -> Array:
        """Compute outputs `[N_q, C]` for new samples, given a support set."""
        ...


def check_norm(norm: str) -> None:
    """Raise `InputError` if the batch-norm policy is unknown."""
    if norm not in NORM_POLICIES:
        raise unknown_name("batch-norm policy", norm, NORM_POLICIES)


def network_context(
    norm: str,
    train: bool,
    key: Array | None = None,
    weight: Array | None = None,
    hook: Hook | None = None,
) -> Context:
    """Build the context in which a network runs under a batch-norm policy.

    Training normalizes with the statistics of the given samples and updates the
    running averages. At test time, `batch` still uses the given samples and `running`
    uses the averages.
    """
    batch_statistics = train or norm == "batch"
    return Context(key, weight, train, batch_statistics, hook)


def shared_features(learner: Learner, variables: Variables, x: PyTree) -> PyTree:
    """Compute the features of the shared layers at test time, sample by sample.

    Requires the batch-norm policy `running`: with batch statistics the features of a
    sample depend on its task.

    Args:
      learner: the learner.
      variables: its variables.
      x: samples, every leaf `[N, ...]`.

    Returns:
      The representation at layer `learner.shared_layers`.
    """
    h, _ = learner.stack.apply(
        variables.params["model"],
        variables.state,
        x,
        0,
        learner.shared_layers,
        network_context(learner.norm, train=False),
    )
    return h


def concatenate(a: PyTree, b: PyTree) -> PyTree:
    """Concatenate support and query inputs, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b)


def concatenate_weights(support: Batch, query: Batch) -> Array | None:
    """Concatenate the weights of support and query; None if all samples count."""
    if support.weight is None and query.weight is None:
        return None

    def ones_if_none(batch: Batch) -> Array:
        ones = jnp.ones(batch.y.shape[0])
        return ones if batch.weight is None else batch.weight

    return jnp.concatenate([ones_if_none(support), ones_if_none(query)])


def run_task(
    learner: Learner,
    variables: Variables,
    task: Task,
    context: TaskContext,
    start: int,
    stop: int,
) -> tuple[Task, PyTree]:
    """Run the layers `start..stop-1` of a learner's network on both sets of a task.

    The two sets are normalized as one batch if `learner.joint_statistics`, else each
    with its own statistics. A perturbation draws the noise on the support set from
    `context.key`.

    Returns:
      The task with x at layer `stop`, and the updated state.
    """
    if start == stop:
        return task, variables.state
    key_support, key_query = jax.random.split(context.key)

    def run(
        state: PyTree,
        x: PyTree,
        weight: Array | None,
        key: Array,
        hook: Hook | None = None,
    ) -> tuple[PyTree, PyTree]:
        return learner.stack.apply(
            variables.params["model"],
            state,
            x,
            start,
            stop,
            network_context(learner.norm, context.train, key, weight, hook),
        )

    support, query = task.support, task.query
    if learner.joint_statistics:
        weight = concatenate_weights(support, query)
        both = concatenate(support.x, query.x)
        h, state = run(variables.state, both, weight, key_support)
        size = support.y.shape[0]
        support_x = jax.tree.map(lambda leaf: leaf[:size], h)
        query_x = jax.tree.map(lambda leaf: leaf[size:], h)
    else:
        noise = context.perturbation
        hooks: tuple[Hook | None, Hook | None] = (None, None)
        if noise is not None:
            hooks = (noise.support(context.key), noise.query)
        support_x, state = run(
            variables.state, support.x, support.weight, key_support, hooks[0]
        )
        query_x, state = run(state, query.x, query.weight, key_query, hooks[1])
    task = task.replace(
        support=support.replace(x=support_x), query=query.replace(x=query_x)
    )
    return task, state
