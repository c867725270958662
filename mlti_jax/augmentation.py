r"""Augmentation within one task, which MLTI can also use for $i = j$ (Sec. 3).

As in `mlti_jax.interpolation`, all functions are pure functions of *one* task and a
PRNG key, and `x` is the input or the hidden representation of any layer.
`interpolation.query_only` is a third augmentation of this kind.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax.errors import InputError
from mlti_jax.interpolation import Method, Mixing, mix, mix_classes, mixup
from mlti_jax.types import Array, Batch, Task

__all__ = ["query_with_support", "shuffle_channels"]


def query_with_support(
    key: Array, task: Task, lam: float | Array, method: Method = mixup
) -> Task:
    r"""Mix the query set with samples of the support set (MetaMix).

    $$\tilde h^q_k = \lambda h^q_k + (1-\lambda) h^s_{k'}, \quad
      \tilde y^q_k = \lambda y^q_k + (1-\lambda) y^s_{k'}$$

    with $k'$ drawn uniformly from the support samples for each $k$ (Yao et al. 2021,
    Eq. 4). The support set keeps its hard labels, so every learner can use it.

    Args:
      key: a PRNG key.
      task: a task; labels hard or soft, or targets.
      lam: scalar in [0, 1], the share of the query sample.
      method: how two samples are mixed, `mixup` or `cutmix`.

    Returns:
      The task with a new query set; the support set is unchanged. Padding in the
      support set is never drawn.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import augmentation
      >>> from mlti_jax.types import Batch, Task
      >>> support = Batch(x=jnp.zeros((1, 2)), y=jnp.array([[1.0, 0.0]]))
      >>> query = Batch(x=jnp.ones((3, 2)), y=jnp.array([[0.0, 1.0]] * 3))
      >>> task = Task(support=support, query=query, domain=jnp.int32(0))
      >>> mixed = augmentation.query_with_support(jax.random.key(0), task, 0.75)
      >>> mixed.query.x[0].tolist(), mixed.query.y[0].tolist()
      ([0.75, 0.75], [0.25, 0.75])
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
    """Draw `number` rows of a set, each uniformly from those that count."""
    size = batch.y.shape[0]
    if batch.weight is None:
        return jax.random.randint(key, (number,), 0, size)
    allowed = jnp.where(batch.weight > 0, 0.0, -jnp.inf)
    return jax.random.categorical(key, allowed, shape=(number,))


def shuffle_channels(key: Array, task: Task, rate: float | Array) -> Task:
    r"""Replace some channels of each class with those of another class (MetaMix).

    $$\tilde h_{k;r} = R\, h_{k;r} + (I - R)\, h_{k';r'}, \quad
      R = \mathrm{diag}(r_1, \dots, r_p),\; r_t \sim \mathrm{Bernoulli}(\delta)$$

    The partner class $r' \ne r$ is the next class in a random circle of all classes.
    Support and query share $R$ and the circle, and the samples keep the label $r$.

    Args:
      key: a PRNG key.
      task: a task with one-hot labels, whose x is one array `[N, ..., p]`.
      rate: scalar in [0, 1], $\delta$: the expected share of channels to keep.

    Returns:
      The task with new features; labels and weights are unchanged.

    Raises:
      InputError: if x is a pytree of several arrays.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import augmentation
      >>> from mlti_jax.types import Batch, Task
      >>> batch = Batch(x=jnp.array([[1.0, 1, 1, 1], [2, 2, 2, 2]]), y=jnp.eye(2))
      >>> task = Task(support=batch, query=batch, domain=jnp.int32(0))
      >>> shuffled = augmentation.shuffle_channels(jax.random.key(0), task, 0.5)
      >>> shuffled.support.x.tolist()
      [[2.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 2.0]]
    """
    if not hasattr(task.support.x, "shape"):
        raise InputError(
            "channel shuffle needs features [N, ..., channels], got a "
            f"{type(task.support.x).__name__}; disable it for this network, or mix at "
            "a layer whose output is one array"
        )
    key_kept, key_classes, key_support, key_query = jax.random.split(key, 4)
    channels = task.support.x.shape[-1]
    kept = jax.random.bernoulli(key_kept, rate, (channels,)).astype(jnp.float32)
    mixing = Mixing(kept, jnp.float32(1.0))
    # The partner of each class is the next one in a random circle of all classes.
    circle = jax.random.permutation(key_classes, task.support.y.shape[1])
    classes = jnp.zeros_like(circle).at[circle].set(jnp.roll(circle, -1))

    def shuffled(key: Array, batch: Batch) -> Batch:
        return mix_classes(key, batch, batch, classes, mixing)

    return task.replace(
        support=shuffled(key_support, task.support),
        query=shuffled(key_query, task.query),
    )
