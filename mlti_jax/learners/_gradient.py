"""Gradient-based meta-learning (Sec. 2, Eq. 1).

A learner of this family is an inner loop with an *update rule* (how a gradient becomes
a step, see `_update_rules.py`) and a set of *adapted layers*. MAML, ANIL, MetaSGD and
Meta-Curvature are a few lines each in `_maml.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from mlti_jax.backbones import Stack
from mlti_jax.backbones._stack import Hook, LinearMap
from mlti_jax.learners._adapted import check_selection, layer_name, merge, select
from mlti_jax.learners._base import (
    Aux,
    Perturbation,
    TaskContext,
    Variables,
    check_norm,
    network_context,
    run_task,
)
from mlti_jax.learners._hoist import hoist
from mlti_jax.learners._inner_loop import descend, map_draws, mean_over
from mlti_jax.learners._low_rank import LowRankKernel, adapt_low_rank, without_kernel
from mlti_jax.learners._objectives import Objective
from mlti_jax.learners._update_rules import UpdateRule
from mlti_jax.ops import Gated
from mlti_jax.ops._gates import are_native_images
from mlti_jax.types import Array, Batch, PyTree, Task


@dataclasses.dataclass(frozen=True)
class GradientLearner:
    """Adapts some layers to a task with gradient steps on its support set.

    Attributes:
      stack: the network including its head.
      objective: loss and metric.
      adapted_layers: the layers that the inner loop changes, ascending.
      rule: how a gradient becomes a step.
      steps: inner steps in training.
      eval_steps: inner steps at test time.
      second_order, remat: see `adapt`.
      norm: batch-norm policy at test time, `batch` or `running`.
      low_rank: whether to adapt a linear map of few samples with low-rank updates, see
        `_low_rank.py`; faster, with the same result.
      adapted: paths or patterns of the parameters that the inner loop changes within
        `adapted_layers`, see `adapted_paths`; None for all.
    """

    stack: Stack
    objective: Objective
    adapted_layers: tuple[int, ...]
    rule: UpdateRule
    steps: int = 5
    eval_steps: int = 5
    second_order: bool = True
    remat: bool = False
    norm: str = "batch"
    low_rank: bool = True
    adapted: tuple[str, ...] | None = None

    family = "gradient"
    episodic = True
    joint_statistics = False
    class_pairs = False

    def __post_init__(self) -> None:
        check_norm(self.norm)

    @property
    def shared_layers(self) -> int:
        """`L^s`: the number of layers before the first adapted one."""
        return self.adapted_layers[0]

    @property
    def deepest_mixing_layer(self) -> int:
        """The first adapted layer: its input is still shared by all tasks."""
        return self.shared_layers

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialize on an input `x`, every leaf `[N, ...]`."""
        params, state = self.stack.init(key, x)
        if self.adapted is not None:
            check_selection(self.stack, params, self.adapted)
        rule = self.rule.init(self._adapted(params))
        return Variables(params={"model": params, "rule": rule}, state=state)

    def embed(
        self, variables: Variables, task: Task, context: TaskContext, layer: int
    ) -> tuple[Task, PyTree]:
        """Move the x of a task from the input to `layer`, each set on its own.

        A perturbation draws the noise of these layers here, once.
        """
        return run_task(self, variables, task, context, 0, layer)

    def loss(
        self, variables: Variables, task: Task, context: TaskContext, layer: int = 0
    ) -> tuple[Array, Aux]:
        r"""Compute $L(f_\phi; D^q)$ with $\phi$ adapted to $D^s$ (Eq. 1).

        The features of the shared layers are computed once, outside the inner loop;
        with a perturbation, those of the support set once for each of its draws. The
        first draw updates the running averages.
        """
        key_shared, key_inner, key_outer = jax.random.split(context.key, 3)
        noise, entry = context.perturbation, layer
        if noise is None:
            entry = self.shared_layers
            task, state = run_task(
                self, variables, task, context.replace(key=key_shared), layer, entry
            )
            variables = variables.replace(state=state)
        phi, low_rank, state = self._adapt(
            variables, task.support, context.replace(key=key_inner), entry
        )
        query = task.query
        if noise is not None:
            query_x, state = self._shared_features(
                variables.replace(state=state),
                query,
                context.replace(key=jax.random.split(key_shared)[1]),
                layer,
                noise.query,
            )
            query = query.replace(x=query_x)

        def evaluate(params: tuple, hook: Hook | None) -> tuple[Array, Array, tuple]:
            outputs, new_state = self._forward(
                params, state, query, context.train, key_outer, hook
            )
            return self.objective.loss(outputs, query), outputs, new_state

        hook = None if noise is None else noise.query
        loss_before, outputs_before, _ = evaluate(variables.params["model"], hook)
        if low_rank is not None:
            hook = low_rank.hook(query.x)
        loss, outputs, state = evaluate(phi, hook)
        metric = self.objective.metric(outputs, query)
        return loss, Aux(
            state, metric, outputs, loss_before, outputs_before, query.weight
        )

    def adapt(
        self,
        variables: Variables,
        support: Batch,
        context: TaskContext,
        layer: int = 0,
    ) -> PyTree:
        r"""Compute the parameters of the network after adaptation to `support`.

        With a perturbation, the loss of step t is
        $\frac1S \sum_s L(\phi; D^s, \mathrm{noise}_{ts})$.

        Args:
          variables: from `init`.
          support: the support set, its x at `layer`.
          context: key, mode and perturbation.
          layer: the layer at which x enters, at most `shared_layers`.

        Returns:
          Parameters of the whole stack, one entry per layer; shared layers unchanged.
        """
        phi, low_rank, _ = self._adapt(variables, support, context, layer)
        if low_rank is None:
            return phi
        first = dict(phi[low_rank.layer], kernel=low_rank.kernel())
        return (*phi[: low_rank.layer], first, *phi[low_rank.layer + 1 :])

    def predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        context: TaskContext,
    ) -> Array:
        """Compute the outputs `[N_q, C]` of the network adapted to `support`."""
        phi = self.adapt(variables, support, context)
        noise = context.perturbation
        hook = None if noise is None else noise.query
        outputs, _ = self.stack.apply(
            phi,
            variables.state,
            query_x,
            context=network_context(self.norm, train=False, hook=hook),
        )
        return outputs

    # ------------------------------------------------------------------ inner loop

    def _adapt(
        self, variables: Variables, support: Batch, context: TaskContext, layer: int
    ) -> tuple[tuple, LowRankKernel | None, PyTree]:
        """Adapt; the first kernel is returned apart if its update is low-rank.

        The third result is the state, which noise on the shared layers updates.
        """
        if context.perturbation is not None:
            adapt = self._adapt_to_draws if context.train else self._adapt_draw_by_draw
            phi, state = adapt(variables, support, context, layer, context.perturbation)
            return phi, None, state
        params, rule_params = variables.params["model"], variables.params["rule"]
        state = variables.state
        h, _ = self._shared_features(variables, support, context, layer)

        def loss_fn(adapted: PyTree, index: Array, hook: Hook | None = None) -> Array:
            key = jax.random.fold_in(context.key, index)
            return self._support_loss(
                variables, adapted, support.replace(x=h), context.train, key, hook
            )

        if not self._low_rank_applies(params, h):
            if self.adapted is not None:  # part of a layer may be shared
                loss_fn = hoist(loss_fn, self._adapted(params), jnp.int32(0))
            step = partial(self.rule.step, rule_params)
            adapted = self._descend(context, jax.grad(loss_fn), params, step)
            return self._merge(params, adapted), None, state
        # In first-order learning the inner gradient, so its factor too, is constant.
        source = h if self.second_order else jax.lax.stop_gradient(h)
        adapted, low_rank = adapt_low_rank(
            loss_fn,
            without_kernel(self._adapted(params)),
            partial(self.rule.step, without_kernel(rule_params)),
            partial(descend, second_order=self.second_order, remat=self.remat),
            layer=self.shared_layers,
            kernel=params[self.shared_layers]["kernel"],
            h=h,
            factors=self.rule.factors(rule_params, source),
            num_steps=self._num_steps(context),
        )
        return self._merge(params, adapted), low_rank, state

    def _adapt_to_draws(
        self,
        variables: Variables,
        support: Batch,
        context: TaskContext,
        layer: int,
        noise: Perturbation,
    ) -> tuple[tuple, PyTree]:
        """Adapt to draws of the noise, which derivatives go through.

        Returns the parameters, and the state updated with the first draw.
        """
        keys = jax.random.split(context.key, (self._num_steps(context), noise.samples))
        if not keys.size:
            return variables.params["model"], variables.state

        def features(key: Array) -> tuple[PyTree, PyTree]:
            hook = noise.support(key)
            own = context.replace(key=key)
            return self._shared_features(variables, support, own, layer, hook)

        # The shared layers do not change: compute the draws of all steps before the
        # loop, and what comes before the first noise only once.
        drawn, states = map_draws(
            hoist(features, keys[0, 0]), keys, together=are_native_images(support.x)
        )
        state = jax.tree.map(lambda leaf: leaf[0, 0], states)

        def loss_fn(adapted: PyTree, index: Array) -> Array:
            losses = jax.vmap(
                lambda h, key: self._support_loss(
                    variables,
                    adapted,
                    support.replace(x=h),
                    context.train,
                    key,
                    noise.support(key),
                )
            )
            of_step = jax.tree.map(lambda leaf: leaf[index], drawn)
            return losses(of_step, keys[index]).mean()

        params = variables.params["model"]
        step = partial(self.rule.step, variables.params["rule"])
        adapted = self._descend(context, jax.grad(loss_fn), params, step)
        return self._merge(params, adapted), state

    def _adapt_draw_by_draw(
        self,
        variables: Variables,
        support: Batch,
        context: TaskContext,
        layer: int,
        noise: Perturbation,
    ) -> tuple[tuple, PyTree]:
        """Adapt to one draw of the noise at a time; bounds memory at test time."""
        num_steps = self._num_steps(context)
        keys = jax.random.split(context.key, (num_steps, noise.eval_samples))

        def gradient(adapted: PyTree, index: Array) -> PyTree:
            def of_draw(key: Array) -> PyTree:
                hook = noise.support(key)
                h, _ = self._shared_features(
                    variables, support, context.replace(key=key), layer, hook
                )
                return jax.grad(
                    lambda adapted: self._support_loss(
                        variables,
                        adapted,
                        support.replace(x=h),
                        context.train,
                        key,
                        hook,
                    )
                )(adapted)

            return mean_over(of_draw, keys[index])

        params = variables.params["model"]
        step = partial(self.rule.step, variables.params["rule"])
        adapted = self._descend(context, gradient, params, step)
        return self._merge(params, adapted), variables.state

    def _descend(
        self,
        context: TaskContext,
        gradient: Callable[[PyTree, Array], PyTree],
        params: tuple,
        step: Callable[[PyTree], PyTree],
    ) -> tuple:
        return descend(
            gradient,
            self._adapted(params),
            step,
            self._num_steps(context),
            self.second_order,
            self.remat,
        )

    def _num_steps(self, context: TaskContext) -> int:
        return self.steps if context.train else self.eval_steps

    def _shared_features(
        self,
        variables: Variables,
        batch: Batch,
        context: TaskContext,
        layer: int,
        hook: Hook | None = None,
    ) -> tuple[PyTree, PyTree]:
        """Move x from `layer` to the first adapted layer; also return the state."""
        return self.stack.apply(
            variables.params["model"],
            variables.state,
            batch.x,
            layer,
            self.shared_layers,
            network_context(self.norm, context.train, context.key, batch.weight, hook),
        )

    def _support_loss(
        self,
        variables: Variables,
        adapted: tuple,
        support: Batch,
        train: bool,
        key: Array,
        hook: Hook | None,
    ) -> Array:
        """Compute the support loss of x at the first adapted layer."""
        params = self._merge(variables.params["model"], adapted)
        outputs, _ = self._forward(params, variables.state, support, train, key, hook)
        return self.objective.loss(outputs, support)

    def _forward(
        self,
        params: tuple,
        state: tuple,
        batch: Batch,
        train: bool,
        key: Array,
        hook: Hook | None,
    ) -> tuple[Array, tuple]:
        """Run the adapted part of the network."""
        hook = None if hook is None else _computed(hook)
        context = network_context(self.norm, train, key, batch.weight, hook)
        return self.stack.apply(
            params, state, batch.x, self.shared_layers, context=context
        )

    def _low_rank_applies(self, params: tuple, h: PyTree) -> bool:
        """Whether the first adapted layer maps fewer samples than it has inputs."""
        dense = getattr(self.stack.layers[self.shared_layers], "dense_kernel", False)
        if not (self.low_rank and dense and h.shape[0] < h.shape[1]):
            return False
        return self._adapted(params)[0]["kernel"] is not None

    def _adapted(self, params: tuple) -> tuple:
        """Return the adapted parameters of the adapted layers, None for others."""
        if self.adapted is None:
            return tuple(params[layer] for layer in self.adapted_layers)
        return tuple(
            select(layer_name(self.stack, layer), params[layer], self.adapted)
            for layer in self.adapted_layers
        )

    def _merge(self, params: tuple, adapted: tuple) -> tuple:
        """Replace the adapted entries of `params`."""
        merged = list(params)
        for layer, values in zip(self.adapted_layers, adapted, strict=True):
            merged[layer] = merge(params[layer], values)
        return tuple(merged)


def _computed(hook: Hook) -> Hook:
    """Compute products with gates at once.

    Kernels that compute them again for the derivative have no second derivative of
    their own, and recomputing it in JAX costs what they save.
    """

    def computed(layer: int, linear: LinearMap) -> Array:
        output = hook(layer, linear)
        return output.value() if isinstance(output, Gated) else output

    return computed
