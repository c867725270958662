"""Metric-based meta-learning: nearest neighbors in a learned space (Sec. 2, Eq. 2).

A learner of this family is a network that embeds samples and a *classifier* without
parameters that compares embedded queries with the embedded support set. Optionally,
full-context embeddings condition both on the whole support set in between.
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
    Aux,
    TaskContext,
    Variables,
    check_norm,
    concatenate,
    network_context,
    run_task,
)
from mlti_jax.learners._full_context import FullContext
from mlti_jax.learners._mahalanobis import nearest_gaussian
from mlti_jax.learners._objectives import CLASSIFICATION, Objective
from mlti_jax.types import Array, Batch, PyTree, Task

Distance = Callable[[Array, Array], Array]
# (support set with embeddings [N, D] as x, embedded queries [N_q, D]) -> logits
Classifier = Callable[[Batch, Array], Array]


def prototypes(embeddings: Array, support: Batch) -> Array:
    r"""Compute class means $c_r = \frac{1}{N_r} \sum_{k: y_k = r} f(x_k)$.

    Args:
      embeddings: `[N, D]`.
      support: labels `[N, C]` and weights of the same samples.

    Returns:
      `[C, D]`; zeros for a class without samples.

    Examples:
      >>> support = Batch(x=None, y=jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
      >>> prototypes(jnp.array([[0.0], [2.0], [5.0]]), support).tolist()
      [[1.0], [5.0]]
    """
    share = support.y if support.weight is None else support.y * support.weight[:, None]
    count = share.sum(axis=0)
    return (share.T @ embeddings) / jnp.maximum(count, 1e-12)[:, None]


def squared_euclidean(a: Array, b: Array) -> Array:
    r"""Compute $\|a_k - b_r\|^2$ for `a [N, D]` and `b [C, D]`, `[N, C]`.

    Uses a matrix product of vectors relative to the mean of b: distances do not depend
    on the origin, and close to it little cancels. (A plain sum of squared differences
    needs `[N, C, D]` memory, and with JAX 0.10.2 its derivative crashed training steps
    on CPUs with AVX-512.)
    """
    centre = jax.lax.stop_gradient(b.mean(axis=0))
    a, b = a - centre, b - centre
    product = jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)
    lengths = jnp.sum(a**2, axis=-1)[:, None] + jnp.sum(b**2, axis=-1)[None]
    return lengths - 2 * product


def cosine(a: Array, b: Array) -> Array:
    r"""Compute $1 - \frac{a_k \cdot b_r}{\|a_k\| \|b_r\|}$, `[N, C]`; 1 for zeros."""
    return 1 - ops.unit(a) @ ops.unit(b).T


DISTANCES = {"squared_euclidean": squared_euclidean, "cosine": cosine}


def nearest_prototype(distance: Distance) -> Classifier:
    r"""Return ProtoNet's classifier, $p(r|x) \propto \exp(-d(f(x), c_r))$."""

    def classify(support: Batch, query_h: Array) -> Array:
        return -distance(query_h, prototypes(support.x, support))

    return classify


def attention(distance: Distance, scale: float) -> Classifier:
    r"""Return MatchingNet's classifier, a weighted mean of the support labels.

    $$p(r|x) = \sum_k a_k(x)\, y_{kr}, \quad
      a(x) = \mathrm{softmax}_k(-s\, d(f(x), f(x_k)))$$
    """

    def classify(support: Batch, query_h: Array) -> Array:
        scores = -scale * distance(query_h, support.x)
        # log sum_k exp(score_k) y_kr; its log-softmax over r is log p(r|x).
        share = (
            support.y
            if support.weight is None
            else (support.y * support.weight[:, None])
        )
        return jax.nn.logsumexp(scores[:, :, None], axis=1, b=share[None])

    return classify


@dataclasses.dataclass(frozen=True)
class MetricLearner:
    """Embeds support and query sets and compares them.

    Support and query are normalized as one batch in training. At test time the policy
    `batch` does the same (so a prediction depends on the other queries), and `running`
    uses the running averages.

    Attributes:
      stack: the network that embeds; no head.
      classify: maps embedded sets to logits.
      norm: batch-norm policy at test time, `batch` or `running`.
      objective: loss and metric.
      full_context: conditions the embeddings on the support set; its parameters are
        `params["context"]`. None compares the embeddings of the stack.
    """

    stack: Stack
    classify: Classifier
    norm: str = "running"
    objective: Objective = CLASSIFICATION
    full_context: FullContext | None = None

    family = "metric"
    episodic = True
    joint_statistics = True
    class_pairs = True

    def __post_init__(self) -> None:
        check_norm(self.norm)

    @property
    def shared_layers(self) -> int:
        """`L^s = L`: all layers."""
        return len(self.stack)

    @property
    def deepest_mixing_layer(self) -> int:
        """The last layer; its output is compared and never interpolated."""
        return self.shared_layers - 1

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialize on an input `x`, every leaf `[N, ...]`."""
        model, state = self.stack.init(key, x)
        params = {"model": model}
        if self.full_context is not None:
            h, _ = jax.eval_shape(self.stack.apply, model, state, x)
            # Layer l is initialized with fold_in(key, l), so the next index is free.
            key = jax.random.fold_in(key, len(self.stack))
            params["context"] = self.full_context.init(key, math.prod(h.shape[1:]))
        return Variables(params=params, state=state)

    def embed(
        self, variables: Variables, task: Task, context: TaskContext, layer: int
    ) -> tuple[Task, PyTree]:
        """Move the x of a task from the input to `layer`, both sets as one batch."""
        return run_task(self, variables, task, context, 0, layer)

    def loss(
        self, variables: Variables, task: Task, context: TaskContext, layer: int = 0
    ) -> tuple[Array, Aux]:
        """Compute the cross-entropy of the query labels (Eq. 2)."""
        task, state = run_task(self, variables, task, context, layer, len(self.stack))
        logits = self._logits(variables, task.support, task.query.x)
        loss = self.objective.loss(logits, task.query)
        metric = self.objective.metric(logits, task.query)
        return loss, Aux(state, metric, logits, loss, logits, task.query.weight)

    def predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        context: TaskContext,
    ) -> Array:
        """Compute logits `[N_q, C]` for new samples, given a support set."""
        del context
        weight = support.weight
        if weight is not None:
            num_queries = jax.tree.leaves(query_x)[0].shape[0]
            weight = jnp.concatenate([weight, jnp.ones(num_queries)])
        h, _ = self.stack.apply(
            variables.params["model"],
            variables.state,
            concatenate(support.x, query_x),
            context=network_context(self.norm, train=False, weight=weight),
        )
        size = support.y.shape[0]
        return self._logits(variables, support.replace(x=h[:size]), h[size:])

    def _logits(self, variables: Variables, support: Batch, query_h: Array) -> Array:
        support = support.replace(x=support.x.reshape(support.x.shape[0], -1))
        query_h = query_h.reshape(query_h.shape[0], -1)
        if self.full_context is not None:
            params = variables.params["context"]
            support_h, query_h = self.full_context.apply(params, support, query_h)
            support = support.replace(x=support_h)
        return self.classify(support, query_h)


def metric_learner(
    name: str,
    backbone: Stack,
    classify: Classifier,
    objective: Objective,
    norm: str,
    full_context: FullContext | None = None,
) -> MetricLearner:
    """Build a learner of this family; raise `InputError` for regression."""
    if objective is not CLASSIFICATION:
        raise InputError(
            f"{name} compares queries with the classes of the support set and does not "
            "support regression; use a gradient-based learner such as maml"
        )
    return MetricLearner(
        stack=backbone,
        classify=classify,
        norm=norm,
        objective=objective,
        full_context=full_context,
    )


def protonet(
    backbone: Stack,
    outputs: int,
    *,
    objective: Objective = CLASSIFICATION,
    norm: str = "running",
    distance: str = "squared_euclidean",
) -> MetricLearner:
    r"""Build ProtoNet (Snell et al. 2017), $p(r|x) \propto \exp(-d(f(x), c_r))$.

    Args:
      backbone: the network that embeds.
      outputs: unused; tasks may have any number of classes.
      objective: must be classification.
      norm: batch-norm policy at test time, `batch` or `running`.
      distance: `squared_euclidean`, `cosine`, or `mahalanobis`: the squared distance
        under the covariance of each class, regularized as in Simple CNAPS (Bateni et
        al. 2020), for classes that differ in size or spread.

    Examples:
      >>> from mlti_jax import backbones
      >>> protonet(backbones.mlp((32, 32)), outputs=5).family
      'metric'
    """
    del outputs
    if distance == "mahalanobis":
        classify: Classifier = nearest_gaussian
    elif distance in DISTANCES:
        classify = nearest_prototype(DISTANCES[distance])
    else:
        raise unknown_name("distance", distance, (*DISTANCES, "mahalanobis"))
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
    """Build MatchingNet (Vinyals et al. 2016), optionally with full context.

    Args:
      backbone: the network that embeds.
      outputs: unused; tasks may have any number of classes.
      objective: must be classification.
      norm: batch-norm policy at test time, `batch` or `running`.
      distance: `squared_euclidean` or `cosine`.
      scale: factor on the distances before the softmax; 1 in the original.
      full_context: whether embeddings depend on the whole support set (and on the
        order of its samples).
      context_steps: number of attention steps over the support set per query. The
        original gives no number; 5 is the default of Hariharan and Girshick's code
        (2017, facebookresearch/low-shot-shrink-hallucinate).

    Examples:
      >>> from mlti_jax import backbones
      >>> learner = matchingnet(backbones.mlp((32, 32)), outputs=5, full_context=True)
      >>> learner.full_context.steps
      5
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
