"""The strategy seam: what is done to a meta-batch besides learning from it.

A strategy is a record of optional functions. `chain` combines several, as optax chains
gradient transformations; `meta_objective` applies them around a learner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Learner, TaskContext, Variables
from mlti_jax.learners._base import Perturbation
from mlti_jax.types import Array, PyTree, Task

# Families of learners that a strategy applies to.
GRADIENT = frozenset({"gradient"})
EPISODIC = frozenset({"gradient", "metric"})
ANY = frozenset({"gradient", "metric", "supervised"})


class Strategy(NamedTuple):
    """What is done to a meta-batch of B tasks; every function is optional.

    Attributes:
      name: name on the command line.
      applies_to: families of learners that can be trained with it.
      layers: the layers one of which is drawn for each meta-batch; `transform` gets
        tasks whose x is at that layer.
      min_tasks: number of tasks it needs. If a meta-batch is smaller, a strategy with a
        `transform` gets additional tasks, which serve as partners only.
      init: `(learner, variables, key, x) -> parameters` of the strategy, which are
        trained together with the learner's.
      relabel: `(tasks [M], key) -> tasks [M]` with other labels, before anything else;
        it does not look at x.
      augment: `(key, task) -> task` with other inputs x, for each drawn task in
        training, the partners included. It comes after `relabel` and before the
        network and `transform`, and must not look at other tasks.
      sample: `(variables, key) -> variables`, once per meta-batch in training.
      perturb: `variables -> Perturbation`, noise on hidden outputs within a task, in
        training and at test time.
      transform: `(tasks [M], key, B) -> tasks [B, m]`, m versions of each task; the
        version with the largest loss counts. If all versions of a task have the same
        support set, it may be returned once, `[B, ...]`; the learner then adapts once.
        If each new task needs only a few of the tasks, use `PerTask`: devices of
        several processes then draw only those.
      loss: `(learner, variables, task, context, layer) -> (loss, aux)`, in place of
        `learner.loss` in training. The task is one that `transform` returned, which may
        be of a subclass of `Task` with more fields.
      penalty: `(variables before sample, aux [B, m]) -> scalar`, added to the loss.
    """

    name: str
    applies_to: frozenset[str] = EPISODIC
    layers: tuple[int, ...] = (0,)
    min_tasks: int = 1
    init: Callable[[Learner, Variables, Array, PyTree], PyTree] | None = None
    relabel: Callable[[Task, Array], Task] | None = None
    augment: Callable[[Array, Task], Task] | None = None
    sample: Callable[[Variables, Array], Variables] | None = None
    perturb: Callable[[Variables], Perturbation] | None = None
    transform: Callable[[Task, Array, int], Task] | None = None
    loss: (
        Callable[[Learner, Variables, Task, TaskContext, int], tuple[Array, Aux]] | None
    ) = None
    penalty: Callable[[Variables, Aux], Array] | None = None

    @property
    def changes_inputs(self) -> bool:
        """Whether tasks have other samples than were drawn, at the input or deeper."""
        return self.augment is not None or self.transform is not None


@dataclasses.dataclass(frozen=True)
class PerTask:
    """A `transform` that computes each new task from a few of the drawn ones.

    Attributes:
      select: `(tasks [M], key, B) -> inputs`, any tree with leaves `[B, ...]` that
        contains the `Task`s of each new task, and keys. It does not look at x.
      combine: `inputs of one task -> task [m]`.
    """

    select: Callable[[Task, Array, int], PyTree]
    combine: Callable[[PyTree], Task]

    def __call__(self, tasks: Task, key: Array, size: int) -> Task:
        """Transform tasks `[M]` to tasks `[B, m]`."""
        return jax.vmap(self.combine)(self.select(tasks, key, size))


def vanilla() -> Strategy:
    """Use tasks as they are drawn and average their losses.

    Examples:
      >>> vanilla().transform is None
      True
    """
    return Strategy("vanilla", applies_to=ANY)


def chain(*strategies: Strategy) -> Strategy:
    """Combine strategies into one.

    Each member sees its own parameters as `variables.strategy`. Changes of labels,
    inputs and variables are applied in order, penalties are added. At most one member
    may have a `transform`, at most one a `perturb` and at most one a `loss`.

    Raises:
      InputError: if two members transform tasks, perturb hidden outputs or replace the
        loss.

    Examples:
      >>> from mlti_jax.strategies import metareg, mlti
      >>> both = chain(mlti(setting="label_sharing"), metareg(beta=1e-4))
      >>> both.name, sorted(both.applies_to)
      ('mlti+metareg', ['gradient'])
    """
    if not strategies:
        raise InputError("chain needs at least one strategy")
    if len(strategies) == 1:
        return strategies[0]
    members = list(enumerate(strategies))
    transforming = _only_one(strategies, "transform", "replace the tasks' samples")
    perturbing = _only_one(strategies, "perturb", "perturb hidden outputs")
    replacing = _only_one(strategies, "loss", "replace the loss of a task")
    relabels = [s.relabel for s in strategies if s.relabel is not None]
    augments = [s.augment for s in strategies if s.augment is not None]
    samples = [(i, s.sample) for i, s in members if s.sample is not None]
    penalties = [(i, s.penalty) for i, s in members if s.penalty is not None]

    def own(variables: Variables, index: int) -> Variables:
        return variables.replace(strategy=variables.strategy[index])

    def init(learner: Learner, variables: Variables, key: Array, x: PyTree) -> tuple:
        keys = jax.random.split(key, len(strategies))
        return tuple(
            () if s.init is None else s.init(learner, variables, keys[index], x)
            for index, s in members
        )

    def relabel(tasks: Task, key: Array) -> Task:
        keys = jax.random.split(key, len(relabels))
        for function, k in zip(relabels, keys, strict=True):
            tasks = function(tasks, k)
        return tasks

    def augment(key: Array, task: Task) -> Task:
        keys = jax.random.split(key, len(augments))
        for function, k in zip(augments, keys, strict=True):
            task = function(k, task)
        return task

    def sample(variables: Variables, key: Array) -> Variables:
        keys = jax.random.split(key, len(strategies))
        for index, function in samples:
            sampled = function(own(variables, index), keys[index])
            variables = sampled.replace(strategy=variables.strategy)
        return variables

    def perturb(variables: Variables) -> Perturbation:
        index, function = perturbing[0]
        return function(own(variables, index))

    def loss(
        learner: Learner,
        variables: Variables,
        task: Task,
        context: TaskContext,
        layer: int,
    ) -> tuple[Array, Aux]:
        index, function = replacing[0]
        return function(learner, own(variables, index), task, context, layer)

    def penalty(variables: Variables, aux: Aux) -> Array:
        terms = [function(own(variables, i), aux) for i, function in penalties]
        return sum(terms[1:], terms[0])

    return Strategy(
        name="+".join(s.name for s in strategies),
        applies_to=frozenset.intersection(*(s.applies_to for s in strategies)),
        layers=strategies[transforming[0][0]].layers if transforming else (0,),
        min_tasks=max(s.min_tasks for s in strategies),
        init=init,
        relabel=relabel if relabels else None,
        augment=augment if augments else None,
        sample=sample if samples else None,
        perturb=perturb if perturbing else None,
        transform=transforming[0][1] if transforming else None,
        loss=loss if replacing else None,
        penalty=penalty if penalties else None,
    )


def _only_one(
    strategies: tuple[Strategy, ...], field: str, action: str
) -> list[tuple[int, Any]]:
    """Return index and function of the member that has a field, as a list of 0 or 1."""
    having = [(i, s) for i, s in enumerate(strategies) if getattr(s, field) is not None]
    if len(having) > 1:
        raise InputError(
            f"{' and '.join(s.name for _, s in having)} cannot be combined: both "
            f"{action}, and the second would undo the first; keep one of them"
        )
    return [(i, getattr(s, field)) for i, s in having]


def each_task(function: Callable[[Array, Task], Task], versions: int = 1) -> PerTask:
    """Make a `transform` that produces m versions of each task independently.

    Args:
      function: `(key, task) -> task`.
      versions: m, each with its own key.

    Examples:
      >>> strategy = Strategy("same", transform=each_task(lambda key, task: task))
      >>> strategy.min_tasks
      1
    """

    def select(tasks: Task, key: Array, size: int) -> tuple[Array, Task]:
        tasks = jax.tree.map(lambda leaf: leaf[:size], tasks)
        return jax.random.split(key, (size, versions)), tasks

    def combine(keys_and_task: tuple[Array, Task]) -> Task:
        return jax.vmap(function, in_axes=(0, None))(*keys_and_task)

    return PerTask(select, combine)


def shares_support(tasks: Task) -> bool:
    """Whether a `transform` returned the support sets once for all versions."""
    return tasks.support.y.ndim < tasks.query.y.ndim


def repeat_support(tasks: Task) -> Task:
    """Give every version its support set: the result of a `transform` as `[B, m]`."""
    if not shares_support(tasks):
        return tasks
    versions = tasks.domain.shape[1]
    support = jax.tree.map(
        lambda leaf: jnp.repeat(leaf[:, None], versions, axis=1), tasks.support
    )
    return tasks.replace(support=support)
