"""The compiled training loop: many steps per call, donated state, data on device."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from mlti_jax import interpolation
from mlti_jax._internal.precision import at_precision
from mlti_jax.backbones._stack import with_frozen, without_frozen
from mlti_jax.data import sample_task
from mlti_jax.data._pools import (
    Pool,
    draw_flat_rows,
    draw_rows,
    sample_flat,
    take_rows,
)
from mlti_jax.learners import Aux, Learner, Variables
from mlti_jax.parallel import Plan
from mlti_jax.strategies import Strategy, init_variables, meta_objective
from mlti_jax.strategies._objective import tasks_per_step
from mlti_jax.types import Array, PyTree, Task


class Episode(NamedTuple):
    """The size of a task.

    Attributes:
      ways: number of classes.
      shots: support samples per class.
      queries: query samples per class; None for all remaining samples.
    """

    ways: int
    shots: int
    queries: int | None


class TrainState(flax.struct.PyTreeNode):
    """Everything a run needs to continue; saved in checkpoints.

    Attributes:
      step: number of finished steps.
      variables: variables of learner and strategy.
      optimiser: state of the optimizer.
      loss_sum, metric_sum, count: sums over the steps since metrics were last
        written, so a resumed run writes the same metrics as an uninterrupted one.
      validated_step: step of the last validation; -1 for none.
      best_metric, best_step: best validation result so far; step -1 for none.
      ema: moving averages of `variables`, one for each decay of `init_state`, without
        the parameters of frozen layers.
    """

    step: Array
    variables: Variables
    optimiser: PyTree
    loss_sum: Array
    metric_sum: Array
    count: Array
    validated_step: Array
    best_metric: Array
    best_step: Array
    ema: tuple[Variables, ...] = ()

    @property
    def evaluated(self) -> Variables:
        """The variables for validation and test: the first average, if any."""
        return self.averages[0] if self.ema else self.variables

    @property
    def averages(self) -> tuple[Variables, ...]:
        """The moving averages, with the parameters of frozen layers."""
        full = self.variables.state
        return tuple(
            each.replace(state=with_frozen(each.state, full)) for each in self.ema
        )


# (state, pool, key, stop) -> (state, first step whose loss is not finite or -1)
RunSteps = Callable[[TrainState, Pool, Array, int], tuple[TrainState, Array]]
# (state, pool without samples, those of some steps, the first of these, key, stop) ->
# the same
RunBatches = Callable[
    [TrainState, Pool, "Batches", int, Array, int], tuple[TrainState, Array]
]


def init_state(
    learner: Learner,
    strategy: Strategy,
    optimiser: optax.GradientTransformation,
    key: Array,
    x: PyTree,
    ema: Sequence[float] = (),
) -> TrainState:
    """Make the state before the first step.

    Args:
      learner: the learner.
      strategy: the strategy.
      optimiser: the optimizer.
      key: PRNG key of the initialization.
      x: an input, every leaf `[N, ...]`.
      ema: decay of each moving average, as in `make_run_steps`.
    """
    variables = init_variables(learner, strategy, key, x)
    return TrainState(
        step=jnp.int32(0),
        variables=variables,
        optimiser=optimiser.init((variables.params, variables.strategy)),
        # float32, or float64 in JAX's mode of 64 bits
        loss_sum=jnp.zeros(()),
        metric_sum=jnp.zeros(()),
        count=jnp.int32(0),
        validated_step=jnp.int32(-1),
        best_metric=jnp.float32(jnp.nan),
        best_step=jnp.int32(-1),
        # Copies, since a donated buffer may occur only once.
        ema=tuple(jax.tree.map(jnp.copy, _averaged_part(variables)) for _ in ema),
    )


def _averaged_part(variables: Variables) -> Variables:
    """Drop the parameters of frozen layers, which never change."""
    return variables.replace(state=without_frozen(variables.state))


def update_average(average: PyTree, new: PyTree, count: Array, decay: float) -> PyTree:
    r"""Update an exponential moving average whose weights sum to one.

    $$\bar\theta_t = \frac{1 - d}{1 - d^t} \sum_{s=1}^{t} d^{t-s} \theta_s
      = \bar\theta_{t-1} + \frac{1 - d}{1 - d^t} (\theta_t - \bar\theta_{t-1})$$

    Args:
      average: $\bar\theta_{t-1}$; any finite values if t = 1.
      new: $\theta_t$, of the same structure.
      count: t, from 1.
      decay: d, in `[0, 1)`.
    """
    weight = (1 - decay) / -jnp.expm1(count * math.log(decay)) if decay else 1.0

    def update(old: Array, leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return old + jnp.asarray(weight, leaf.dtype) * (leaf - old)

    return jax.tree.map(update, average, new)


def gradients(
    learner: Learner,
    strategy: Strategy,
    variables: Variables,
    tasks: Task,
    key: Array,
    batch_size: int,
    plan: Plan = Plan(),
    samples: PyTree | None = None,
) -> tuple[tuple[Array, Aux], PyTree]:
    """Compute the loss of a meta-batch and its gradient, at a random layer.

    The layer is static in each branch of a switch outside `vmap`, so one branch runs.
    Arguments as in `meta_objective`.

    Returns:
      `((loss, aux), gradient)`, the gradient by `(params, strategy parameters)`.
    """
    key_layer, key_objective = jax.random.split(key)

    def at_layer(layer: int) -> Callable:
        def loss_fn(trained: tuple[PyTree, PyTree], tasks: Task) -> tuple[Array, Aux]:
            params, own = trained
            changed = variables.replace(params=params, strategy=own)
            return meta_objective(
                learner,
                strategy,
                changed,
                tasks,
                key_objective,
                layer,
                batch_size,
                plan,
                samples,
            )

        return jax.value_and_grad(loss_fn, has_aux=True)

    trained = (variables.params, variables.strategy)
    branches = [at_layer(layer) for layer in strategy.layers]
    if len(branches) == 1:
        return branches[0](trained, tasks)
    index = interpolation.sample_layer(key_layer, strategy.layers)
    return jax.lax.switch(index, branches, trained, tasks)


def make_run_steps(
    learner: Learner,
    strategy: Strategy,
    optimiser: optax.GradientTransformation,
    episode: Episode,
    batch_size: int,
    plan: Plan = Plan(),
    ema: Sequence[float] = (),
    precision: str = "default",
) -> RunSteps:
    """Compile the training loop.

    Args:
      learner: the learner, for one task.
      strategy: what is done to a meta-batch.
      optimiser: the optimizer of the variables.
      episode: the size of a task.
      batch_size: number of tasks per meta-batch.
      plan: how tasks are distributed over devices and time; with several devices,
        `state`, `pool` and `key` should be on all of them (`plan.replicate`).
      ema: decays of moving averages of the variables, running averages of batch-norm
        included; they do not influence training.
      precision: of products of float32 arrays, `default`, `high` or `highest`.

    Returns:
      `run(state, pool, key, stop) -> (state, bad_step)`, which trains until step `stop`
      and compiles once for all values of `stop`. Step t draws all its randomness from
      `fold_in(key, t)`, so it does not matter how steps are divided into calls. `state`
      is donated. The loop ends early at a step whose loss is not finite; `bad_step` is
      that step, else -1.
    """
    num_drawn = tasks_per_step(strategy, batch_size)
    draw = sample_task if learner.episodic else sample_flat
    update = _make_update(learner, strategy, optimiser, batch_size, plan, ema)

    def draw_tasks(pool: Pool, keys: Array) -> Task:
        return jax.vmap(lambda k: draw(pool, k, **episode._asdict()))(keys)

    def draw_meta_batch(pool: Pool, keys: Array) -> tuple[Task, PyTree | None]:
        if not plan.spans_processes:
            return draw_tasks(pool, keys), None
        # Row numbers in place of samples: each device takes those that it needs.
        size = jax.tree.leaves(pool.x)[0].shape[0]
        rows = dataclasses.replace(pool, x=jnp.arange(size, dtype=jnp.int32))
        return plan.everywhere(draw_tasks)(rows, keys), pool.x

    def one_step(state: TrainState, pool: Pool, key: Array) -> tuple[TrainState, Array]:
        key_tasks, key_loss = jax.random.split(jax.random.fold_in(key, state.step))
        tasks, samples = draw_meta_batch(pool, jax.random.split(key_tasks, num_drawn))
        return update(state, tasks, key_loss, samples)

    def run(
        state: TrainState, pool: Pool, key: Array, stop: Array
    ) -> tuple[TrainState, Array]:
        return _run_until(lambda state: one_step(state, pool, key), state, stop)

    if plan.mesh is None:
        return at_precision(jax.jit(run, donate_argnums=0), precision)
    everywhere = NamedSharding(plan.mesh, PartitionSpec())
    jitted = jax.jit(
        run, donate_argnums=0, in_shardings=everywhere, out_shardings=everywhere
    )
    return at_precision(jitted, precision)


def _run_until(
    one_step: Callable[[TrainState], tuple[TrainState, Array]],
    state: TrainState,
    stop: Array,
) -> tuple[TrainState, Array]:
    """Run steps until `stop`, or until a loss is not finite; see `make_run_steps`."""

    def proceed(carry: tuple[TrainState, Array]) -> Array:
        state, bad_step = carry
        return (state.step < stop) & (bad_step < 0)

    def body(carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
        state, _ = carry
        done = state.step
        state, loss = one_step(state)
        return state, jnp.where(jnp.isfinite(loss), -1, done + 1)

    return jax.lax.while_loop(proceed, body, (state, jnp.int32(-1)))


def make_run_batches(
    learner: Learner,
    strategy: Strategy,
    optimiser: optax.GradientTransformation,
    episode: Episode,
    batch_size: int,
    plan: Plan = Plan(),
    ema: Sequence[float] = (),
    precision: str = "default",
) -> RunBatches:
    """Compile the training loop for samples that the host has read.

    The loop is that of `make_run_steps`, except that the samples of a step take the
    place of the pool. So it rounds in the same way.

    Args:
      learner, strategy, optimiser, episode, batch_size, plan, ema, precision: see
        `make_run_steps`.

    Returns:
      `run(state, pool, batches, first, key, stop) -> (state, bad_step)`, which trains
      until step `stop`. `pool.x` is None. `batches` has the samples of k steps, the
      first of them step `first`, see `Batches`. Everything else is as in
      `make_run_steps`, and so are the results. It compiles once for each k.
    """
    num_drawn = tasks_per_step(strategy, batch_size)
    draw = draw_rows if learner.episodic else draw_flat_rows
    update = _make_update(learner, strategy, optimiser, batch_size, plan, ema)
    mesh = plan.mesh
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())

    def samples_of(batches: Batches, step: Array) -> PyTree:
        """Return the samples of all tasks of a step, `[tasks * n, ...]`."""

        def flat(leaf: Array) -> Array:
            leaf = jax.lax.dynamic_index_in_dim(leaf, step, 1, keepdims=False)
            if everywhere is not None:
                # Every device mixes all tasks. As stored they are smallest to exchange.
                leaf = jax.lax.with_sharding_constraint(leaf, everywhere)
            return leaf.reshape(-1, *leaf.shape[2:])

        return jax.tree.map(flat, batches.x)

    def run(
        state: TrainState,
        pool: Pool,
        batches: Batches,
        first: Array,
        key: Array,
        stop: Array,
    ) -> tuple[TrainState, Array]:
        def one_step(state: TrainState) -> tuple[TrainState, Array]:
            key_tasks, key_loss = jax.random.split(jax.random.fold_in(key, state.step))
            keys = jax.random.split(key_tasks, num_drawn)
            x = samples_of(batches, state.step - first)

            def one_task(key: Array, places: Any) -> Task:
                task = draw(pool, key, **episode._asdict())
                support, query = task.support, task.query
                size = support.y.shape[0]
                task = task.replace(
                    support=support.replace(x=places[:size]),
                    query=query.replace(x=places[size:]),
                )
                return take_rows(x, task)

            return update(state, jax.vmap(one_task)(keys, batches.places), key_loss)

        return _run_until(one_step, state, stop)

    if everywhere is None:
        return at_precision(jax.jit(run, donate_argnums=0), precision)
    jitted = jax.jit(
        run,
        donate_argnums=0,
        in_shardings=(everywhere, everywhere, None, everywhere, everywhere, everywhere),
        out_shardings=everywhere,
    )
    return at_precision(jitted, precision)


class Batches(NamedTuple):
    """The samples of the tasks of some steps.

    Attributes:
      x: as they are stored, support before query, every leaf `[tasks, k, n, ...]`.
      places: `[tasks, n]`, where the samples of a step are if those of all tasks are
        listed one after the other.
    """

    x: PyTree
    places: Array | np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task], first: int = 0) -> Batches:
        """Stack the tasks `[tasks, ...]` of some steps, on the host.

        Args:
          tasks: those of each step.
          first: number of tasks of a step that other hosts read before these.
        """

        def stack(*leaves: np.ndarray) -> np.ndarray:
            sets = [leaves[i : i + 2] for i in range(0, len(leaves), 2)]
            return np.stack([np.concatenate(both, axis=1) for both in sets], axis=1)

        sets = [batch.x for task in tasks for batch in (task.support, task.query)]
        x = jax.tree.map(stack, *sets)
        shape = jax.tree.leaves(x)[0].shape
        number = shape[0] * shape[2]
        places = np.arange(number, dtype=np.int32).reshape(shape[0], shape[2])
        return cls(x, places + np.int32(first * shape[2]))


@dataclasses.dataclass(frozen=True)
class MetaBatches:
    """Draws the rows of the tasks of a step: those that `make_run_steps` draws.

    Attributes:
      episode: the size of a task.
      episodic: whether the learner learns from tasks; else flat batches are drawn.
      tasks: number of tasks of a step, on all hosts.
      local: which of them this host reads.
    """

    episode: Episode
    episodic: bool
    tasks: int
    local: tuple[int, ...]

    def __call__(self, pool: Pool, key: Array, item: Array) -> Task:
        """Return the local tasks of step `item`; `pool.x` is not used."""
        key_tasks, _ = jax.random.split(jax.random.fold_in(key, item))
        keys = jax.random.split(key_tasks, self.tasks)[np.array(self.local)]
        draw = draw_rows if self.episodic else draw_flat_rows
        return jax.vmap(lambda k: draw(pool, k, **self.episode._asdict()))(keys)


def _make_update(
    learner: Learner,
    strategy: Strategy,
    optimiser: optax.GradientTransformation,
    batch_size: int,
    plan: Plan,
    ema: Sequence[float],
) -> Callable[..., tuple[TrainState, Array]]:
    """Return `update(state, tasks, key, samples) -> (state, loss)`, all but the draw.

    `samples` as in `meta_objective`.
    """
    # Some optimizers use the loss.
    optimiser = optax.with_extra_args_support(optimiser)

    def update(
        state: TrainState,
        tasks: Task,
        key_loss: Array,
        samples: PyTree | None = None,
    ) -> tuple[TrainState, Array]:
        (loss, aux), grads = gradients(
            learner,
            strategy,
            state.variables,
            tasks,
            key_loss,
            batch_size,
            plan,
            samples,
        )
        trained = (state.variables.params, state.variables.strategy)
        updates, optimiser_state = optimiser.update(
            grads, state.optimiser, trained, value=loss
        )
        params, own = optax.apply_updates(trained, updates)
        variables = Variables(params=params, state=aux.state, strategy=own)
        averages = tuple(
            update_average(average, _averaged_part(variables), state.step + 1, decay)
            for average, decay in zip(state.ema, ema, strict=True)
        )
        state = state.replace(
            step=state.step + 1,
            variables=variables,
            ema=averages,
            optimiser=optimiser_state,
            loss_sum=state.loss_sum + loss,
            metric_sum=state.metric_sum + aux.metric.mean(),
            count=state.count + 1,
        )
        return state, loss

    return update


# For several runs of the same parts, such as the folds of a cross-validation: all of
# them use the programs that the first one compiled.
cached_run_steps = functools.lru_cache(maxsize=64)(make_run_steps)
cached_run_batches = functools.lru_cache(maxsize=64)(make_run_batches)
