"""Task interpolation, the core of the paper (Sec. 3, Eqs. 5 and 6, Algs. 1 and 3).

Everything here is a pure function of arrays and keys. The functions that make a task
speak of *one* pair of tasks `(T_i, T_j)`; batch them with `jax.vmap`. They neither
know of networks nor of learners: `x` may be raw input (layer 0) or the hidden
representation `H^l` of any layer, as one array or as a pytree of arrays `[N, ...]`.

A *mixing method* decides how two samples become one. It is a function
`(key, lam, x) -> Mixing(coefficient, label_weight)`, where the mixed sample is
`coefficient * x_i + (1 - coefficient) * x_j` and its label
`label_weight * y_i + (1 - label_weight) * y_j`:

* `mixup`: the coefficient is lambda everywhere (Zhang et al. 2018; on hidden
  representations: Manifold Mixup, Verma et al. 2019);
* `cutmix`: the coefficient is 0 in a random box and 1 outside (Yun et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.types import Array, Batch, PyTree, Task

PARTNERS = ("any", "intra", "cross")


class Mixing(NamedTuple):
    """How one pair of tasks is mixed.

    Attributes:
      coefficient: task i's share at every position; broadcasts against a sample.
      label_weight: scalar, task i's share in the label.
    """

    coefficient: Array
    label_weight: Array


Method = Callable[[Array, Array, PyTree], Mixing]


# ------------------------------------------------------------------ mixing methods


def mixup(key: Array, lam: Array, x: PyTree) -> Mixing:
    """Mixup and Manifold Mixup: lambda everywhere, in features and in labels.

    Args:
      key: unused; there so that all methods are called alike.
      lam: scalar in [0, 1].
      x: unused.
    """
    del key, x
    lam = jnp.asarray(lam)
    return Mixing(lam, lam)


def cutmix(key: Array, lam: Array, x: Array) -> Mixing:
    r"""CutMix: a box of task j's image is pasted into task i's.

    The box has the sides :math:`\sqrt{1-\lambda} H` and :math:`\sqrt{1-\lambda} W`
    (rounded down), its centre is uniform over the image, and what lies outside the
    image is cut off. The label weight is the area that really remains of task i, not
    lambda.

    Args:
      key: a PRNG key, for the centre.
      lam: scalar in [0, 1].
      x: images `[N, H, W, C]`; only the shape is used.

    Returns:
      `Mixing` with a coefficient `[H, W, 1]` of zeros and ones.
    """
    if not hasattr(x, "ndim") or x.ndim != 4:
        raise InputError(
            "cutmix needs images [N, H, W, C], got shape "
            f"{getattr(x, 'shape', type(x).__name__)}; use mixup for other features"
        )
    _, height, width, _ = x.shape
    ratio = jnp.sqrt(1.0 - lam)

    def side(key: Array, length: int) -> Array:
        """The ones of the box along one axis, `[length]`."""
        extent = jnp.floor(length * ratio).astype(jnp.int32)
        centre = jax.random.randint(key, (), 0, length)
        start = centre - extent // 2
        position = jnp.arange(length)
        return (position >= start) & (position < start + extent)

    key_rows, key_columns = jax.random.split(key)
    box = side(key_rows, height)[:, None] & side(key_columns, width)[None, :]
    coefficient = 1.0 - box.astype(jnp.float32)
    return Mixing(coefficient[:, :, None], coefficient.mean())


METHODS: dict[str, Method] = {"mixup": mixup, "cutmix": cutmix}


# -------------------------------------------------------------------- random draws


def sample_lambda(
    key: Array, alpha: float | Array, beta: float | Array | None = None, shape=()
) -> Array:
    r"""Draws :math:`\lambda \sim \mathrm{Beta}(\alpha, \beta)`.

    Args:
      key: a PRNG key.
      alpha: first parameter, positive.
      beta: second parameter, positive; equal to `alpha` if not given.
      shape: shape of the draw.
    """
    beta = alpha if beta is None else beta
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_positive(name, value)
    return jax.random.beta(key, alpha, beta, shape)


def check_positive(name: str, value: float | Array) -> None:
    """Refuses a parameter of the Beta distribution that is not positive.

    Traced values can't be looked at and pass.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if not np.all((np.asarray(value) > 0) & np.isfinite(value)):
        raise InputError(f"Beta's {name} must be positive and finite, got {value}")


def sample_partners(
    key: Array, domains: Array, mode: str = "any", num_tasks: int | None = None
) -> Array:
    """Draws the partner j of every task i of a meta-batch (Alg. 1, line 6).

    Args:
      key: a PRNG key.
      domains: `[M]` integers, the source of each candidate.
      mode: `any`, uniform over all candidates, i = j allowed; `intra`, i = j always;
        `cross`, uniform over the candidates of another source. Where the meta-batch
        happens to hold a single source, another task of that source is taken.
      num_tasks: how many of the candidates, from the first on, are given a partner;
        all if not given. The others are there as partners only.

    Returns:
      `[num_tasks]` integers in `[0, M)`.
    """
    chex.assert_rank(domains, 1)
    if mode not in PARTNERS:
        raise unknown_name("choice of partners", mode, PARTNERS)
    num_candidates = domains.shape[0]
    num_tasks = num_candidates if num_tasks is None else num_tasks
    if mode == "intra":
        return jnp.arange(num_tasks)
    if mode == "any":
        return jax.random.randint(key, (num_tasks,), 0, num_candidates)
    if num_candidates < 2:
        raise InputError(
            "cross-task interpolation needs a second task in the meta-batch; raise "
            "the meta-batch size, or use partners 'any' or 'intra'"
        )
    other_source = domains[:num_tasks, None] != domains[None, :]
    other_task = jnp.arange(num_tasks)[:, None] != jnp.arange(num_candidates)
    possible = other_source.any(axis=1, keepdims=True)
    allowed = jnp.where(possible, other_source, other_task)
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf), axis=1)


def sample_layer(key: Array, layers: Sequence[int]) -> Array:
    """Draws one of the `layers` uniformly, as its index into that sequence.

    The index, not the layer, since the parts of a network before and after a layer
    have to be static: hand it to `jax.lax.switch` over one branch a layer.
    """
    return jax.random.randint(key, (), 0, len(layers))


# ------------------------------------------------------------ one set of two tasks


def mix(mixing: Mixing, x_i: PyTree, x_j: PyTree) -> PyTree:
    r"""Features: :math:`c\,x_i + (1-c)\,x_j`, leaf by leaf."""
    c = mixing.coefficient
    return jax.tree.map(lambda a, b: c * a + (1.0 - c) * b, x_i, x_j)


def mix_samples(key: Array, batch_i: Batch, batch_j: Batch, mixing: Mixing) -> Batch:
    r"""Eq. 5 for one set: sample k of task i with a random sample k' of task j.

    .. math::
      \tilde h_k = \lambda h_{i,k} + (1-\lambda) h_{j,k'}, \quad
      \tilde y_k = \lambda y_{i,k} + (1-\lambda) y_{j,k'}

    The pairing :math:`k \mapsto k'` is a random permutation. Two tasks that both list
    their samples by class would otherwise never mix two labels.
    """
    _check_same_shapes(batch_i, batch_j)
    order = jax.random.permutation(key, batch_j.y.shape[0])
    partner = jax.tree.map(lambda leaf: leaf[order], batch_j)
    w = mixing.label_weight
    return Batch(
        x=mix(mixing, batch_i.x, partner.x),
        y=w * batch_i.y + (1.0 - w) * partner.y,
        weight=_both_count(batch_i.weight, partner.weight),
    )


def mix_classes(
    key: Array, batch_i: Batch, batch_j: Batch, classes: Array, mixing: Mixing
) -> Batch:
    r"""Eq. 6 for one set: class r of task i with class r' of task j.

    .. math:: \tilde h_{k;r} = \lambda h_{i,k;r} + (1-\lambda) h_{j,k';r'}

    The mixed samples are a new class, which keeps the number r.

    Args:
      key: a PRNG key; the samples of r' are taken in random order.
      batch_i, batch_j: sets with one-hot labels `[N, C]`, in any order of classes.
        Where r' has fewer samples than r, its samples are taken more than once.
      classes: `[C]` integers, r' for every r.
      mixing: from a mixing method.
    """
    partner = _class_partners(key, batch_i, batch_j, classes)
    x_j = jax.tree.map(lambda leaf: leaf[partner], batch_j.x)
    return batch_i.replace(x=mix(mixing, batch_i.x, x_j))


def _class_partners(
    key: Array, batch_i: Batch, batch_j: Batch, classes: Array
) -> Array:
    """For each sample of i, the row of its partner in j, `[N_i]`.

    The k-th sample of class r is given the k-th of class r' in a random order.
    """
    num_classes = batch_i.y.shape[1]
    class_i = _class_numbers(batch_i)
    class_j = _class_numbers(batch_j)
    noise = jax.random.uniform(key, class_j.shape)
    sorted_j = jnp.lexsort((noise, class_j))
    rank_i = jnp.sum(jnp.tril(class_i[:, None] == class_i[None, :], -1), axis=1)
    count_j = jnp.sum(class_j[:, None] == jnp.arange(num_classes), axis=0)
    first_j = jnp.cumsum(count_j) - count_j
    # Padding carries the number C, which no class has; it is paired with anything.
    wanted = classes[jnp.minimum(class_i, num_classes - 1)]
    return sorted_j[first_j[wanted] + rank_i % jnp.maximum(count_j[wanted], 1)]


def _class_numbers(batch: Batch) -> Array:
    """The class of each sample, `[N]`; C for padding."""
    number = jnp.argmax(batch.y, axis=1)
    if batch.weight is None:
        return number
    return jnp.where(batch.weight > 0, number, batch.y.shape[1])


# ---------------------------------------------------------------- one pair of tasks


def label_sharing(
    key: Array, task_i: Task, task_j: Task, lam: Array, method: Method = mixup
) -> Task:
    r"""Interpolates two tasks with the same label space (Eq. 5).

    Support is mixed with support and query with query, features and labels, by one
    lambda (and one box, with `cutmix`) for both sets.

    Args:
      key: a PRNG key.
      task_i, task_j: tasks of equal shapes; labels soft or hard, or targets.
      lam: scalar in [0, 1], the share of task i.
      method: how two samples are mixed, `mixup` or `cutmix`.

    Returns:
      The interpolated task; it replaces task i and keeps its `domain`.

    Example:
      >>> batch = Batch(x=jnp.ones((4, 2)), y=jnp.eye(2).repeat(2, axis=0))
      >>> task_i = Task(support=batch, query=batch, domain=jnp.int32(0))
      >>> task_j = jax.tree.map(jnp.zeros_like, task_i)
      >>> mixed = label_sharing(jax.random.key(0), task_i, task_j, lam=0.75)
      >>> mixed.support.x[0].tolist(), mixed.support.y[0].tolist()
      ([0.75, 0.75], [0.75, 0.0])
    """
    key_method, key_support, key_query = jax.random.split(key, 3)
    mixing = method(key_method, lam, task_i.support.x)
    return task_i.replace(
        support=mix_samples(key_support, task_i.support, task_j.support, mixing),
        query=mix_samples(key_query, task_i.query, task_j.query, mixing),
    )


def non_label_sharing(
    key: Array, task_i: Task, task_j: Task, lam: Array, method: Method = mixup
) -> Task:
    r"""Interpolates two tasks with different label spaces (Eq. 6).

    The classes of task j are matched with those of task i by a random permutation, so
    that the pairs are drawn without replacement; each pair of classes becomes one new
    class, in support and query alike. Metric-based learners use this form on
    label-sharing tasks too, since there are no prototypes of mixed labels.

    Args:
      key: a PRNG key.
      task_i, task_j: tasks of equal shapes with one-hot labels.
      lam: scalar in [0, 1], the share of task i.
      method: how two samples are mixed, `mixup` or `cutmix`.

    Returns:
      The interpolated task; labels and `domain` are those of task i.
    """
    _check_same_shapes(task_i, task_j)
    key_method, key_classes, key_support, key_query = jax.random.split(key, 4)
    mixing = method(key_method, lam, task_i.support.x)
    classes = jax.random.permutation(key_classes, task_i.support.y.shape[1])
    return task_i.replace(
        support=mix_classes(
            key_support, task_i.support, task_j.support, classes, mixing
        ),
        query=mix_classes(key_query, task_i.query, task_j.query, classes, mixing),
    )


def query_only(key: Array, task: Task, lam: Array, method: Method = mixup) -> Task:
    r"""Interpolates the query set of one task with itself, labels mixed (i = j).

    The paper's choice for i = j on its non-label-sharing image sets (App. E.1). The
    support set stays as it is. Pairs of classes, as in Eq. 6, would make classes that
    the support lacks, so this is Eq. 5 inside the task; it works for every learner.
    """
    key_method, key_query = jax.random.split(key)
    mixing = method(key_method, lam, task.query.x)
    return task.replace(query=mix_samples(key_query, task.query, task.query, mixing))


FORMS = {"label_sharing": label_sharing, "non_label_sharing": non_label_sharing}


def _both_count(weight_i: Array | None, weight_j: Array | None) -> Array | None:
    """A mixed sample counts only if both its parts do."""
    if weight_i is None or weight_j is None:
        return weight_j if weight_i is None else weight_i
    return weight_i * weight_j


def _check_same_shapes(a: PyTree, b: PyTree) -> None:
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (a, b)]
    if shapes[0] != shapes[1]:
        raise InputError(
            "two tasks can only be interpolated if their shapes are equal, got "
            f"{shapes[0]} and {shapes[1]}; draw both with the same ways, shots and "
            "queries"
        )
