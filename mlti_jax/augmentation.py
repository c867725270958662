"""Augmentation inside one task, which MLTI also takes where i = j (Sec. 3).

As in `interpolation`, everything is a pure function of *one* task and a key, and x may
be the input or the hidden representation of any layer. `interpolation.query_only` is
of this kind too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.interpolation import Method, Mixing, mix, mix_classes, mixup
from mlti_jax.types import Array, Batch, Task


def query_with_support(
    key: Array, task: Task, lam: Array, method: Method = mixup
) -> Task:
    r"""MetaMix (Yao et al. 2021, Eq. 4): the query set mixed with support samples.

    .. math::
      \tilde h^q_k = \lambda h^q_k + (1-\lambda) h^s_{k'}, \quad
      \tilde y^q_k = \lambda y^q_k + (1-\lambda) y^s_{k'}

    with k' uniform over the support samples, drawn for each k. The support set stays
    as it is, so that this serves every learner, with soft labels in the query.

    Args:
      key: a PRNG key.
      task: a task; labels soft or hard, or targets.
      lam: scalar in [0, 1], the share of the query sample.
      method: how two samples are mixed, `mixup` or `cutmix`.
    """
    key_method, key_rows = jax.random.split(key)
    mixing = method(key_method, lam, task.query.x)
    support, query = task.support, task.query
    rows = _random_rows(key_rows, support, query.y.shape[0])
    w = mixing.label_weight
    partner = jax.tree.map(lambda leaf: leaf[rows], support.x)
    return task.replace(
        query=query.replace(
            x=mix(mixing, query.x, partner),
            y=w * query.y + (1.0 - w) * support.y[rows],
        )
    )


def _random_rows(key: Array, batch: Batch, number: int) -> Array:
    """`number` rows of a set, each drawn uniformly from those that count."""
    size = batch.y.shape[0]
    if batch.weight is None:
        return jax.random.randint(key, (number,), 0, size)
    allowed = jnp.where(batch.weight > 0, 0.0, -jnp.inf)
    return jax.random.categorical(key, allowed, shape=(number,))


def shuffle_channels(key: Array, task: Task, rate: Array) -> Task:
    r"""MetaMix's channel shuffle: some channels of a class come from another class.

    .. math:: \tilde h_{k;r} = R\, h_{k;r} + (I - R)\, h_{k';r'}, \quad
              R = \mathrm{diag}(r_1, \dots, r_p),\; r_t \sim \mathrm{Bernoulli}(\delta)

    Every class r has another one as its r', in a random circle; R is one for the task,
    in support and query alike; the samples keep the label r.

    Args:
      key: a PRNG key.
      task: a task with one-hot labels, whose x is one array `[N, ..., p]`.
      rate: scalar in [0, 1], delta: the share of channels that are kept.
    """
    if not hasattr(task.support.x, "shape"):
        raise InputError(
            "channel shuffle needs features [N, ..., channels], got a "
            f"{type(task.support.x).__name__}; switch it off for this network, or mix "
            "at a layer that gives one array"
        )
    key_kept, key_classes, key_support, key_query = jax.random.split(key, 4)
    channels = task.support.x.shape[-1]
    kept = jax.random.bernoulli(key_kept, rate, (channels,)).astype(jnp.float32)
    mixing = Mixing(kept, jnp.float32(1.0))
    # In a random circle of all classes, each has the next one as its partner.
    circle = jax.random.permutation(key_classes, task.support.y.shape[1])
    classes = jnp.zeros_like(circle).at[circle].set(jnp.roll(circle, -1))

    def shuffled(key: Array, batch: Batch) -> Batch:
        return mix_classes(key, batch, batch, classes, mixing)

    return task.replace(
        support=shuffled(key_support, task.support),
        query=shuffled(key_query, task.query),
    )
