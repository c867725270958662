"""Metric-based meta-learning: the nearest in a learned space (Sec. 2, Eq. 2).

A learner of this family is a network that embeds and a *classifier* that compares
embedded queries with the embedded support set, without parameters of its own. Between
the two, a *context* may embed anew, with the support set in view.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mlti_jax import ops
from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.backbones import Stack
from mlti_jax.errors import InputError
from mlti_jax.learners._base import (
    CLASSIFICATION,
    Aux,
    Objective,
    Variables,
    check_norm,
    concatenate,
    mode_for,
    run_task,
)
from mlti_jax.learners._full_context import FullContext
from mlti_jax.types import Array, Batch, PyTree, Task

Distance = Callable[[Array, Array], Array]
# From the support set, its x embedded as `[N, D]`, and queries `[N_q, D]` to logits.
Classifier = Callable[[Batch, Array], Array]


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
    r""":math:`\|a_k - b_r\|^2` for `a [N, D]` and `b [C, D]`, as `[N, C]`.

    By a matrix product, from vectors relative to the mean of b: distances don't depend
    on where they are measured from, and near it little cancels. (The plain sum of
    squared differences takes `[N, C, D]`; with XLA 0.10.2, training steps with it were
    seen to crash on a CPU with AVX-512, in a fusion of its derivative.)
    """
    centre = jax.lax.stop_gradient(b.mean(axis=0))
    a, b = a - centre, b - centre
    product = jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)
    lengths = jnp.sum(a**2, axis=-1)[:, None] + jnp.sum(b**2, axis=-1)[None]
    return lengths - 2 * product


def cosine(a: Array, b: Array) -> Array:
    r""":math:`1 - \frac{a_k \cdot b_r}{\|a_k\| \|b_r\|}`, as `[N, C]`; 1 for zeros."""
    return 1 - ops.unit(a) @ ops.unit(b).T


DISTANCES = {"squared_euclidean": squared_euclidean, "cosine": cosine}


def nearest_prototype(distance: Distance) -> Classifier:
    r"""ProtoNet (Snell et al. 2017): :math:`p(r|x) \propto \exp(-d(f(x), c_r))`."""

    def classify(support: Batch, query_h: Array) -> Array:
        return -distance(query_h, prototypes(support.x, support))

    return classify


def attention(distance: Distance, scale: float) -> Classifier:
    r"""MatchingNet (Vinyals et al. 2016): a mean of the support's labels.

    .. math:: p(r|x) = \sum_k a_k(x)\, y_{kr}, \quad
              a(x) = \mathrm{softmax}_k(-s\, d(f(x), f(x_k)))
    """

    def classify(support: Batch, query_h: Array) -> Array:
        scores = -scale * distance(query_h, support.x)
        # log sum_k exp(score_k) y_kr: a log-softmax over r is then log p(r|x).
        share = (
            support.y
            if support.weight is None
            else (support.y * support.weight[:, None])
        )
        return jax.nn.logsumexp(scores[:, :, None], axis=1, b=share[None])

    return classify


@dataclasses.dataclass(frozen=True)
class MetricLearner:
    """Embeds support and query, and compares.

    Support and query are normalised as one batch in training; so they are at test
    time with the policy `batch` (which then looks at all queries together), while
    `running` uses the averages.

    Attributes:
      stack: the network that embeds; no head.
      classify: from embedded sets to logits.
      norm: batch-norm policy at test time, `batch` or `running`.
      context: embeds what the stack gives anew, given the support set; its parameters
        are `params["context"]`. None: the stack's embeddings are compared.
    """

    stack: Stack
    classify: Classifier
    norm: str = "running"
    objective: Objective = CLASSIFICATION
    context: FullContext | None = None

    family = "metric"
    episodic = True
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
        model, state = self.stack.init(key, x)
        params = {"model": model}
        if self.context is not None:
            h, _ = jax.eval_shape(self.stack.apply, model, state, x)
            # Layer l is initialised with fold_in(key, l): the next number is free.
            key = jax.random.fold_in(key, len(self.stack))
            params["context"] = self.context.init(key, math.prod(h.shape[1:]))
        return Variables(params=params, state=state)

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
        """Eq. 2: cross-entropy of the queries' labels."""
        task, state = self.embed(variables, task, key, len(self.stack), train, layer)
        logits = self._logits(variables, task.support, task.query.x)
        loss = self.objective.loss(logits, task.query)
        metric = self.objective.metric(logits, task.query)
        return loss, Aux(state, metric, logits, loss, logits)

    def predict(
        self, variables: Variables, support: Batch, query_x: PyTree, key: Array
    ) -> Array:
        """Logits `[N_q, C]` of new samples, given a support set."""
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
        return self._logits(variables, support.replace(x=h[:size]), h[size:])

    def _logits(self, variables: Variables, support: Batch, query_h: Array) -> Array:
        support = support.replace(x=support.x.reshape(support.x.shape[0], -1))
        query_h = query_h.reshape(query_h.shape[0], -1)
        if self.context is not None:
            params = variables.params["context"]
            support_h, query_h = self.context.apply(params, support, query_h)
            support = support.replace(x=support_h)
        return self.classify(support, query_h)


def metric_learner(
    name: str,
    backbone: Stack,
    classify: Classifier,
    objective: Objective,
    norm: str,
    context: FullContext | None = None,
) -> MetricLearner:
    """A learner of this family; regression is refused."""
    if objective is not CLASSIFICATION:
        raise InputError(
            f"{name} classifies by comparison with the support set and has no form for "
            "regression; use a gradient-based learner such as maml"
        )
    return MetricLearner(
        stack=backbone,
        classify=classify,
        norm=norm,
        objective=objective,
        context=context,
    )


def protonet(
    backbone: Stack,
    outputs: int,
    *,
    objective: Objective = CLASSIFICATION,
    norm: str = "running",
    distance: str = "squared_euclidean",
) -> MetricLearner:
    """Prototypical networks.

    Args:
      backbone: the network that embeds.
      outputs: not needed, tasks may have any number of classes.
      objective: must be classification.
      norm: batch-norm policy at test time, `batch` or `running`.
      distance: one of `DISTANCES`.
    """
    del outputs
    classify = nearest_prototype(_distance(distance))
    return metric_learner("protonet", backbone, classify, objective, norm)


def matchingnet(
    backbone: Stack,
    outputs: int,
    *,
    objective: Objective = CLASSIFICATION,
    norm: str = "running",
    distance: str = "cosine",
    scale: float = 1.0,
    full_context: bool = False,
    context_steps: int = 5,
) -> MetricLearner:
    """Matching networks, with or without full-context embeddings.

    Args:
      backbone: the network that embeds.
      outputs: not needed, tasks may have any number of classes.
      objective: must be classification.
      norm: batch-norm policy at test time, `batch` or `running`.
      distance: one of `DISTANCES`.
      scale: of the distances before the softmax; 1 in the original.
      full_context: whether embeddings depend on the whole support set, and on the
        order of its samples, see `full_context.FullContext`.
      context_steps: how often a query looks at the support set. The original gives no
        number; 5 is the default of Hariharan and Girshick's code (2017,
        facebookresearch/low-shot-shrink-hallucinate).
    """
    del outputs
    if not scale > 0:
        raise InputError(f"matchingnet needs a positive scale, got {scale}")
    if not isinstance(full_context, bool):
        raise InputError(
            f"matchingnet's full_context is {full_context!r}; expected True or False"
        )
    check_range("matchingnet's context_steps", context_steps, 1000)
    classify = attention(_distance(distance), scale)
    context = FullContext(context_steps) if full_context else None
    return metric_learner("matchingnet", backbone, classify, objective, norm, context)


def _distance(name: str) -> Distance:
    if name not in DISTANCES:
        raise unknown_name("distance", name, DISTANCES)
    return DISTANCES[name]
