"""From a learner for one task to the objective of a meta-batch.

`meta_objective` is the one place where a learner is batched over tasks.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.backbones._stack import with_frozen, without_frozen
from mlti_jax.backbones._wrapped import is_wrapped
from mlti_jax.data._pools import take_inputs
from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Learner, TaskContext, Variables
from mlti_jax.parallel import Plan, map_tasks, mean_loss
from mlti_jax.strategies._base import (
    PerTask,
    Strategy,
    repeat_support,
    shares_support,
)
from mlti_jax.types import Array, Batch, PyTree, Task

LossFn = Callable[[Variables, Task, Array], tuple[Array, Aux]]

# Folded into the key of a step. Its split into five keys is `fold_in` of 0 to 4.
_AUGMENT = 5


def init_variables(
    learner: Learner, strategy: Strategy, key: Array, x: PyTree
) -> Variables:
    """Initialize a learner and its strategy.

    Args:
      learner: the learner.
      strategy: the strategy.
      key: PRNG key.
      x: an input, every leaf `[N, ...]`.

    Examples:
      >>> from mlti_jax import backbones, learners, strategies
      >>> learner = learners.maml(backbones.mlp((32, 32)), outputs=5)
      >>> x = jnp.zeros((2, 8))
      >>> variables = init_variables(
      ...     learner, strategies.vanilla(), jax.random.key(0), x
      ... )
      >>> variables.params["model"][0]["kernel"].shape
      (8, 32)
    """
    key_learner, key_strategy = jax.random.split(key)
    variables = learner.init(key_learner, x)
    if strategy.init is None:
        return variables
    own = strategy.init(learner, variables, key_strategy, x)
    return variables.replace(strategy=own)


def task_context(
    strategy: Strategy, variables: Variables, key: Array, train: bool
) -> TaskContext:
    """Build the context in which a learner processes a task under a strategy."""
    perturb = strategy.perturb
    return TaskContext(key, train, None if perturb is None else perturb(variables))


def meta_objective(
    learner: Learner,
    strategy: Strategy,
    variables: Variables,
    tasks: Task,
    key: Array,
    layer: int,
    batch_size: int,
    plan: Plan = Plan(),
    samples: PyTree | None = None,
) -> tuple[Array, Aux]:
    r"""Compute the loss of a meta-batch, $\frac{1}{B} \sum_i L_i$.

    With m versions of each task, $L_i$ is the largest loss of the versions of task i.

    Args:
      learner: the learner, for one task.
      strategy: what is done to the meta-batch.
      variables: variables of learner and strategy.
      tasks: `[M]` tasks, M >= B; those beyond B serve as partners only.
      key: PRNG key.
      layer: static; the layer at which the strategy transforms tasks.
      batch_size: B.
      plan: how tasks are distributed over devices and time.
      samples: if given, the x of `tasks` are rows of these, and each device takes only
        the rows that its own tasks need.

    Returns:
      The scalar loss, and `Aux` with leading axes `[B, m]` except for `state`, which
      is the mean over tasks.

    Examples:
      >>> from mlti_jax import backbones, learners, strategies
      >>> from mlti_jax.types import Batch
      >>> learner = learners.protonet(backbones.mlp((8,)), outputs=2)
      >>> strategy = strategies.mlti(setting="non_label_sharing")
      >>> x = jax.random.normal(jax.random.key(0), (4, 4, 3))  # [tasks, samples, D]
      >>> batch = Batch(x=x, y=jnp.tile(jnp.eye(2), (4, 2, 1)))
      >>> tasks = Task(support=batch, query=batch, domain=jnp.arange(4))
      >>> variables = init_variables(learner, strategy, jax.random.key(1), x[0])
      >>> loss, aux = meta_objective(
      ...     learner, strategy, variables, tasks, jax.random.key(2), 0, batch_size=4
      ... )
      >>> loss.shape, aux.metric.shape
      ((), (4, 1))
    """
    keys = jax.random.split(key, 5)
    key_sample, key_embed, key_transform, key_loss, key_relabel = keys
    unsampled = variables
    if strategy.relabel is not None:
        tasks = strategy.relabel(tasks, key_relabel)
    if strategy.sample is not None:
        variables = strategy.sample(variables, key_sample)

    def embed(
        variables: Variables, task_and_key: tuple[Task, Array]
    ) -> tuple[Task, PyTree]:
        task, key = task_and_key
        context = task_context(strategy, variables, key, train=True)
        task, state = learner.embed(variables, task, context, layer)
        return task, without_frozen(state)

    def task_loss(variables: Variables, task: Task, key: Array) -> tuple[Array, Aux]:
        context = task_context(strategy, variables, key, train=True)
        if strategy.loss is None:
            loss, aux = learner.loss(variables, task, context, layer)
        else:
            loss, aux = strategy.loss(learner, variables, task, context, layer)
        return loss, aux.replace(state=without_frozen(aux.state))

    augment = strategy.augment
    if augment is not None:
        tasks = _with_keys(tasks, jax.random.fold_in(key, _AUGMENT))
    take = partial(_take_samples, augment)
    if layer > 0 or strategy.transform is None:
        if samples is not None or augment is not None:
            tasks, samples = map_tasks(take, _at_once(plan))(samples, tasks), None
    elif samples is None and augment is not None:  # The transform may use any task.
        tasks = plan.everywhere(jax.vmap(take, in_axes=(None, 0)))(None, tasks)
    if layer > 0:
        keys = jax.random.split(key_embed, tasks.domain.shape[0])
        tasks, states = map_tasks(embed, plan)(variables, (tasks, keys))
        state = with_frozen(_mean_over_tasks(states), variables.state)
        variables = variables.replace(state=state)
    if samples is None:
        transformed = _transformed(
            strategy, tasks, key_transform, layer, batch_size, plan
        )
    else:
        transformed = _transformed_rows(
            strategy, tasks, key_transform, batch_size, plan, samples
        )
    tasks = plan.shard(transformed)
    versions = tasks.domain.shape[1]
    if versions == 1 and strategy.penalty is None and plan.tasks_per_pass is not None:
        loss, aux = _accumulated_loss(
            task_loss,
            variables,
            repeat_support(tasks),
            key_loss,
            plan,
            inputs_depend=layer > 0,
        )
        return loss, aux.replace(state=with_frozen(aux.state, variables.state))
    shared = shares_support(tasks)
    losses_fn = _shared_support_losses if shared else _version_losses
    losses, aux = losses_fn(task_loss, variables, tasks, key_loss, plan)
    loss = losses.mean() if versions == 1 else losses.max(axis=1).mean()
    if strategy.penalty is not None:
        loss = loss + strategy.penalty(unsampled, aux.replace(state=()))
    aux = _with_mean_state(aux)
    return loss, aux.replace(state=with_frozen(aux.state, variables.state))


def _transformed(
    strategy: Strategy,
    tasks: Task,
    key: Array,
    layer: int,
    batch_size: int,
    plan: Plan,
) -> Task:
    """Apply the strategy's transform: tasks `[M]` to tasks `[B, m]`."""
    transform = strategy.transform
    if transform is None:
        return jax.tree.map(lambda leaf: leaf[:batch_size, None], tasks)

    def run(tasks: Task, key: Array) -> Task:
        return transform(tasks, key, batch_size)

    if layer == 0:
        return plan.everywhere(run)(tasks, key)
    # Hidden features are on the device that computed them. Each device fetches those of
    # the partners, and then draws and mixes on its own: in the loops of random draws,
    # devices would otherwise wait for each other once per iteration.
    if isinstance(transform, PerTask) and plan.mesh is not None:
        inputs = transform.select(tasks, key, batch_size)
        combine = transform.combine
        return map_tasks(lambda _, each: combine(each), _at_once(plan))((), inputs)
    return run(tasks, key)


def _transformed_rows(
    strategy: Strategy,
    tasks: Task,
    key: Array,
    batch_size: int,
    plan: Plan,
    samples: PyTree,
) -> Task:
    """Apply the strategy's transform to tasks whose x are rows of `samples`."""
    transform = strategy.transform
    assert transform is not None
    take = partial(_take_samples, strategy.augment)
    if not isinstance(transform, PerTask):  # It may use any of the tasks.
        everything = plan.everywhere(jax.vmap(take, in_axes=(None, 0)))
        tasks = everything(samples, tasks)
        return _transformed(strategy, tasks, key, 0, batch_size, plan)

    def select(tasks: Task, key: Array) -> PyTree:
        return transform.select(tasks, key, batch_size)

    def combine(samples: PyTree, inputs: PyTree) -> Task:
        return transform.combine(take(samples, inputs))

    inputs = plan.everywhere(select)(tasks, key)
    return map_tasks(combine, _at_once(plan))(samples, inputs)


class _Drawn(NamedTuple):
    """Inputs of a set that are not augmented yet; they take the place of its x.

    Attributes:
      x: samples, or their row numbers.
      key: of the augmentation, the same for both sets of a task.
    """

    x: PyTree
    key: Array


def _with_keys(tasks: Task, key: Array) -> Task:
    """Give each of the tasks `[M]` a key for its augmentation.

    The key stays with the task, so that it is augmented in the same way wherever that
    happens, also if it is the partner of several others.
    """
    keys = jax.random.split(key, tasks.domain.shape[0])

    def drawn(batch: Batch) -> Batch:
        return batch.replace(x=_Drawn(batch.x, keys))

    return tasks.replace(support=drawn(tasks.support), query=drawn(tasks.query))


def _take_samples(
    augment: Callable[[Array, Task], Task] | None, samples: PyTree | None, tree: PyTree
) -> PyTree:
    """Replace row numbers with samples and augment, in all tasks of a tree."""

    def take(batch: Batch) -> Batch:
        x = batch.x if augment is None else batch.x.x
        return batch.replace(x=x if samples is None else take_inputs(samples, x))

    def fill(node: Any) -> Any:
        if not isinstance(node, Task):
            return node
        task = node.replace(support=take(node.support), query=take(node.query))
        return task if augment is None else augment(node.support.x.key, task)

    return jax.tree.map(fill, tree, is_leaf=lambda node: isinstance(node, Task))


def _at_once(plan: Plan) -> Plan:
    """Return a plan for cheap functions of all tasks of a device."""
    return dataclasses.replace(plan, tasks_per_pass=None)


def _accumulated_loss(
    loss_fn: LossFn,
    variables: Variables,
    tasks: Task,
    key: Array,
    plan: Plan,
    inputs_depend: bool,
) -> tuple[Array, Aux]:
    """Compute the mean loss of tasks `[B, 1]` pass by pass, see `mean_loss`."""
    flat = _merge_axes(tasks)
    keys = jax.random.split(key, flat.domain.shape[0])

    def of_inputs(
        variables: Variables,
        inputs: tuple[PyTree, PyTree],
        task_and_key: tuple[Task, Array],
    ) -> tuple[Array, Aux]:
        task, key = task_and_key
        support, query = inputs
        task = task.replace(
            support=task.support.replace(x=support), query=task.query.replace(x=query)
        )
        return loss_fn(variables, task, key)

    mean = mean_loss(of_inputs, plan, inputs_depend)
    loss, aux = mean(variables, (flat.support.x, flat.query.x), (flat, keys))
    return loss, _with_mean_state(jax.tree.map(lambda leaf: leaf[:, None], aux))


def _version_losses(
    loss_fn: LossFn, variables: Variables, tasks: Task, key: Array, plan: Plan
) -> tuple[Array, Aux]:
    """Compute losses `[B, m]` of tasks `[B, m]`."""
    size, versions = tasks.domain.shape
    keys = jax.random.split(key, size * versions)
    out = map_tasks(lambda variables, task: loss_fn(variables, *task), plan)(
        variables, (_merge_axes(tasks), keys)
    )
    return jax.tree.map(lambda leaf: leaf.reshape(size, versions, *leaf.shape[1:]), out)


def _shared_support_losses(
    loss_fn: LossFn, variables: Variables, tasks: Task, key: Array, plan: Plan
) -> tuple[Array, Aux]:
    """Compute losses `[B, m]` of tasks with support `[B, ...]` and query `[B, m, ...]`.

    Work that depends only on the support set is not batched over versions, so it is
    done once.
    """

    def of_task(
        variables: Variables, task_and_key: tuple[Task, Array]
    ) -> tuple[Array, Aux]:
        task, key = task_and_key

        def of_version(query: Batch, domain: Array, groups: Array | None) -> Any:
            version = Task(task.support, query, domain, groups)
            return loss_fn(variables, version, key)

        return jax.vmap(of_version)(task.query, task.domain, task.groups)

    keys = jax.random.split(key, tasks.domain.shape[0])
    return map_tasks(of_task, plan)(variables, (tasks, keys))


def _merge_axes(tree: PyTree) -> PyTree:
    """Reshape leaves `[B, m, ...]` to `[B * m, ...]`."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def _mean_over_tasks(states: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), states)


def _with_mean_state(aux: Aux) -> Aux:
    """Average the state of `Aux` over its axes `[B, m]`."""
    return aux.replace(state=_mean_over_tasks(_mean_over_tasks(aux.state)))


def tasks_per_step(strategy: Strategy, batch_size: int) -> int:
    """Return how many tasks a training step draws, the partners included.

    Raises:
      InputError: if the meta-batch is too small for the strategy.
    """
    if batch_size < strategy.min_tasks and strategy.transform is None:
        raise InputError(
            f"{strategy.name} compares the tasks of a meta-batch, and "
            f"train.meta_batch_size is {batch_size}; set it to at least "
            f"{strategy.min_tasks} (taml with measure=entropy needs only 1)"
        )
    return max(batch_size, strategy.min_tasks)


def check_layers(learner: Learner, strategy: Strategy) -> None:
    """Raise `InputError` if tasks cannot be interpolated at the strategy's layers."""
    deepest = learner.deepest_mixing_layer
    wrong = [
        layer
        for layer in strategy.layers
        if not isinstance(layer, numbers.Integral) or not 0 <= layer <= deepest
    ]
    if wrong or not strategy.layers:
        advice = ""
        if any(map(is_wrapped, learner.stack.layers)):
            advice = (
                "; a wrapped module is one layer: to interpolate inside it, wrap a "
                "sequence of its parts"
            )
        raise InputError(
            f"interpolation layers must be among 0..{deepest} for this learner and "
            f"network (0 is the input; adapted layers are not shared), got "
            f"{strategy.layers}{advice}"
        )


def effective_setting(setting: str, learner: Learner) -> str:
    """Return the setting in which a strategy treats the tasks of a learner.

    Learners that need hard labels (metric-based ones) treat label-sharing tasks like
    tasks with their own classes, so that Eq. 6 applies and labels stay as drawn.

    Args:
      setting: setting of the data, `label_sharing`, `non_label_sharing` or
        `regression`.
      learner: the learner.

    Examples:
      >>> from mlti_jax import backbones, learners
      >>> learner = learners.protonet(backbones.mlp((8,)), outputs=2)
      >>> effective_setting("label_sharing", learner)
      'non_label_sharing'
    """
    if setting == "label_sharing" and learner.class_pairs:
        return "non_label_sharing"
    return setting
