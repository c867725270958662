"""Baselines that do not meta-learn (App. E.6): SL and MTL.

Both train a network on labelled samples, and meet a new task only at test time, on the
same episodes as all others: SL fine-tunes the whole network with a new head, MTL fits a
new head on features that stay as they are.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from mlti_jax import ops
from mlti_jax._internal.checks import check_range
from mlti_jax.backbones import Head, Stack
from mlti_jax.errors import InputError
from mlti_jax.learners._base import (
    CLASSIFICATION,
    Aux,
    Objective,
    Variables,
    check_norm,
    concatenate,
    concatenate_weights,
    mode_for,
    run_task,
)
from mlti_jax.learners._metric import prototypes
from mlti_jax.types import Array, Batch, PyTree, Task


def logistic_regression(
    h: Array, batch: Batch, strength: float, steps: int
) -> tuple[Array, Array]:
    r"""A linear classifier fitted to few samples, by accelerated gradient descent.

    .. math:: \min_{W, b}\; \tfrac12 \|W\|^2 + C \sum_k w_k\,
              \mathrm{CE}(W^\top h_k + b, y_k)

    The solution is a combination of the samples, :math:`W = H^\top A`, so that A is
    what is looked for: the cost of a step does not depend on D.

    Args:
      h: features `[N, D]`.
      batch: labels `[N, C]` and weights of the same samples.
      strength: C; a large one follows the samples closely.
      steps: of Nesterov's method, with the step size that the curvature allows.

    Returns:
      `(W [D, C], b [C])`.
    """
    weight = jnp.ones(h.shape[0]) if batch.weight is None else batch.weight
    count = jnp.maximum(weight.sum(), 1.0)
    decay = 1.0 / (strength * count)
    gram = h @ h.T
    # The Hessian of the cross-entropy is at most half the largest [h, 1] squared.
    size = 1.0 / ((jnp.max(jnp.diagonal(gram)) + 1.0) / 2 + decay)

    def step(carry, index):
        (a, b), (last_a, last_b) = carry
        momentum = index / (index + 3.0)
        ahead_a = a + momentum * (a - last_a)
        ahead_b = b + momentum * (b - last_b)
        wrong = jax.nn.softmax(gram @ ahead_a + ahead_b) - batch.y
        wrong = wrong * weight[:, None] / count
        new_a = ahead_a - size * (wrong + decay * ahead_a)
        new_b = ahead_b - size * wrong.sum(axis=0)
        return ((new_a, new_b), (a, b)), None

    start = (jnp.zeros_like(batch.y), jnp.zeros(batch.y.shape[1]))
    ((a, b), _), _ = jax.lax.scan(step, (start, start), jnp.arange(steps) * 1.0)
    return h.T @ a, b


@dataclasses.dataclass(frozen=True)
class SupervisedLearner:
    r"""SL (Dhillon et al. 2019): one classifier of all base classes, then fine-tuning.

    At test time the network's logits z are features,
    :math:`u(x) = \max(z, 0) / \|\max(z, 0)\|`, and a new head starts from the support
    set: class r's weights are :math:`\bar z_r / \|\bar z_r\|` with the mean
    :math:`\bar z_r` of the support's :math:`\max(z, 0)`. All parameters are then tuned
    by Adam on the support's cross-entropy; queries are not looked at (no transduction).

    Departures: the outer optimiser is that of all learners; no image augmentation; the
    normalisation at test time is the explicit choice `norm`.

    Attributes:
      stack: the network, its head over all base classes included.
      learning_rate: of the fine-tuning.
      steps: of the fine-tuning.
      norm: batch-norm policy at test time, `batch` or `running`.
    """

    stack: Stack
    learning_rate: float = 5e-5
    steps: int = 25
    norm: str = "running"
    objective: Objective = CLASSIFICATION

    family = "supervised"
    episodic = False
    joint_statistics = False
    class_pairs = True
    shared_layers = 0
    deepest_mixing_layer = 0

    def __post_init__(self):
        check_norm(self.norm)

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialises on an input `x`, every leaf `[N, ...]`."""
        params, state = self.stack.init(key, x)
        return Variables(params={"model": params}, state=state)

    def embed(self, variables, task, key, layer, train):
        """Tasks stay at the input: nothing is interpolated."""
        del key, layer, train
        return task, variables.state

    def loss(
        self, variables: Variables, task: Task, key: Array, layer: int, train: bool
    ) -> tuple[Array, Aux]:
        """In training, of a flat batch over all base classes; at test, of a task."""
        state, query = variables.state, task.query
        if train:
            outputs, state = self.stack.apply(
                variables.params["model"],
                state,
                query.x,
                layer,
                key=key,
                mode=mode_for(self.norm, train),
                weight=query.weight,
            )
        else:
            outputs = self._predict(variables, task.support, query.x, query.weight)
        loss = self.objective.loss(outputs, query)
        metric = self.objective.metric(outputs, query)
        return loss, Aux(state, metric, outputs, loss, outputs)

    def predict(
        self, variables: Variables, support: Batch, query_x: PyTree, key: Array
    ) -> Array:
        """Logits `[N_q, C]` of new samples, after fine-tuning on `support`."""
        del key
        return self._predict(variables, support, query_x, None)

    def _predict(self, variables, support, query_x, query_weight) -> Array:
        def features(model, x, weight):
            mode = mode_for(self.norm, train=False)
            z, _ = self.stack.apply(model, variables.state, x, mode=mode, weight=weight)
            return jax.nn.relu(z)

        model = variables.params["model"]
        positive = features(model, support.x, support.weight)
        centres = ops.unit(prototypes(positive, support))
        tuned = (model, centres.T, jnp.zeros(centres.shape[0]))

        def outputs(params, x, weight):
            model, kernel, bias = params
            return ops.unit(features(model, x, weight)) @ kernel + bias

        optimiser = optax.adam(self.learning_rate)

        def step(carry, _):
            params, memory = carry
            gradient = jax.grad(
                lambda p: self.objective.loss(
                    outputs(p, support.x, support.weight), support
                )
            )(params)
            updates, memory = optimiser.update(gradient, memory)
            return (optax.apply_updates(params, updates), memory), None

        start = (tuned, optimiser.init(tuned))
        (tuned, _), _ = jax.lax.scan(step, start, length=self.steps)
        return outputs(tuned, query_x, query_weight)


@dataclasses.dataclass(frozen=True)
class MultiTaskLearner:
    r"""MTL (Wang et al. 2021): a body shared by all tasks, trained jointly with heads.

    The head of a task has one row for each of its classes, which is that class's in
    every task that it is in: :math:`p(r|x) \propto \exp(v_r \cdot u(x))` over the
    classes r of the task alone, with u(x) the body's features, scaled to length one.
    Support and query are trained on alike. (Label-sharing tasks: a row for each class
    of each domain, so that every domain has a head of its own.) At test time the body
    stays as it is, and a head is fitted to the support set by logistic regression.

    Attributes:
      stack: the body.
      num_groups: rows of all heads.
      ways: classes of a task, for the initial size of the rows.
      unit_features: whether features are scaled to length one.
      strength: C of the logistic regression.
      steps: of its solver.
      norm: batch-norm policy at test time, `batch` or `running`.
    """

    stack: Stack
    num_groups: int
    ways: int
    unit_features: bool = True
    strength: float = 3.0
    steps: int = 200
    norm: str = "running"
    objective: Objective = CLASSIFICATION

    family = "supervised"
    episodic = True
    joint_statistics = True
    class_pairs = True

    def __post_init__(self):
        check_norm(self.norm)

    @property
    def shared_layers(self) -> int:
        """All of the body's."""
        return len(self.stack)

    @property
    def deepest_mixing_layer(self) -> int:
        """Nothing is interpolated: the input."""
        return 0

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialises on an input `x`, every leaf `[N, ...]`."""
        params, state = self.stack.init(key, x)
        h = jax.eval_shape(lambda x: self.stack.apply(params, state, x)[0], x)
        size = h.size // h.shape[0]
        bound = (self.num_groups / self.ways / size) ** 0.5
        heads = jax.random.uniform(
            jax.random.fold_in(key, len(self.stack)),
            (self.num_groups, size),
            minval=-bound,
            maxval=bound,
        )
        return Variables(params={"model": params, "heads": heads}, state=state)

    def embed(self, variables, task, key, layer, train, start=0):
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
        """In training, of all samples of a task by its head; at test, of its queries.

        Training needs `task.groups`, the numbers of the task's classes in the pool.
        """
        task, state = self.embed(variables, task, key, len(self.stack), train, layer)
        support, judged = task.support, task.query
        if train:
            if task.groups is None:
                raise InputError(
                    "mtl trains one head a class and needs task.groups, the numbers of "
                    "the task's classes; draw tasks by data.sample_task"
                )
            judged = Batch(
                x=concatenate(support.x, judged.x),
                y=jnp.concatenate([support.y, judged.y]),
                weight=concatenate_weights(support, judged),
            )
            heads = variables.params["heads"][task.groups]
            outputs = self._features(judged.x) @ heads.T
        else:
            outputs = self._fit(support, judged.x)
        loss = self.objective.loss(outputs, judged)
        metric = self.objective.metric(outputs, judged)
        return loss, Aux(state, metric, outputs, loss, outputs)

    def predict(
        self, variables: Variables, support: Batch, query_x: PyTree, key: Array
    ) -> Array:
        """Logits `[N_q, C]` of new samples, by a head fitted to `support`."""
        queries = jax.tree.leaves(query_x)[0].shape[0]
        query = Batch(query_x, jnp.zeros((queries, support.y.shape[1])))
        task = Task(support, query, domain=jnp.int32(0))
        task, _ = self.embed(variables, task, key, len(self.stack), False)
        return self._fit(task.support, task.query.x)

    def _fit(self, support: Batch, query_h: Array) -> Array:
        h = self._features(support.x)
        kernel, bias = logistic_regression(h, support, self.strength, self.steps)
        return self._features(query_h) @ kernel + bias

    def _features(self, h: Array) -> Array:
        h = h.reshape(h.shape[0], -1)
        return ops.unit(h) if self.unit_features else h


def sl(
    backbone: Stack,
    outputs: int,
    *,
    base_classes: int,
    objective: Objective = CLASSIFICATION,
    learning_rate: float = 5e-5,
    steps: int = 25,
    norm: str = "running",
) -> SupervisedLearner:
    """Supervised learning on all base classes, then fine-tuning.

    Args:
      backbone: the network without a head; a linear one is put on top.
      outputs: not needed, tasks may have any number of classes.
      base_classes: of the training pool.
      objective: must be classification.
      learning_rate: of the fine-tuning; 5e-5 in the paper.
      steps: of the fine-tuning; 25 in the paper.
      norm: batch-norm policy at test time, `batch` or `running`.
    """
    del outputs
    _check_classification("sl", objective)
    check_range("learner.sl.steps", steps, 10**6, smallest=0)
    if not learning_rate > 0:
        raise InputError(f"sl needs a positive learning_rate, got {learning_rate}")
    return SupervisedLearner(
        backbone.append(Head(base_classes)), learning_rate, steps, norm
    )


def mtl(
    backbone: Stack,
    outputs: int,
    *,
    base_groups: int,
    objective: Objective = CLASSIFICATION,
    unit_features: bool = True,
    strength: float = 3.0,
    steps: int = 200,
    norm: str = "running",
) -> MultiTaskLearner:
    """Multi-task learning of a body, then a fitted head.

    Args:
      backbone: the body.
      outputs: classes of a training task; at test time there may be others.
      base_groups: classes of the training pool, counted in each domain.
      objective: must be classification.
      unit_features: whether features are scaled to length one.
      strength: C of the logistic regression; 3 in the authors' code.
      steps: of its solver.
      norm: batch-norm policy at test time, `batch` or `running`.
    """
    _check_classification("mtl", objective)
    check_range("learner.mtl.steps", steps, 10**6)
    if not strength > 0:
        raise InputError(f"mtl needs a positive strength, got {strength}")
    return MultiTaskLearner(
        backbone, base_groups, outputs, unit_features, strength, steps, norm
    )


def _check_classification(name: str, objective: Objective) -> None:
    if objective is not CLASSIFICATION:
        raise InputError(
            f"{name} trains a classifier and has no form for regression; use a "
            "gradient-based learner such as maml"
        )
