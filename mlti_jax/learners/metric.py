"""Metric-based meta-learning: the nearest in a learned space (Sec. 2, Eq. 2)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from mlti_jax.backbones import Stack
from mlti_jax.errors import InputError
from mlti_jax.learners.base import (
    CLASSIFICATION,
    Aux,
    Objective,
    Variables,
    check_norm,
    concatenate,
    mode_for,
    run_task,
)
from mlti_jax.types import Array, Batch, PyTree, Task


def prototypes(embeddings: Array, support: Batch) -> Array:
    r"""Class means :math:`c_r = \frac{1}{N_r} \sum_{k: y_k = r} f(x_k)`.

    Args:
      embeddings: `[N, D]`.
      support: labels `[N, C]` and weights of the same samples.

    Returns:
      `[C, D]`; zeros for a class without samples.
    """
    share = support.y if support.weight is None else support.y * support.weight[:, None]
    count = share.sum(axis=0)
    return (share.T @ embeddings) / jnp.maximum(count, 1e-12)[:, None]


def squared_euclidean(a: Array, b: Array) -> Array:
    r""":math:`\|a_k - b_r\|^2` for `a [N, D]` and `b [C, D]`, as `[N, C]`."""
    return jnp.sum((a[:, None] - b[None]) ** 2, axis=-1)


@dataclasses.dataclass(frozen=True)
class ProtoNet:
    """Prototypical networks (Snell et al. 2017).

    Support and query are normalised as one batch in training; so they are at test
    time with the policy `batch` (which then looks at all queries together), while
    `running` uses the averages.

    Attributes:
      stack: the network that embeds; no head.
      norm: batch-norm policy at test time, `batch` or `running`.
    """

    stack: Stack
    norm: str = "running"
    objective: Objective = CLASSIFICATION

    joint_statistics = True
    class_pairs = True

    def __post_init__(self):
        check_norm(self.norm)

    @property
    def shared_layers(self) -> int:
        """`L^s = L`: all of them."""
        return len(self.stack)

    @property
    def deepest_mixing_layer(self) -> int:
        """The last layer: its output is compared, and never interpolated."""
        return self.shared_layers - 1

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialises on an input `x`, every leaf `[N, ...]`."""
        params, state = self.stack.init(key, x)
        return Variables(params={"model": params}, state=state)

    def embed(
        self,
        variables: Variables,
        task: Task,
        key: Array,
        layer: int,
        train: bool,
        start: int = 0,
    ) -> tuple[Task, PyTree]:
        """Moves a task's x from layer `start` to `layer`, both sets as one batch."""
        return run_task(
            self.stack,
            variables.params["model"],
            variables.state,
            task,
            start,
            layer,
            key=key,
            mode=mode_for(self.norm, train),
            joint=self.joint_statistics,
        )

    def loss(
        self, variables: Variables, task: Task, key: Array, layer: int, train: bool
    ) -> tuple[Array, Aux]:
        r"""Eq. 2: cross-entropy of :math:`p(r|x) \propto \exp(-d(f(x), c_r))`."""
        task, state = self.embed(variables, task, key, len(self.stack), train, layer)
        logits = self._logits(task.support, task.query.x)
        loss = self.objective.loss(logits, task.query)
        metric = self.objective.metric(logits, task.query)
        return loss, Aux(state, metric, logits, loss, logits)

    def predict(
        self, variables: Variables, support: Batch, query_x: PyTree, key: Array
    ) -> Array:
        """Logits `[N_q, C]`, minus the squared distances to the prototypes."""
        del key
        weight = support.weight
        if weight is not None:
            num_queries = jax.tree.leaves(query_x)[0].shape[0]
            weight = jnp.concatenate([weight, jnp.ones(num_queries)])
        h, _ = self.stack.apply(
            variables.params["model"],
            variables.state,
            concatenate(support.x, query_x),
            mode=mode_for(self.norm, train=False),
            weight=weight,
        )
        size = support.y.shape[0]
        return self._logits(support.replace(x=h[:size]), h[size:])

    def _logits(self, support: Batch, query_h: Array) -> Array:
        flat = support.x.reshape(support.x.shape[0], -1)
        centres = prototypes(flat, support)
        return -squared_euclidean(query_h.reshape(query_h.shape[0], -1), centres)


def protonet(
    backbone: Stack,
    outputs: int,
    *,
    objective: Objective = CLASSIFICATION,
    norm: str = "running",
) -> ProtoNet:
    """ProtoNet; `outputs` is not needed, tasks may have any number of classes."""
    del outputs
    if objective is not CLASSIFICATION:
        raise InputError(
            "protonet classifies by the nearest prototype and has no form for "
            "regression; use a gradient-based learner such as maml"
        )
    return ProtoNet(stack=backbone, norm=norm, objective=objective)
