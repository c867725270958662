"""Gradient-based meta-learning (Sec. 2, Eq. 1).

A learner of this family is an inner loop with an *update rule* (how a gradient becomes
a step, see `update_rules.py`) and a set of *adapted layers*: MAML, ANIL, MetaSGD and
Meta-Curvature are a few lines each in `maml.py`.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax

from mlti_jax.backbones import DenseBlock, Hook, Stack
from mlti_jax.learners._base import (
    Aux,
    Objective,
    Perturbation,
    Variables,
    check_norm,
    mode_for,
    run_task,
)
from mlti_jax.learners._inner_loop import adapt, mean_over
from mlti_jax.learners._low_rank import Displaced, LowRank, without_kernel
from mlti_jax.learners._update_rules import UpdateRule
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
      short_way: whether a linear map of few samples is adapted without its kernel
        being written, see `low_rank`; the result is the same.
    """

    stack: Stack
    objective: Objective
    adapted_layers: tuple[int, ...]
    rule: UpdateRule
    steps: int = 5
    eval_steps: int = 5
    second_order: bool = True
    remat: bool = False
    unroll: bool = False
    norm: str = "batch"
    short_way: bool = True

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
        phi, displaced = self._adapt(
            variables, task.support, key_inner, entry, train, perturbation
        )

        def judge(params, hook):
            outputs, new_state = self._forward(
                params, state, task.query, first, key_outer, train, hook
            )
            return self.objective.loss(outputs, task.query), outputs, new_state

        loss_before, outputs_before, _ = judge(variables.params["model"], hook)
        if displaced is not None:
            hook = displaced.hook(task.query.x)
        loss, outputs, state = judge(phi, hook)
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
        phi, displaced = self._adapt(
            variables, support, key, layer, train, perturbation
        )
        if displaced is None:
            return phi
        first = dict(phi[self.shared_layers], kernel=displaced.kernel())
        return (*phi[: self.shared_layers], first, *phi[self.shared_layers + 1 :])

    def _adapt(
        self,
        variables: Variables,
        support: Batch,
        key: Array,
        layer: int,
        train: bool,
        perturbation: Perturbation | None = None,
    ) -> tuple[tuple, Displaced | None]:
        """As `adapt`; the first kernel may be left as it is, and its change apart."""
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

        def loss_of(adapted, h, key, hook=None) -> Array:
            batch = support.replace(x=h)
            merged = self._merge(params, adapted)
            outputs, _ = self._forward(merged, state, batch, first, key, train, hook)
            return self.objective.loss(outputs, batch)

        loop = partial(
            adapt,
            num_steps=num_steps,
            second_order=self.second_order,
            remat=self.remat,
            unroll=self.unroll,
        )
        start, step = self._adapted(params), partial(self.rule.step, rule_params)
        if perturbation is None:
            h = shared(key)
            low_rank = self._low_rank(params, rule_params, h, num_steps)
            if low_rank is not None:
                adapted, displaced = low_rank.adapt(
                    lambda rest, hook, index: loss_of(
                        rest, h, jax.random.fold_in(key, index), hook
                    ),
                    without_kernel(start),
                    partial(self.rule.step, without_kernel(rule_params)),
                    loop,
                )
                return self._merge(params, adapted), displaced

            def loss_fn(adapted: PyTree, index: int | Array) -> Array:
                return loss_of(adapted, h, jax.random.fold_in(key, index))

            return self._merge(params, loop(loss_fn, start, step)), None

        samples = perturbation.samples if train else perturbation.eval_samples
        keys = jax.random.split(key, (num_steps, samples))

        def draw(key: Array) -> PyTree:
            return shared(key, perturbation.support(key))

        def loss_of_draw(adapted, h, key) -> Array:
            return loss_of(adapted, h, key, perturbation.support(key))

        if train:
            # The shared layers do not change: all draws of all steps at once.
            features = jax.vmap(jax.vmap(draw))(keys)

            def loss_fn(adapted: PyTree, index: int | Array) -> Array:
                drawn = jax.tree.map(lambda leaf: leaf[index], features)
                losses = jax.vmap(partial(loss_of_draw, adapted))
                return losses(drawn, keys[index]).mean()

            return self._merge(params, loop(loss_fn, start, step)), None

        # Many draws, and nothing to differentiate through: one at a time.
        def mean_gradient(adapted: PyTree, index: int | Array) -> PyTree:
            of_draw = jax.grad(loss_of_draw)
            return mean_over(lambda key: of_draw(adapted, draw(key), key), keys[index])

        adapted = loop(None, start, step, gradient=lambda _: mean_gradient)
        return self._merge(params, adapted), None

    def _low_rank(self, params, rule_params, h, num_steps: int) -> LowRank | None:
        """A short way for the first adapted layer's kernel, where there is one.

        There is if it is a linear map of fewer samples than it has inputs.
        """
        layer = self.shared_layers
        if not self.short_way or not isinstance(self.stack.layers[layer], DenseBlock):
            return None
        if h.shape[0] >= h.shape[1]:
            return None
        # In first-order learning the inner gradient, and so its factor, is a constant.
        source = h if self.second_order else jax.lax.stop_gradient(h)
        factors = self.rule.factors(rule_params, source)
        return LowRank(layer, params[layer]["kernel"], h, factors, num_steps)

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
        """The parameters with those that were adapted put in; others stay."""
        merged = list(params)
        for layer, values in zip(self.adapted_layers, adapted, strict=True):
            merged[layer] = {**params[layer], **values}
        return tuple(merged)
