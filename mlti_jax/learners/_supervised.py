"""Baselines without meta-learning (App. E.6): SL and MTL.

Both train a network on labeled samples and adapt only at test time, on the same
episodes as all other learners: SL fine-tunes the whole network with a new head, MTL
fits a new head on fixed features.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from mlti_jax import ops
from mlti_jax._internal.checks import check_range
from mlti_jax.backbones import Stack
from mlti_jax.backbones._layers import Head
from mlti_jax.errors import InputError
from mlti_jax.learners._base import (
    Aux,
    TaskContext,
    Variables,
    check_norm,
    concatenate,
    concatenate_weights,
    network_context,
    run_task,
)
from mlti_jax.learners._metric import prototypes
from mlti_jax.learners._objectives import CLASSIFICATION, Objective
from mlti_jax.types import Array, Batch, PyTree, Task


def logistic_regression(
    h: Array, batch: Batch, strength: float, steps: int
) -> tuple[Array, Array]:
    r"""Fit a linear classifier to few samples with accelerated gradient descent.

    $$\min_{W, b}\; \tfrac12 \|W\|^2 + C \sum_k w_k\,
      \mathrm{CE}(W^\top h_k + b, y_k)$$

    The solution is a combination of the samples, $W = H^\top A$, and the solver works
    on A, so the cost of a step does not depend on D.

    Args:
      h: features `[N, D]`.
      batch: labels `[N, C]` and weights of the same samples.
      strength: C, the inverse regularization strength.
      steps: steps of Nesterov's method, with a step size from a curvature bound.

    Returns:
      `(W [D, C], b [C])`.
    """
    weight = jnp.ones(h.shape[0]) if batch.weight is None else batch.weight
    count = jnp.maximum(weight.sum(), 1.0)
    decay = 1.0 / (strength * count)
    gram = h @ h.T
    # The Hessian of the cross-entropy is at most half the largest |[h, 1]|^2.
    size = 1.0 / ((jnp.max(jnp.diagonal(gram)) + 1.0) / 2 + decay)

    def step(carry: PyTree, index: Array) -> tuple[PyTree, None]:
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

    At test time the logits z of the network are features,
    $u(x) = \max(z, 0) / \|\max(z, 0)\|$, and the support set initializes a new head:
    the weights of class r are $\bar z_r / \|\bar z_r\|$ with the mean $\bar z_r$ of
    $\max(z, 0)$ over its support samples. Adam then tunes all parameters on the
    cross-entropy of the support set; queries are not used (no transduction).

    Differences from the paper: the outer optimizer is the same as for all learners; no
    image augmentation; `norm` sets the normalization at test time.

    Attributes:
      stack: the network including its head over all base classes.
      learning_rate: learning rate of the fine-tuning.
      steps: steps of the fine-tuning.
      norm: batch-norm policy at test time, `batch` or `running`.
      objective: loss and metric.
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

    def __post_init__(self) -> None:
        check_norm(self.norm)

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialize on an input `x`, every leaf `[N, ...]`."""
        params, state = self.stack.init(key, x)
        return Variables(params={"model": params}, state=state)

    def embed(
        self, variables: Variables, task: Task, context: TaskContext, layer: int
    ) -> tuple[Task, PyTree]:
        """Return the task unchanged: nothing is interpolated."""
        del context, layer
        return task, variables.state

    def loss(
        self, variables: Variables, task: Task, context: TaskContext, layer: int = 0
    ) -> tuple[Array, Aux]:
        """Compute the loss of a flat batch of all base classes, or of a test task."""
        state, query = variables.state, task.query
        if context.train:
            outputs, state = self.stack.apply(
                variables.params["model"],
                state,
                query.x,
                layer,
                context=network_context(self.norm, True, context.key, query.weight),
            )
        else:
            outputs = self._predict(variables, task.support, query.x, query.weight)
        loss = self.objective.loss(outputs, query)
        metric = self.objective.metric(outputs, query)
        return loss, Aux(state, metric, outputs, loss, outputs, query.weight)

    def predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        context: TaskContext,
    ) -> Array:
        """Compute logits `[N_q, C]` for new samples after fine-tuning on `support`."""
        del context
        return self._predict(variables, support, query_x, None)

    def _predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        query_weight: Array | None,
    ) -> Array:
        def features(model: PyTree, x: PyTree, weight: Array | None) -> Array:
            context = network_context(self.norm, train=False, weight=weight)
            z, _ = self.stack.apply(model, variables.state, x, context=context)
            return jax.nn.relu(z)

        model = variables.params["model"]
        positive = features(model, support.x, support.weight)
        centres = ops.unit(prototypes(positive, support))
        tuned = (model, centres.T, jnp.zeros(centres.shape[0]))

        def outputs(params: PyTree, x: PyTree, weight: Array | None) -> Array:
            model, kernel, bias = params
            return ops.unit(features(model, x, weight)) @ kernel + bias

        optimizer = optax.adam(self.learning_rate)

        def step(carry: PyTree, _: None) -> tuple[PyTree, None]:
            params, memory = carry
            gradient = jax.grad(
                lambda p: self.objective.loss(
                    outputs(p, support.x, support.weight), support
                )
            )(params)
            updates, memory = optimizer.update(gradient, memory)
            return (optax.apply_updates(params, updates), memory), None

        start = (tuned, optimizer.init(tuned))
        (tuned, _), _ = jax.lax.scan(step, start, length=self.steps)
        return outputs(tuned, query_x, query_weight)


@dataclasses.dataclass(frozen=True)
class MultiTaskLearner:
    r"""MTL (Wang et al. 2021): a shared body, trained jointly with one head per task.

    The head of a task has one row per class, and a class has the same row in every task
    that contains it: $p(r|x) \propto \exp(v_r \cdot u(x))$ over the classes r of the
    task, where u(x) are the features of the body, scaled to unit length. Training uses
    support and query alike. (On label-sharing data every domain has its own head: one
    row per class and domain.) At test time the body is fixed, and logistic regression
    fits a head to the support set.

    Attributes:
      stack: the body.
      num_groups: number of rows of all heads.
      ways: number of classes per task, for the initial scale of the rows.
      unit_features: whether features are scaled to unit length.
      strength: C of the logistic regression.
      steps: steps of its solver.
      norm: batch-norm policy at test time, `batch` or `running`.
      objective: loss and metric.
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

    def __post_init__(self) -> None:
        check_norm(self.norm)

    @property
    def shared_layers(self) -> int:
        """All layers of the body."""
        return len(self.stack)

    @property
    def deepest_mixing_layer(self) -> int:
        """The input: nothing is interpolated."""
        return 0

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialize on an input `x`, every leaf `[N, ...]`."""
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

    def embed(
        self, variables: Variables, task: Task, context: TaskContext, layer: int
    ) -> tuple[Task, PyTree]:
        """Move the x of a task from the input to `layer`, both sets as one batch."""
        return run_task(self, variables, task, context, 0, layer)

    def loss(
        self, variables: Variables, task: Task, context: TaskContext, layer: int = 0
    ) -> tuple[Array, Aux]:
        """Compute the loss of all samples in training, of the queries at test time.

        Training needs `task.groups`, the indices of the task's classes in the pool.
        """
        task, state = run_task(self, variables, task, context, layer, len(self.stack))
        support, evaluated = task.support, task.query
        if context.train:
            if task.groups is None:
                raise InputError(
                    "mtl trains one head per class and needs task.groups, the indices "
                    "of the task's classes in the pool; draw tasks with "
                    "data.sample_task"
                )
            evaluated = Batch(
                x=concatenate(support.x, evaluated.x),
                y=jnp.concatenate([support.y, evaluated.y]),
                weight=concatenate_weights(support, evaluated),
            )
            heads = variables.params["heads"][task.groups]
            outputs = self._features(evaluated.x) @ heads.T
        else:
            outputs = self._fit(support, evaluated.x)
        loss = self.objective.loss(outputs, evaluated)
        metric = self.objective.metric(outputs, evaluated)
        return loss, Aux(state, metric, outputs, loss, outputs, evaluated.weight)

    def predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        context: TaskContext,
    ) -> Array:
        """Compute logits `[N_q, C]` for new samples with a head fitted to `support`."""
        queries = jax.tree.leaves(query_x)[0].shape[0]
        query = Batch(query_x, jnp.zeros((queries, support.y.shape[1])))
        task = Task(support, query, domain=jnp.int32(0))
        context = context.replace(train=False)
        task, _ = self.embed(variables, task, context, len(self.stack))
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
    """Build SL (Dhillon et al. 2019): train on all base classes, then fine-tune.

    Args:
      backbone: the network without a head; a linear head is added.
      outputs: unused; tasks may have any number of classes.
      base_classes: number of classes in the training pool.
      objective: must be classification.
      learning_rate: learning rate of the fine-tuning; 5e-5 in the paper.
      steps: steps of the fine-tuning; 25 in the paper.
      norm: batch-norm policy at test time, `batch` or `running`.

    Examples:
      >>> from mlti_jax import backbones
      >>> sl(backbones.mlp((32, 32)), outputs=5, base_classes=64).episodic
      False
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
    """Build MTL (Wang et al. 2021): train a body with many heads, then fit a new head.

    Args:
      backbone: the body.
      outputs: number of classes per training task; test tasks may have others.
      base_groups: number of classes in the training pool, counted per domain.
      objective: must be classification.
      unit_features: whether features are scaled to unit length.
      strength: C of the logistic regression; 3 in the authors' code.
      steps: steps of its solver.
      norm: batch-norm policy at test time, `batch` or `running`.

    Examples:
      >>> from mlti_jax import backbones
      >>> mtl(backbones.mlp((32, 32)), outputs=5, base_groups=64).num_groups
      64
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
            f"{name} trains a classifier and does not support regression; use a "
            "gradient-based learner such as maml"
        )
