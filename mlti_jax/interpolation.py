r"""Task interpolation, the core of the paper (Sec. 3, Eqs. 5 and 6, Algs. 1 and 3).

All functions are pure functions of arrays and PRNG keys. `label_sharing`,
`non_label_sharing` and `query_only` return *one* interpolated task; batch them with
`jax.vmap`. They do not depend on networks or learners: `x` is the raw input (layer 0)
or the hidden representation $H^l$ of any layer, as one array or as a pytree of arrays
`[N, ...]`.

A *mixing method* decides how two samples become one. It is a function
`(key, lam, x) -> Mixing(coefficient, label_weight)`. The mixed sample is
`coefficient * x_i + (1 - coefficient) * x_j`, and its label is
`label_weight * y_i + (1 - label_weight) * y_j`:

* `mixup`: the coefficient is $\lambda$ everywhere (Zhang et al. 2018; on hidden
  representations: Manifold Mixup, Verma et al. 2019);
* `cutmix`: the coefficient is 0 in a random box and 1 outside (Yun et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import check_positive, unknown_name
from mlti_jax.errors import InputError
from mlti_jax.types import Array, Batch, PyTree, Task

__all__ = [
    "Method",
    "Mixing",
    "cutmix",
    "label_sharing",
    "mix",
    "mix_classes",
    "mix_samples",
    "mixup",
    "non_label_sharing",
    "query_only",
    "sample_lambda",
    "sample_layer",
    "sample_partners",
]

_PARTNERS = ("any", "intra", "cross")
_BOXES = ("shared", "separate")
# Folded into the key of a pair. Its split into up to four keys is `fold_in` of 0 to 3.
_QUERY_BOX = 4


class Mixing(NamedTuple):
    """How two samples are mixed; the result of a mixing method.

    Attributes:
      coefficient: share of task i at every position; broadcasts against a sample.
      label_weight: scalar, share of task i in the label.
    """

    coefficient: Array
    label_weight: Array


Method = Callable[[Array, float | Array, PyTree], Mixing]


# ------------------------------------------------------------------ mixing methods


def mixup(key: Array, lam: float | Array, x: PyTree) -> Mixing:
    r"""Mixup and Manifold Mixup: $\lambda$ everywhere, in features and in labels.

    Args:
      key: unused; part of the signature of all mixing methods.
      lam: scalar in [0, 1], the share of task i.
      x: unused.

    Returns:
      `Mixing(lam, lam)`, two scalars.

    Examples:
      >>> import jax
      >>> from mlti_jax import interpolation
      >>> mixing = interpolation.mixup(jax.random.key(0), 0.75, None)
      >>> float(mixing.coefficient), float(mixing.label_weight)
      (0.75, 0.75)
    """
    del key, x
    lam = jnp.asarray(lam)
    return Mixing(lam, lam)


def cutmix(key: Array, lam: float | Array, x: Array) -> Mixing:
    r"""CutMix: pastes a box from the image of task j into the image of task i.

    The box has the sides $\lfloor \sqrt{1-\lambda}\,H \rfloor$ and
    $\lfloor \sqrt{1-\lambda}\,W \rfloor$. Its center is uniform over the image, and the
    part outside of the image is clipped. The label weight is the share of the area that
    remains of task i after clipping, not $\lambda$.

    Args:
      key: a PRNG key, for the center of the box.
      lam: scalar in [0, 1].
      x: images `[N, H, W, C]`; only the shape is used.

    Returns:
      `Mixing` with a coefficient `[H, W, 1]` of zeros (in the box) and ones.

    Raises:
      InputError: if `x` is not one array of rank 4.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> images = jnp.zeros((1, 4, 4, 3))
      >>> mixing = interpolation.cutmix(jax.random.key(1), 0.75, images)
      >>> mixing.coefficient[:, :, 0].astype(int)  # a box of 2 x 2, half of it outside
      Array([[1, 1, 1, 1],
             [1, 1, 1, 1],
             [0, 1, 1, 1],
             [0, 1, 1, 1]], dtype=int32)
      >>> float(mixing.label_weight)
      0.875
    """
    if not hasattr(x, "ndim") or x.ndim != 4:
        raise InputError(
            "cutmix needs images [N, H, W, C], got shape "
            f"{getattr(x, 'shape', type(x).__name__)}; use mixup for other features"
        )
    _, height, width, _ = x.shape
    ratio = jnp.sqrt(1.0 - lam)

    def side(key: Array, length: int) -> Array:
        """Mark the positions inside the box along one axis, `[length]`."""
        extent = jnp.floor(length * ratio).astype(jnp.int32)
        centre = jax.random.randint(key, (), 0, length)
        start = centre - extent // 2
        position = jnp.arange(length)
        return (position >= start) & (position < start + extent)

    key_rows, key_columns = jax.random.split(key)
    box = side(key_rows, height)[:, None] & side(key_columns, width)[None, :]
    coefficient = 1.0 - box.astype(jnp.float32)
    return Mixing(coefficient[:, :, None], coefficient.mean())


# -------------------------------------------------------------------- random draws


def sample_lambda(
    key: Array,
    alpha: float | Array,
    beta: float | Array | None = None,
    shape: tuple[int, ...] = (),
) -> Array:
    r"""Draw $\lambda \sim \mathrm{Beta}(\alpha, \beta)$.

    Args:
      key: a PRNG key.
      alpha: first parameter, positive.
      beta: second parameter, positive; equal to `alpha` by default.
      shape: shape of the draw.

    Returns:
      Values in [0, 1] of the given shape.

    Raises:
      InputError: if `alpha` or `beta` is not positive and finite. Traced values are not
        checked.

    Examples:
      >>> import jax
      >>> from mlti_jax import interpolation
      >>> lam = interpolation.sample_lambda(jax.random.key(0), 2.0, shape=(1000,))
      >>> lam.shape, round(float(lam.mean()), 1)
      ((1000,), 0.5)
    """
    beta = alpha if beta is None else beta
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_positive(name, value)
    return jax.random.beta(key, alpha, beta, shape)


def sample_partners(
    key: Array, domains: Array, mode: str = "any", num_tasks: int | None = None
) -> Array:
    r"""Draw a partner j for every task i of a meta-batch (Alg. 1, line 6).

    Args:
      key: a PRNG key.
      domains: `[M]` integers, the source of each candidate.
      mode: `any`, uniform over all candidates including i; `intra`, always $j = i$;
        `cross`, uniform over the candidates from other sources. If all candidates come
        from one source, `cross` draws another task of that source.
      num_tasks: number of tasks, counted from the first candidate, that get a partner;
        all by default. The other candidates only serve as partners.

    Returns:
      `[num_tasks]` integers in `[0, M)`.

    Raises:
      InputError: if `mode` is unknown, or if `mode` is `cross` and the meta-batch has a
        single task.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> domains = jnp.array([7, 7, 3])
      >>> interpolation.sample_partners(jax.random.key(0), domains, "intra").tolist()
      [0, 1, 2]
      >>> j = interpolation.sample_partners(jax.random.key(0), domains, "cross")
      >>> j[:2].tolist()  # the only candidate from another source
      [2, 2]
    """
    chex.assert_rank(domains, 1)
    if mode not in _PARTNERS:
        raise unknown_name("choice of partners", mode, _PARTNERS)
    num_candidates = domains.shape[0]
    num_tasks = num_candidates if num_tasks is None else num_tasks
    if mode == "intra":
        return jnp.arange(num_tasks)
    if mode == "any":
        return jax.random.randint(key, (num_tasks,), 0, num_candidates)
    if num_candidates < 2:
        raise InputError(
            "cross-task interpolation needs a second task in the meta-batch, got 1; "
            "increase the meta-batch size, or use partners 'any' or 'intra'"
        )
    other_source = domains[:num_tasks, None] != domains[None, :]
    other_task = jnp.arange(num_tasks)[:, None] != jnp.arange(num_candidates)
    possible = other_source.any(axis=1, keepdims=True)
    allowed = jnp.where(possible, other_source, other_task)
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf), axis=1)


def sample_layer(key: Array, layers: Sequence[int]) -> Array:
    """Draw one of the `layers` uniformly, as an index into that sequence.

    The result is an index because the parts of a network before and after a layer are
    static: pass it to `jax.lax.switch` with one branch per layer.

    Args:
      key: a PRNG key.
      layers: the layers to choose from.

    Returns:
      A scalar integer in `[0, len(layers))`.

    Examples:
      >>> import jax
      >>> from mlti_jax import interpolation
      >>> layers = (0, 2, 3)
      >>> index = interpolation.sample_layer(jax.random.key(0), layers)
      >>> layers[int(index)] in layers
      True
    """
    return jax.random.randint(key, (), 0, len(layers))


# ------------------------------------------------------------ one set of two tasks


def mix(mixing: Mixing, x_i: PyTree, x_j: PyTree) -> PyTree:
    r"""Mix features, $c\,x_i + (1-c)\,x_j$, leaf by leaf.

    Args:
      mixing: from a mixing method; $c$ is its `coefficient`.
      x_i: features of task i, every leaf `[N, ...]`.
      x_j: features of task j, with the same structure and shapes.

    Returns:
      The mixed features, with the structure and shapes of `x_i`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> half = interpolation.Mixing(jnp.float32(0.5), jnp.float32(0.5))
      >>> interpolation.mix(half, jnp.zeros((1, 3)), jnp.ones((1, 3))).tolist()
      [[0.5, 0.5, 0.5]]
    """
    c = mixing.coefficient
    return jax.tree.map(lambda a, b: c * a + (1.0 - c) * b, x_i, x_j)


def mix_samples(key: Array, batch_i: Batch, batch_j: Batch, mixing: Mixing) -> Batch:
    r"""Mix sample k of one set with a random sample k' of another (Eq. 5).

    $$\tilde h_k = \lambda h_{i,k} + (1-\lambda) h_{j,k'}, \quad
      \tilde y_k = \lambda y_{i,k} + (1-\lambda) y_{j,k'}$$

    The pairing $k \mapsto k'$ is a random permutation. Without it, two tasks that both
    list their samples by class would never mix different labels.

    Args:
      key: a PRNG key, for the permutation.
      batch_i: the set of task i; labels `[N, C]`, hard or soft, or targets `[N, D]`.
      batch_j: the set of task j, with the same shapes.
      mixing: from a mixing method.

    Returns:
      The mixed set. A mixed sample is padding if one of its parts is.

    Raises:
      InputError: if the shapes differ.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> from mlti_jax.types import Batch
      >>> zeros = Batch(x=jnp.zeros((2, 1)), y=jnp.array([[1.0, 0.0]] * 2))
      >>> ones = Batch(x=jnp.ones((2, 1)), y=jnp.array([[0.0, 1.0]] * 2))
      >>> mixing = interpolation.mixup(None, 0.75, None)
      >>> mixed = interpolation.mix_samples(jax.random.key(0), zeros, ones, mixing)
      >>> mixed.x.tolist(), mixed.y.tolist()
      ([[0.25], [0.25]], [[0.75, 0.25], [0.75, 0.25]])
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
    r"""Mix class r of one set with class r' of another (Eq. 6).

    $$\tilde h_{k;r} = \lambda h_{i,k;r} + (1-\lambda) h_{j,k';r'}$$

    The mixed samples form a new class, which keeps the label r.

    Args:
      key: a PRNG key, for the order in which the samples of r' are used.
      batch_i: the set of task i, with one-hot labels `[N_i, C]` in any order.
      batch_j: the set of task j, with one-hot labels `[N_j, C]` in any order. If r' has
        fewer samples than r, its samples are used more than once.
      classes: `[C]` integers, r' for every r.
      mixing: from a mixing method.

    Returns:
      The mixed set; labels and weights are those of `batch_i`.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> from mlti_jax.types import Batch
      >>> batch_i = Batch(x=jnp.array([[0.0], [10.0]]), y=jnp.eye(2))
      >>> batch_j = Batch(x=jnp.array([[2.0], [4.0]]), y=jnp.eye(2))
      >>> mixing = interpolation.mixup(None, 0.5, None)
      >>> classes = jnp.array([1, 0])  # class 0 with class 1, and 1 with 0
      >>> mixed = interpolation.mix_classes(
      ...     jax.random.key(0), batch_i, batch_j, classes, mixing
      ... )
      >>> mixed.x.tolist(), mixed.y.tolist()
      ([[2.0], [6.0]], [[1.0, 0.0], [0.0, 1.0]])
    """
    partner = _class_partners(key, batch_i, batch_j, classes)
    x_j = jax.tree.map(lambda leaf: leaf[partner], batch_j.x)
    return batch_i.replace(x=mix(mixing, batch_i.x, x_j))


def _class_partners(
    key: Array, batch_i: Batch, batch_j: Batch, classes: Array
) -> Array:
    """Return the row in j of the partner of each sample of i, `[N_i]`.

    The k-th sample of class r gets the k-th sample of class r' in a random order.
    """
    num_classes = batch_i.y.shape[1]
    class_i = _class_numbers(batch_i)
    class_j = _class_numbers(batch_j)
    noise = jax.random.uniform(key, class_j.shape)
    sorted_j = jnp.lexsort((noise, class_j))
    rank_i = jnp.sum(jnp.tril(class_i[:, None] == class_i[None, :], -1), axis=1)
    count_j = jnp.sum(class_j[:, None] == jnp.arange(num_classes), axis=0)
    first_j = jnp.cumsum(count_j) - count_j
    # The class number of padding is C, which no class has: any partner will do.
    wanted = classes[jnp.minimum(class_i, num_classes - 1)]
    return sorted_j[first_j[wanted] + rank_i % jnp.maximum(count_j[wanted], 1)]


def _class_numbers(batch: Batch) -> Array:
    """Return the class of each sample, `[N]`; C for padding."""
    # Not argmax: fused with the one-hot labels of a drawn task, it takes LLVM a time
    # that doubles with every further class (20 classes: minutes).
    number = jnp.sum(batch.y * jnp.arange(batch.y.shape[1]), axis=1).astype(jnp.int32)
    if batch.weight is None:
        return number
    return jnp.where(batch.weight > 0, number, batch.y.shape[1])


# ---------------------------------------------------------------- one pair of tasks


def label_sharing(
    key: Array,
    task_i: Task,
    task_j: Task,
    lam: float | Array,
    method: Method = mixup,
    boxes: str = "shared",
) -> Task:
    r"""Interpolate two tasks with the same label space (Eq. 5).

    $$\tilde H = \lambda H_i + (1-\lambda) H_j, \quad
      \tilde Y = \lambda Y_i + (1-\lambda) Y_j$$

    for support with support and query with query. Both sets share one $\lambda$ and,
    with `cutmix`, one box by default. Each set of task j is permuted at random, see
    `mix_samples`.

    Args:
      key: a PRNG key.
      task_i: the task to replace; labels hard or soft, or targets.
      task_j: its partner, with the same shapes.
      lam: scalar in [0, 1], the share of task i.
      method: how two samples are mixed, `mixup` or `cutmix`.
      boxes: `shared` applies `method` once for both sets. `separate` applies it to each
        set, so `cutmix` draws two boxes, which differ in their area after clipping.

    Returns:
      The interpolated task; it replaces task i and keeps its `domain`.

    Raises:
      InputError: if the shapes of the tasks differ, or `boxes` is unknown.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> from mlti_jax.types import Batch, Task
      >>> batch = Batch(x=jnp.ones((4, 2)), y=jnp.eye(2).repeat(2, axis=0))
      >>> task_i = Task(support=batch, query=batch, domain=jnp.int32(0))
      >>> task_j = jax.tree.map(jnp.zeros_like, task_i)
      >>> mixed = interpolation.label_sharing(jax.random.key(0), task_i, task_j, 0.75)
      >>> mixed.support.x[0].tolist(), mixed.support.y[0].tolist()
      ([0.75, 0.75], [0.75, 0.0])
    """
    key_method, key_support, key_query = jax.random.split(key, 3)
    mixing = method(key_method, lam, task_i.support.x)
    of_query = _mixing_of_query(key, task_i, lam, method, mixing, boxes)
    return task_i.replace(
        support=mix_samples(key_support, task_i.support, task_j.support, mixing),
        query=mix_samples(key_query, task_i.query, task_j.query, of_query),
    )


def non_label_sharing(
    key: Array,
    task_i: Task,
    task_j: Task,
    lam: float | Array,
    method: Method = mixup,
    boxes: str = "shared",
) -> Task:
    r"""Interpolate two tasks with different label spaces (Eq. 6).

    $$\tilde H_r = \lambda H_{i;r} + (1-\lambda) H_{j;r'}, \quad r = 1, \dots, C$$

    The pairing $r \mapsto r'$ is a random permutation of the classes, the same for
    support and query. Each pair becomes one new class with the label r. Both sets share
    one $\lambda$ and, with `cutmix`, one box by default. Metric-based learners use this
    form on label-sharing tasks too, because prototypes need hard labels.

    Args:
      key: a PRNG key.
      task_i: the task to replace, with one-hot labels.
      task_j: its partner, with the same shapes and one-hot labels.
      lam: scalar in [0, 1], the share of task i.
      method: how two samples are mixed, `mixup` or `cutmix`.
      boxes: `shared` applies `method` once for both sets. `separate` applies it to each
        set, so `cutmix` draws two boxes, which differ in their area after clipping.

    Returns:
      The interpolated task; labels and `domain` are those of task i.

    Raises:
      InputError: if the shapes of the tasks differ, or `boxes` is unknown.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> from mlti_jax.types import Batch, Task
      >>> batch = Batch(x=jnp.ones((4, 2)), y=jnp.eye(2).repeat(2, axis=0))
      >>> task_i = Task(support=batch, query=batch, domain=jnp.int32(0))
      >>> task_j = jax.tree.map(jnp.zeros_like, batch).replace(y=batch.y)
      >>> task_j = task_i.replace(support=task_j, query=task_j)
      >>> mixed = interpolation.non_label_sharing(
      ...     jax.random.key(0), task_i, task_j, 0.75
      ... )
      >>> mixed.support.x[0].tolist(), mixed.support.y[0].tolist()
      ([0.75, 0.75], [1.0, 0.0])
    """
    _check_same_shapes(task_i, task_j)
    key_method, key_classes, key_support, key_query = jax.random.split(key, 4)
    mixing = method(key_method, lam, task_i.support.x)
    of_query = _mixing_of_query(key, task_i, lam, method, mixing, boxes)
    classes = jax.random.permutation(key_classes, task_i.support.y.shape[1])
    return task_i.replace(
        support=mix_classes(
            key_support, task_i.support, task_j.support, classes, mixing
        ),
        query=mix_classes(key_query, task_i.query, task_j.query, classes, of_query),
    )


def _mixing_of_query(
    key: Array,
    task: Task,
    lam: float | Array,
    method: Method,
    of_support: Mixing,
    boxes: str,
) -> Mixing:
    """Return how the query sets of a pair are mixed."""
    if boxes not in _BOXES:
        raise unknown_name("choice of boxes", boxes, _BOXES)
    if boxes == "shared":
        return of_support
    return method(jax.random.fold_in(key, _QUERY_BOX), lam, task.query.x)


def query_only(
    key: Array, task: Task, lam: float | Array, method: Method = mixup
) -> Task:
    r"""Interpolate the query set of one task with itself ($i = j$).

    $$\tilde h^q_k = \lambda h^q_k + (1-\lambda) h^q_{k'}, \quad
      \tilde y^q_k = \lambda y^q_k + (1-\lambda) y^q_{k'}$$

    with a random permutation $k \mapsto k'$. The paper uses it for $i = j$ on its
    non-label-sharing image datasets (App. E.1). It is Eq. 5 inside the task, because
    pairs of classes (Eq. 6) would create classes that the support set lacks. Every
    learner can use it.

    Args:
      key: a PRNG key.
      task: a task; labels hard or soft, or targets.
      lam: scalar in [0, 1].
      method: how two samples are mixed, `mixup` or `cutmix`.

    Returns:
      The task with a new query set; the support set is unchanged.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from mlti_jax import interpolation
      >>> from mlti_jax.types import Batch, Task
      >>> batch = Batch(x=jnp.array([[2.0], [4.0]]), y=jnp.eye(2))
      >>> task = Task(support=batch, query=batch, domain=jnp.int32(0))
      >>> mixed = interpolation.query_only(jax.random.key(4), task, 0.75)
      >>> mixed.query.x.tolist(), mixed.query.y.tolist()
      ([[2.5], [3.5]], [[0.75, 0.25], [0.25, 0.75]])
      >>> mixed.support.x.tolist()
      [[2.0], [4.0]]
    """
    key_method, key_query = jax.random.split(key)
    mixing = method(key_method, lam, task.query.x)
    return task.replace(query=mix_samples(key_query, task.query, task.query, mixing))


def _both_count(weight_i: Array | None, weight_j: Array | None) -> Array | None:
    """Weights of mixed samples, which count only if both of their parts do."""
    if weight_i is None or weight_j is None:
        return None  # `_check_same_shapes` raises if only one of them is None.
    return weight_i * weight_j


def _check_same_shapes(a: PyTree, b: PyTree) -> None:
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (a, b)]
    if shapes[0] != shapes[1]:
        raise InputError(
            "two tasks can only be interpolated if their shapes are equal, got "
            f"{shapes[0]} and {shapes[1]}; draw both with the same ways, shots and "
            "queries"
        )
