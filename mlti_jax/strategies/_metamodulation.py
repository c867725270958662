r"""MetaModulation (Sun et al. 2023), Learning Variational Feature Hierarchies.

A new task is made from task i and a partner j by changing how the network normalizes:
at every layer, a small network turns the features of the partner into changes of the
scale and the offset of batch-norm,

$$\tilde H^l = (\gamma_l + \Delta\gamma_l) \frac{W_l H^{l} - \mu}{\sigma}
  + \beta_l + \Delta\beta_l, \quad
  (\Delta\gamma_l, \Delta\beta_l) \sim q_l = N(m_l(z_l), \mathrm{diag}(s_l^2(z_l))),$$

with $z_l$ the mean of the partner's features after layer l. Labels are those of task i.
The loss has the penalty $\lambda \sum_l \mathrm{KL}(q_l \,\|\, N(0, I))$, and
optionally the loss of the unchanged task with a weight. A task is modulated with
probability 1/2, and otherwise mixed with its partner. New tasks are not modulated.

Differences from the paper:

* z is the mean over the samples of the partner's support set, so that their order does
  not matter, and both sets of task i get the same modulation. The authors' code
  concatenates the features of all samples, and modulates the support set with the
  partner's support set and the query set with its query set.
* One network per layer with one hidden layer gives mean and variance of both changes;
  the authors' code has four. Its last layer starts at zero, so q starts at N(0, I).
* The modulating networks are trained. In the authors' code they are created with new
  random weights in every forward pass and are no parameters of the optimizer. There,
  activations are normalized over all channels together, and the KL term is that of the
  offsets of the last layer.
* Tasks are mixed with the interpolation of the dataset, at the input; partners are
  drawn as in MLTI.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from mlti_jax import interpolation
from mlti_jax._internal.checks import check_range
from mlti_jax.errors import InputError
from mlti_jax.learners import Aux, Learner, TaskContext, Variables
from mlti_jax.learners._base import network_context
from mlti_jax.strategies._base import PerTask, Strategy
from mlti_jax.strategies._metareg import kl_to_standard_normal
from mlti_jax.strategies._mixing import PAIR_FUNCTIONS, check_mixing
from mlti_jax.types import Array, Batch, PyTree, Task

MODULATED = ("scale", "offset")
# Folded into the key of a task; learners split it and use small numbers.
_NOISE, _PARTNER = 101, 102


class _Modulated(Task):
    """A task, and what modulates it.

    Attributes:
      partner: the support set of the partner.
      strength: 1 if the task is modulated, 0 if it is mixed.
      unchanged: support and query set as they were drawn; None if not needed.
    """

    partner: Batch | None = None
    strength: Array | None = None
    unchanged: tuple[Batch, Batch] | None = None


def metamodulation(
    *,
    setting: str,
    method: str = "mixup",
    alpha: float = 2.0,
    kl_weight: float = 1e-3,
    plain_weight: float = 0.0,
    mixed_share: float = 0.5,
    samples: int = 100,
) -> Strategy:
    r"""Modulate the batch-norm of every task with a partner, or mix the two.

    The network needs blocks with batch-norm; those of a wrapped module are hidden.

    Args:
      setting: `label_sharing` or `regression` (Eq. 5), or `non_label_sharing` (Eq. 6);
        how tasks are mixed.
      method: `mixup` or `cutmix`; how samples are mixed, at the input.
      alpha: both parameters of the Beta distribution of mixed tasks; 2 in the authors'
        code.
      kl_weight: weight of the KL term; 0.001 in the authors' code.
      plain_weight: weight of the loss of the unchanged task; 0 in the authors' scripts.
        Above 0, the running averages of batch-norm are those of unchanged tasks, as at
        test time.
      mixed_share: probability that a task is mixed and not modulated; 1/2 in the
        authors' code.
      samples: the changes are the mean of this many draws from q; 100 in the authors'
        code.

    Examples:
      >>> metamodulation(setting="non_label_sharing", method="cutmix").min_tasks
      2
    """
    mixing = check_mixing(setting, method, (0,), alpha)
    mix_pair = PAIR_FUNCTIONS[setting]
    for name, weight in (("kl_weight", kl_weight), ("plain_weight", plain_weight)):
        if not 0 <= weight < float("inf"):
            raise InputError(
                f"strategy.metamodulation.{name} must be finite and at least 0, got "
                f"{weight}"
            )
    if not 0 <= mixed_share < 1:
        raise InputError(
            "strategy.metamodulation.mixed_share must be in [0, 1), got "
            f"{mixed_share}; to mix all tasks, use the strategy mlti"
        )
    check_range("strategy.metamodulation.samples", samples, 10**6)

    def init(learner: Learner, variables: Variables, key: Array, x: PyTree) -> PyTree:
        model, state = variables.params["model"], variables.state
        h, networks = jax.eval_shape(lambda x: x, x), []
        for layer in range(len(learner.stack)):
            h = jax.eval_shape(
                lambda h, layer=layer: learner.stack.apply(
                    model, state, h, layer, layer + 1
                )[0],
                h,
            )
            width = sum(leaf.size for leaf in _modulated_leaves(model[layer]))
            own_key = jax.random.fold_in(key, layer)
            networks.append(_network(own_key, h.shape[-1], width) if width else {})
        if not any(networks):
            raise InputError(
                "metamodulation changes the scale and offset of batch-norm, and this "
                "network has none (the blocks of a wrapped module are hidden); use "
                "another strategy, or a network of this package"
            )
        return tuple(networks)

    def select(tasks: Task, key: Array, size: int) -> tuple[Array, Task, Task]:
        key_partners, key_tasks = jax.random.split(key)
        j = interpolation.sample_partners(key_partners, tasks.domain, "any", size)
        task_i = jax.tree.map(lambda leaf: leaf[:size], tasks)
        task_j = jax.tree.map(lambda leaf: leaf[j], tasks)
        return jax.random.split(key_tasks, size), task_i, task_j

    def combine(inputs: tuple[Array, Task, Task]) -> Task:
        key, task_i, task_j = inputs
        key_mixed, key_lambda, key_mix = jax.random.split(key, 3)
        new, is_mixed = task_i, jnp.zeros((), bool)
        if mixed_share > 0:
            lam = interpolation.sample_lambda(key_lambda, alpha)
            mixed = mix_pair(key_mix, task_i, task_j, lam, mixing)
            is_mixed = jax.random.bernoulli(key_mixed, mixed_share)
            new = jax.tree.map(lambda a, b: jnp.where(is_mixed, a, b), mixed, task_i)
        modulated = _Modulated(
            support=new.support,
            query=new.query,
            domain=new.domain,
            groups=new.groups,
            partner=task_j.support,
            strength=1.0 - is_mixed.astype(jnp.float32),
            unchanged=(task_i.support, task_i.query) if plain_weight > 0 else None,
        )
        return jax.tree.map(lambda leaf: leaf[None], modulated)

    def loss(
        learner: Learner,
        variables: Variables,
        task: Task,
        context: TaskContext,
        layer: int,
    ) -> tuple[Array, Aux]:
        assert isinstance(task, _Modulated)
        assert task.partner is not None
        assert task.strength is not None
        plain = Task(task.support, task.query, task.domain, task.groups)
        changed, divergence = modulate(
            learner, variables, task.partner, context, task.strength, samples
        )
        value, aux = learner.loss(changed, plain, context, layer)
        value = value + kl_weight * divergence
        if task.unchanged is not None:
            support, query = task.unchanged
            unchanged = plain.replace(support=support, query=query)
            of_unchanged, aux_unchanged = learner.loss(
                variables, unchanged, context, layer
            )
            value = value + plain_weight * of_unchanged
            aux = aux.replace(state=aux_unchanged.state)
        return value, aux

    return Strategy(
        name="metamodulation",
        min_tasks=2,
        init=init,
        transform=PerTask(select, combine),
        loss=loss,
    )


def modulate(
    learner: Learner,
    variables: Variables,
    partner: Batch,
    context: TaskContext,
    strength: Array | float = 1.0,
    samples: int = 1,
) -> tuple[Variables, Array]:
    r"""Change scale and offset of every batch-norm as a partner demands.

    Args:
      learner: the learner.
      variables: its variables, with the modulating networks as `strategy`.
      partner: samples of the partner, at the input.
      context: key and mode.
      strength: factor of the changes, and of the divergence.
      samples: the changes are the mean of this many draws.

    Returns:
      The changed variables, and $\sum_l \mathrm{KL}(q_l \| N(0, I))$.
    """
    networks = variables.strategy
    model = list(variables.params["model"])
    key_noise = jax.random.fold_in(context.key, _NOISE)
    key_partner = jax.random.fold_in(context.key, _PARTNER)
    own = network_context(learner.norm, context.train, key_partner, partner.weight)
    h, divergence = partner.x, jnp.zeros(())
    last = max(layer for layer, network in enumerate(networks) if network)
    for layer in range(last + 1):
        h, _ = learner.stack.apply(
            variables.params["model"], variables.state, h, layer, layer + 1, own
        )
        if not networks[layer]:
            continue
        mean, log_variance = _run(networks[layer], _mean_features(h, partner.weight))
        # The mean of S draws is normal with a variance divided by S.
        noise = jax.random.normal(jax.random.fold_in(key_noise, layer), mean.shape)
        spread = jnp.exp(0.5 * log_variance)
        change = mean + spread * noise / math.sqrt(samples)
        model[layer] = _add(model[layer], strength * change)
        divergence = divergence + kl_to_standard_normal(mean, spread)
    params = {**variables.params, "model": tuple(model)}
    return variables.replace(params=params), strength * divergence


def _mean_features(h: Array, weight: Array | None) -> Array:
    """Average over samples and positions, `[N, ..., C]` to `[C]`."""
    by_sample = h.reshape(h.shape[0], -1, h.shape[-1]).mean(axis=1).astype(jnp.float32)
    if weight is None:
        return by_sample.mean(axis=0)
    return weight @ by_sample / jnp.maximum(weight.sum(), 1.0)


def _network(key: Array, inputs: int, outputs: int) -> dict[str, Array]:
    """Initialize a network with a hidden layer as wide as its input."""
    hidden = jax.nn.initializers.glorot_uniform()(key, (inputs, inputs))
    return {
        "hidden_kernel": hidden,
        "hidden_bias": jnp.full((inputs,), 0.1),
        "kernel": jnp.zeros((inputs, 2 * outputs)),
        "bias": jnp.zeros((2 * outputs,)),
    }


def _run(network: dict[str, Array], z: Array) -> tuple[Array, Array]:
    """Compute mean and logarithm of the variance of q, one entry per parameter."""
    # With a ReLU, all units of a narrow layer may be off and stay off.
    hidden = jax.nn.leaky_relu(z @ network["hidden_kernel"] + network["hidden_bias"])
    mean, log_variance = jnp.split(hidden @ network["kernel"] + network["bias"], 2)
    return mean, log_variance


def _is_modulated(path: tuple[Any, ...]) -> bool:
    return jax.tree_util.keystr(path[-1:], simple=True) in MODULATED


def _modulated_leaves(params: PyTree) -> list[Array]:
    """Return scale and offset of every batch-norm of a layer."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [leaf for path, leaf in leaves if _is_modulated(path)]


def _add(params: PyTree, changes: Array) -> PyTree:
    """Add changes, one after the other, to the scales and offsets of a layer."""
    start = 0

    def added(path: tuple[Any, ...], leaf: Array) -> Array:
        nonlocal start
        if not _is_modulated(path):
            return leaf
        own = changes[start : start + leaf.size].reshape(leaf.shape)
        start += leaf.size
        return leaf + own.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(added, params)
