"""The strategy seam: how a learner of one task becomes the objective of a meta-batch.

A strategy is a handful of optional functions, combined by `chain` field by field, as
optax chains gradient transforms. `meta_objective` puts them around a learner; it is
the one place where a learner is batched over tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Learner, Perturbation, Variables
from mlti_jax.parallel import ONE_PASS, Plan, map_tasks, mean_loss
from mlti_jax.types import Array, PyTree, Task

# (learner, variables, key, input) -> parameters of the strategy
Init = Callable[[Learner, Variables, Array, PyTree], PyTree]
# (tasks [M], key) -> tasks [M] with other labels, before anything else
Relabel = Callable[[Task, Array], Task]
# (variables, key) -> variables, once per meta-batch, before any layer is run
Sample = Callable[[Variables, Array], Variables]
# variables -> what is done to hidden outputs inside a task, in training and at test
Perturb = Callable[[Variables], Perturbation]
# (variables, tasks [M], key, layer, B) -> tasks [B, m], with x at the static layer;
# the tasks beyond B are there as partners only
Transform = Callable[[Variables, Task, Array, int, int], Task]
# (losses [B, m], aux [B, m]) -> scalar
Reduce = Callable[[Array, Aux], Array]
# (variables before `sample`, losses [B, m], aux [B, m]) -> scalar, added to the loss
Penalty = Callable[[Variables, Array, Aux], Array]
# variables -> variables, for evaluation
EvalVariables = Callable[[Variables], Variables]


class Strategy(NamedTuple):
    """What is done to a meta-batch besides learning from it; every field is optional.

    Attributes:
      name: as on the command line.
      layers: the layers of which one is drawn for each meta-batch; `transform` is
        given tasks whose x is at that layer.
      extra_tasks: `meta-batch size -> tasks drawn beyond it`, as partners only.
      smallest_batch: tasks that a meta-batch must have.
      init: makes parameters of the strategy's own, trained with the learner's.
      relabel: gives the tasks of a meta-batch other labels.
      sample: changes the variables once per meta-batch, before any layer is run.
      perturb: noise on hidden outputs inside a task; gradient-based learners only.
      transform: makes m versions of each task of the meta-batch.
      same_support: whether these have the same support set, to which a learner then
        adapts once.
      reduce: turns the losses of all tasks into one; the mean by default.
      penalty: is added to that.
      eval_variables: the variables to evaluate with.
    """

    name: str
    layers: tuple[int, ...] = (0,)
    extra_tasks: Callable[[int], int] = lambda batch_size: 0
    smallest_batch: int = 1
    init: Init | None = None
    relabel: Relabel | None = None
    sample: Sample | None = None
    perturb: Perturb | None = None
    transform: Transform | None = None
    same_support: bool = False
    reduce: Reduce | None = None
    penalty: Penalty | None = None
    eval_variables: EvalVariables | None = None


def chain(*strategies: Strategy) -> Strategy:
    """Combines strategies: `chain(mlti(...), metareg(...))`.

    Each member sees its own parameters as `variables.strategy`. Changes of labels and
    of variables are applied in order, penalties are added. One member at most may
    transform the tasks, one reduce the losses, and one perturb hidden outputs: two
    would undo each other's work.
    """
    if not strategies:
        raise InputError("chain needs at least one strategy")
    if len(strategies) == 1:
        return strategies[0]
    for field, deed in (
        ("transform", "replace the tasks' samples"),
        ("reduce", "reduce losses"),
        ("perturb", "perturb hidden outputs"),
    ):
        doers = [s.name for s in strategies if getattr(s, field) is not None]
        if len(doers) > 1:
            raise InputError(
                f"{' and '.join(doers)} can't be combined: both {deed}, and the "
                "second would undo the first; keep one of them"
            )
    transforming = [s for s in strategies if s.transform is not None]
    perturbing = [s for s in strategies if s.perturb is not None]
    relabelling = [s for s in strategies if s.relabel is not None]

    def own(variables: Variables, index: int) -> Variables:
        return variables.replace(strategy=variables.strategy[index])

    def in_turn(field: str, variables: Variables, keys=None) -> Variables:
        for index, strategy in enumerate(strategies):
            function = getattr(strategy, field)
            if function is not None:
                args = () if keys is None else (keys[index],)
                changed = function(own(variables, index), *args)
                variables = changed.replace(strategy=variables.strategy)
        return variables

    def init(learner, variables, key, x):
        keys = jax.random.split(key, len(strategies))
        return tuple(
            () if s.init is None else s.init(learner, variables, k, x)
            for s, k in zip(strategies, keys, strict=True)
        )

    def relabel(tasks, key):
        for strategy, k in zip(
            relabelling, jax.random.split(key, len(relabelling)), strict=True
        ):
            tasks = strategy.relabel(tasks, k)
        return tasks

    def sample(variables, key):
        return in_turn("sample", variables, jax.random.split(key, len(strategies)))

    def transform(variables, *args):
        index = strategies.index(transforming[0])
        return transforming[0].transform(own(variables, index), *args)

    def perturb(variables):
        index = strategies.index(perturbing[0])
        return perturbing[0].perturb(own(variables, index))

    def penalty(variables, losses, aux):
        return sum(
            s.penalty(own(variables, index), losses, aux)
            for index, s in enumerate(strategies)
            if s.penalty is not None
        )

    return Strategy(
        name="+".join(s.name for s in strategies),
        layers=transforming[0].layers if transforming else (0,),
        extra_tasks=lambda size: max(s.extra_tasks(size) for s in strategies),
        smallest_batch=max(s.smallest_batch for s in strategies),
        init=init,
        relabel=relabel if relabelling else None,
        sample=sample,
        perturb=perturb if perturbing else None,
        transform=transform if transforming else None,
        same_support=any(s.same_support for s in transforming),
        reduce=next((s.reduce for s in strategies if s.reduce is not None), None),
        penalty=penalty,
        eval_variables=lambda variables: in_turn("eval_variables", variables),
    )


def each_task(function: Callable[[Array, Task], Task], versions: int = 1) -> Transform:
    """A `transform` that makes m versions of each task by itself.

    Args:
      function: `(key, task) -> task`.
      versions: m, each with a key of its own.
    """

    def transform(variables, tasks, key, layer, size):
        del variables, layer
        tasks = jax.tree.map(lambda leaf: leaf[:size], tasks)
        keys = jax.random.split(key, (size, versions))
        of_one_task = jax.vmap(function, in_axes=(0, None))
        return jax.vmap(of_one_task)(keys, tasks)

    return transform


def init_variables(
    learner: Learner, strategy: Strategy, key: Array, x: PyTree
) -> Variables:
    """Initialises a learner and its strategy on an input `x`, every leaf `[N, ...]`."""
    key_learner, key_strategy = jax.random.split(key)
    variables = learner.init(key_learner, x)
    if strategy.init is None:
        return variables
    own = strategy.init(learner, variables, key_strategy, x)
    return variables.replace(strategy=own)


def meta_objective(
    learner: Learner,
    strategy: Strategy,
    variables: Variables,
    tasks: Task,
    key: Array,
    layer: int,
    batch_size: int,
    plan: Plan = ONE_PASS,
) -> tuple[Array, Aux]:
    r"""The loss of a meta-batch, :math:`\frac{1}{|I|} \sum_i \mathcal{L}_i`.

    Args:
      learner: for one task.
      strategy: what is done to the meta-batch.
      variables: of learner and strategy.
      tasks: `[M]` tasks, M >= B; those beyond B are there as partners only.
      key: a PRNG key.
      layer: static; where the strategy works on the tasks.
      batch_size: B.
      plan: how the tasks are spread over devices and time.

    Returns:
      The scalar loss, and `Aux` with leading axes `[B, m]` except for `state`, which
      is the mean over tasks.
    """
    check_batch_size(strategy, batch_size)
    keys = jax.random.split(key, 5)
    key_sample, key_embed, key_transform, key_loss, key_relabel = keys
    num_tasks = tasks.domain.shape[0]
    means = variables
    if strategy.relabel is not None:
        tasks = strategy.relabel(tasks, key_relabel)
    if strategy.sample is not None:
        variables = strategy.sample(variables, key_sample)

    def embed(variables: Variables, task_and_key) -> tuple[Task, PyTree]:
        noise = perturbation(strategy, variables)
        return learner.embed(variables, *task_and_key, layer, True, **noise)

    def task_loss(variables: Variables, task: Task, key: Array) -> tuple[Array, Aux]:
        noise = perturbation(strategy, variables)
        return learner.loss(variables, task, key, layer, True, **noise)

    if layer > 0:
        keys = jax.random.split(key_embed, num_tasks)
        tasks, states = map_tasks(embed, plan)(variables, (tasks, keys))
        variables = variables.replace(state=_mean_over_tasks(states))
    if strategy.transform is not None:

        def transform(variables: Variables, tasks: Task) -> Task:
            return strategy.transform(
                variables, tasks, key_transform, layer, batch_size
            )

        # Hidden features are on the device that computed them, and stay there.
        at_input = layer == 0
        transform = plan.everywhere(transform) if at_input else transform
        tasks = transform(variables, tasks)
    else:
        tasks = jax.tree.map(lambda leaf: leaf[:batch_size, None], tasks)
    tasks = plan.shard(tasks)
    if _is_plain_mean(strategy) and plan.tasks_per_pass is not None:
        loss, aux = _accumulated_loss(
            task_loss, variables, tasks, key_loss, plan, layer > 0
        )
        state = _mean_over_tasks(_mean_over_tasks(aux.state))
        return loss, aux.replace(state=state)
    loss_fn = _same_support_losses if strategy.same_support else _version_losses
    losses, aux = loss_fn(task_loss, variables, tasks, key_loss, plan)
    state = _mean_over_tasks(_mean_over_tasks(aux.state))
    aux = aux.replace(state=())
    loss = losses.mean() if strategy.reduce is None else strategy.reduce(losses, aux)
    if strategy.penalty is not None:
        loss = loss + strategy.penalty(means, losses, aux)
    return loss, aux.replace(state=state)


LossFn = Callable[[Variables, Task, Array], tuple[Array, Aux]]


def _is_plain_mean(strategy: Strategy) -> bool:
    """Whether each task adds to the loss by itself, and all alike."""
    coupled = (strategy.reduce, strategy.penalty)
    return not strategy.same_support and all(part is None for part in coupled)


def _accumulated_loss(
    loss_fn: LossFn,
    variables: Variables,
    tasks: Task,
    key: Array,
    plan: Plan,
    inputs_depend: bool,
) -> tuple[Array, Aux]:
    """The mean loss of tasks `[B, m]`, see `parallel.mean_loss`; aux `[B, m]`."""
    size, versions = tasks.domain.shape
    flat, keys = _flat(tasks), jax.random.split(key, size * versions)

    def of_inputs(variables, inputs, task_and_key):
        task, key = task_and_key
        support, query = inputs
        task = task.replace(
            support=task.support.replace(x=support), query=task.query.replace(x=query)
        )
        return loss_fn(variables, task, key)

    mean = mean_loss(of_inputs, plan, inputs_depend)
    loss, aux = mean(variables, (flat.support.x, flat.query.x), (flat, keys))
    return loss, _by_version(aux, size, versions)


def _version_losses(
    loss_fn: LossFn, variables: Variables, tasks: Task, key: Array, plan: Plan
) -> tuple[Array, Aux]:
    """Losses `[B, m]` of tasks `[B, m]`."""
    size, versions = tasks.domain.shape
    keys = jax.random.split(key, size * versions)
    out = map_tasks(lambda variables, task: loss_fn(variables, *task), plan)(
        variables, (_flat(tasks), keys)
    )
    return _by_version(out, size, versions)


def _same_support_losses(
    loss_fn: LossFn, variables: Variables, tasks: Task, key: Array, plan: Plan
) -> tuple[Array, Aux]:
    """The same, for versions of a task that differ in the query set alone.

    What depends on the support set alone is not batched over versions, so that it is
    computed once.
    """

    def of_task(variables: Variables, task_and_key) -> tuple[Array, Aux]:
        task, key = task_and_key
        first = jax.tree.map(lambda leaf: leaf[0], task)
        return jax.vmap(
            lambda query: loss_fn(variables, first.replace(query=query), key)
        )(task.query)

    keys = jax.random.split(key, tasks.domain.shape[0])
    return map_tasks(of_task, plan)(variables, (tasks, keys))


def _flat(tree: PyTree) -> PyTree:
    """`[B, m, ...]` to `[B * m, ...]`."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def _by_version(tree: PyTree, size: int, versions: int) -> PyTree:
    """`[B * m, ...]` to `[B, m, ...]`."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(size, versions, *leaf.shape[1:]), tree
    )


def eval_variables(strategy: Strategy, variables: Variables) -> Variables:
    """The variables that a strategy evaluates with."""
    if strategy.eval_variables is None:
        return variables
    return strategy.eval_variables(variables)


def perturbation(strategy: Strategy, variables: Variables) -> dict[str, Perturbation]:
    """The keyword argument for a learner, empty where nothing is perturbed."""
    if strategy.perturb is None:
        return {}
    return {"perturbation": strategy.perturb(variables)}


def check_batch_size(strategy: Strategy, batch_size: int) -> None:
    """Refuses a meta-batch that is too small for the strategy."""
    if batch_size < strategy.smallest_batch:
        raise InputError(
            f"{strategy.name} compares the tasks of a meta-batch with each other, and "
            f"here it has {batch_size}; raise train.meta_batch_size to at least "
            f"{strategy.smallest_batch} (for taml, measure=entropy needs no second)"
        )


def form_and_labels(setting: str, learner: Learner) -> tuple[str, str]:
    """How tasks of a setting are interpolated, and what MetaAug may do to labels.

    Args:
      setting: `label_sharing`, `non_label_sharing` or `regression`.
      learner: some need hard labels.

    Returns:
      One of `interpolation.FORMS`, and one of `metaaug.LABELS`.
    """
    if setting == "regression":
        return "label_sharing", "shift"
    if setting == "non_label_sharing" or learner.class_pairs:
        return "non_label_sharing", "as_drawn"
    return "label_sharing", "permute"


def check_layers(learner: Learner, strategy: Strategy) -> None:
    """Refuses layers at which the learner's tasks can't be interpolated."""
    deepest = learner.deepest_mixing_layer
    wrong = [layer for layer in strategy.layers if not 0 <= layer <= deepest]
    if wrong or not strategy.layers:
        raise InputError(
            f"interpolation layers must be among 0..{deepest} for this learner and "
            f"network (0 is the input; adapted layers are not shared), got "
            f"{strategy.layers}"
        )


def _mean_over_tasks(states: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), states)
