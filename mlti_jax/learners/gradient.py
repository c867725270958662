"""Gradient-based meta-learning (Sec. 2, Eq. 1).

A learner of this family is an inner loop with an *update rule* (how a gradient becomes
a step, see `update_rules.py`) and a set of *adapted layers*: MAML, ANIL, MetaSGD and
Meta-Curvature are a few lines each in `maml.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from mlti_jax.backbones import DenseBlock, Hook, LinearMap, Stack, in_turn
from mlti_jax.learners.base import (
    Aux,
    Objective,
    Perturbation,
    Variables,
    check_norm,
    mode_for,
    run_task,
)
from mlti_jax.learners.inner_loop import adapt, mean_over
from mlti_jax.learners.update_rules import (
    UpdateRule,
)
from mlti_jax.types import Array, Batch, PyTree, Task


@dataclasses.dataclass(frozen=True)
class GradientLearner:
    """Adapts some layers to a task by gradient descent on its support set.

    Attributes:
      stack: the network, its head included.
      objective: loss and metric.
      adapted_layers: the layers that the inner loop changes, ascending.
      rule: how a gradient becomes a step.
      steps: inner steps in training.
      eval_steps: inner steps at test time.
      second_order, remat, unroll: see `adapt`.
      norm: batch-norm policy at test time, `batch` or `running`.
    """

    stack: Stack
    objective: Objective
    adapted_layers: tuple[int, ...]
    rule: UpdateRule
    steps: int = 5
    eval_steps: int = 5
    second_order: bool = True
    remat: bool = False
    unroll: bool = True
    norm: str = "batch"

    family = "gradient"
    episodic = True
    joint_statistics = False
    class_pairs = False

    def __post_init__(self):
        check_norm(self.norm)

    @property
    def shared_layers(self) -> int:
        """`L^s`: the layers before the first adapted one."""
        return self.adapted_layers[0]

    @property
    def deepest_mixing_layer(self) -> int:
        """The first adapted layer: its input is still shared by all tasks."""
        return self.shared_layers

    def init(self, key: Array, x: PyTree) -> Variables:
        """Initialises on an input `x`, every leaf `[N, ...]`."""
        params, state = self.stack.init(key, x)
        rule = self.rule.init(self._adapted(params))
        return Variables(params={"model": params, "rule": rule}, state=state)

    def embed(
        self,
        variables: Variables,
        task: Task,
        key: Array,
        layer: int,
        train: bool,
        perturbation: Perturbation | None = None,
    ) -> tuple[Task, PyTree]:
        """Moves a task's x from the input to `layer`, each set by its statistics.

        With a perturbation, the noise of these layers is drawn here, once.
        """
        hooks = (None, None)
        if perturbation is not None:
            hooks = (perturbation.support(key), perturbation.query)
        return self._run_shared(variables, task, key, 0, layer, train, hooks)

    def loss(
        self,
        variables: Variables,
        task: Task,
        key: Array,
        layer: int,
        train: bool,
        perturbation: Perturbation | None = None,
    ) -> tuple[Array, Aux]:
        r"""Eq. 1: :math:`\mathcal{L}(f_\phi; D^q)` with phi adapted to :math:`D^s`.

        The features of the shared layers are computed once, outside the inner loop;
        with a perturbation, the support set's once for each of its draws.
        """
        key_shared, key_inner, key_outer = jax.random.split(key, 3)
        first, hook = self.deepest_mixing_layer, None
        if perturbation is None:
            task, state = self._run_shared(
                variables, task, key_shared, layer, first, train
            )
            entry = first
        else:
            # The support set's features are thrown away, and only its statistics kept:
            # `adapt` draws its noise anew in every step.
            hook, entry = perturbation.query, layer
            hooks = (perturbation.support(key_shared), hook)
            run, state = self._run_shared(
                variables, task, key_shared, layer, first, train, hooks
            )
            task = task.replace(query=run.query)
        variables = variables.replace(state=state)
        phi = self.adapt(variables, task.support, key_inner, entry, train, perturbation)

        def judge(params):
            outputs, new_state = self._forward(
                params, state, task.query, first, key_outer, train, hook
            )
            return self.objective.loss(outputs, task.query), outputs, new_state

        loss_before, outputs_before, _ = judge(variables.params["model"])
        loss, outputs, state = judge(phi)
        metric = self.objective.metric(outputs, task.query)
        return loss, Aux(
            state, metric, outputs, loss_before, outputs_before, task.query.weight
        )

    def adapt(
        self,
        variables: Variables,
        support: Batch,
        key: Array,
        layer: int = 0,
        train: bool = False,
        perturbation: Perturbation | None = None,
    ) -> PyTree:
        r"""The network's parameters after adaptation to `support`.

        With a perturbation, the loss of step t is
        :math:`\frac1S \sum_s \mathcal{L}(\phi; D^s, \text{noise}_{ts})`.

        Args:
          variables: as from `init`.
          support: the support set, its x at `layer`.
          key: a PRNG key for noise (dropout), used in training only.
          layer: the layer at which x enters, at most `L^s`.
          train: whether this is training: number of steps, noise, statistics.
          perturbation: noise on hidden outputs.

        Returns:
          Parameters of the whole stack, one entry a layer; shared layers unchanged.
        """
        params, state = variables.params["model"], variables.state
        rule_params = variables.params["rule"]
        first = self.deepest_mixing_layer
        num_steps = self.steps if train else self.eval_steps

        def shared(key: Array, hook: Hook | None = None) -> PyTree:
            return self.stack.apply(
                params,
                state,
                support.x,
                layer,
                first,
                key=key,
                mode=mode_for(self.norm, train),
                weight=support.weight,
                hook=hook,
            )[0]

        def loss_of(adapted, displacements, h, key, noise=None) -> Array:
            batch = support.replace(x=h)
            merged = self._merge(params, adapted)
            hook = in_turn(self._displacing(rule_params, displacements), noise)
            outputs, _ = self._forward(merged, state, batch, first, key, train, hook)
            return self.objective.loss(outputs, batch)

        zeros = self._zero_displacements(params)

        def gradient(loss_fn: Callable) -> Callable:
            both = jax.grad(loss_fn, argnums=(0, 2))
            return lambda phi, index: both(phi, index, zeros)

        if perturbation is None:
            features = shared(key)

            def loss_fn(adapted: PyTree, index: int | Array, displacements) -> Array:
                step_key = jax.random.fold_in(key, index)
                return loss_of(adapted, displacements, features, step_key)

        else:
            samples = perturbation.samples if train else perturbation.eval_samples
            keys = jax.random.split(key, (num_steps, samples))

            def draw(key: Array) -> PyTree:
                return shared(key, perturbation.support(key))

            def loss_of_draw(adapted, displacements, h, key) -> Array:
                noise = perturbation.support(key)
                return loss_of(adapted, displacements, h, key, noise)

            # The shared layers do not change: all draws of all steps at once.
            features = jax.vmap(jax.vmap(draw))(keys) if train else None

            def loss_fn(adapted: PyTree, index: int | Array, displacements) -> Array:
                drawn = jax.tree.map(lambda leaf: leaf[index], features)
                losses = jax.vmap(partial(loss_of_draw, adapted, displacements))
                return losses(drawn, keys[index]).mean()

            if not train:
                # Many draws, and nothing to differentiate through: one at a time.
                def gradient(loss_fn: Callable) -> Callable:  # noqa: F811
                    del loss_fn
                    both = jax.grad(loss_of_draw, argnums=(0, 1))
                    return lambda phi, index: mean_over(
                        lambda key: both(phi, zeros, draw(key), key), keys[index]
                    )

        def step(grads: tuple[PyTree, dict]) -> PyTree:
            plain, ready = grads
            steps = list(self.rule.step(rule_params, plain))
            for layer, kernel in ready.items():
                position = self.adapted_layers.index(layer)
                steps[position] = {**steps[position], "kernel": kernel}
            return tuple(steps)

        adapted = adapt(
            loss_fn,
            self._adapted(params),
            step,
            num_steps,
            gradient=gradient,
            second_order=self.second_order,
            remat=self.remat,
            unroll=self.unroll,
        )
        return self._merge(params, adapted)

    def _zero_displacements(self, params: tuple) -> dict[int, Array]:
        """For the layers whose kernel's step the rule finds by a displacement.

        First-order learning takes gradients as constants, but not the rule's
        parameters: there the rule has to go the long way.
        """
        if self.rule.displaced is None or not self.second_order:
            return {}
        return {
            layer: jnp.zeros_like(params[layer]["kernel"])
            for layer in self.adapted_layers
            if isinstance(self.stack.layers[layer], DenseBlock)
        }

    def _displacing(self, rule_params: tuple, displacements: dict) -> Hook | None:
        """Adds what displacements, all zero, make of a layer: their gradient counts."""
        if not displacements:
            return None

        def hook(layer: int, linear: LinearMap) -> Array:
            if layer not in displacements:
                return linear.output
            own = rule_params[self.adapted_layers.index(layer)]["kernel"]
            return linear.output + self.rule.displaced(
                own, linear.input, displacements[layer]
            )

        return hook

    def predict(
        self,
        variables: Variables,
        support: Batch,
        query_x: PyTree,
        key: Array,
        perturbation: Perturbation | None = None,
    ) -> Array:
        """Outputs `[N_q, C]` of the network adapted to `support`."""
        phi = self.adapt(variables, support, key, perturbation=perturbation)
        hook = None if perturbation is None else perturbation.query
        mode = mode_for(self.norm, train=False)
        return self.stack.apply(phi, variables.state, query_x, mode=mode, hook=hook)[0]

    def _run_shared(self, variables, task, key, start, stop, train, hooks=(None, None)):
        return run_task(
            self.stack,
            variables.params["model"],
            variables.state,
            task,
            start,
            stop,
            key=key,
            mode=mode_for(self.norm, train),
            joint=self.joint_statistics,
            hooks=hooks,
        )

    def _forward(self, params, state, batch, start, key, train, hook=None):
        return self.stack.apply(
            params,
            state,
            batch.x,
            start,
            key=key,
            mode=mode_for(self.norm, train),
            weight=batch.weight,
            hook=hook,
        )

    def _adapted(self, params: tuple) -> tuple:
        return tuple(params[layer] for layer in self.adapted_layers)

    def _merge(self, params: tuple, adapted: tuple) -> tuple:
        merged = list(params)
        for layer, values in zip(self.adapted_layers, adapted, strict=True):
            merged[layer] = values
        return tuple(merged)
