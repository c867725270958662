"""MLTI (Sec. 3) and its two halves, intra- and cross-task interpolation (Sec. 5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from mlti_jax import augmentation, interpolation
from mlti_jax._internal.checks import check_positive, unknown_name
from mlti_jax.interpolation import Method
from mlti_jax.strategies._base import PerTask, Strategy
from mlti_jax.strategies._mixing import PAIR_FUNCTIONS, check_boxes, check_mixing
from mlti_jax.types import Array, Task

# (key, task, lambda, method) -> task: an augmentation within one task
Within = Callable[[Array, Task, Array, Method], Task]
WITHIN: dict[str, Within | None] = {
    "both": None,  # support and query are mixed as in any other pair
    "query": interpolation.query_only,
    "metamix": augmentation.query_with_support,
}


def mlti(
    *,
    setting: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    alpha_intra: float | None = None,
    partners: str = "any",
    within: str | Within = "both",
    boxes: str = "shared",
) -> Strategy:
    r"""Replace every task of the meta-batch with an interpolated one (Algs. 1 and 3).

    For each task i a partner j is drawn from the meta-batch and
    $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$; support and query are then both mixed
    with Eq. 5 or 6. One layer is drawn for the whole meta-batch, where Alg. 1 draws one
    per task: the distribution of every task is the same, and the compiled step runs
    only one branch.

    Args:
      setting: `label_sharing` or `regression` (Eq. 5), or `non_label_sharing` (Eq. 6).
      method: `mixup` (Manifold Mixup at layers above 0) or `cutmix`.
      layers: the layers to draw from; 0 is the input.
      alpha: both parameters of the Beta distribution.
      alpha_intra: the same if i = j; None means `alpha`.
      partners: `any`, `intra` or `cross`, see `interpolation.sample_partners`.
      within: what happens if i = j: `both` sets are mixed as in any other pair, the
        `query` set is mixed with itself, or with the support set (`metamix`); or any
        other augmentation, as a function `(key, task, lambda, method) -> task`.
      boxes: `shared` cuts one box for the support and the query set of a new task with
        `cutmix`; `separate` draws one for each set, as the released code does. Support
        and query then differ in how much they have of each task.

    Examples:
      >>> strategy = mlti(setting="non_label_sharing", method="cutmix", within="query")
      >>> strategy.layers, strategy.min_tasks
      ((0,), 2)
    """
    mixing = check_mixing(setting, method, layers, alpha)
    check_boxes(boxes, method)
    if partners not in interpolation._PARTNERS:
        raise unknown_name("choice of partners", partners, interpolation._PARTNERS)
    if not callable(within) and within not in WITHIN:
        raise unknown_name("augmentation within a task", within, WITHIN)
    augment = within if callable(within) else WITHIN[within]
    alpha_within = alpha if alpha_intra is None else alpha_intra
    check_positive("alpha_intra", alpha_within)
    mix_pair = partial(PAIR_FUNCTIONS[setting], boxes=boxes)

    def one_task(key: Array, same: Array, task_i: Task, task_j: Task) -> Task:
        key_lambda, key_mix, key_within = jax.random.split(key, 3)
        lam = interpolation.sample_lambda(
            key_lambda, jnp.where(same, alpha_within, alpha)
        )
        mixed = mix_pair(key_mix, task_i, task_j, lam, mixing)
        if augment is None:
            return mixed
        augmented = augment(key_within, task_i, lam, mixing)
        return jax.tree.map(partial(jnp.where, same), augmented, mixed)

    def select(tasks: Task, key: Array, size: int) -> tuple[Array, Array, Task, Task]:
        key_partners, key_tasks = jax.random.split(key)
        j = interpolation.sample_partners(key_partners, tasks.domain, partners, size)
        task_i = jax.tree.map(lambda leaf: leaf[:size], tasks)
        task_j = jax.tree.map(lambda leaf: leaf[j], tasks)
        keys = jax.random.split(key_tasks, size)
        return keys, j == jnp.arange(size), task_i, task_j

    def combine(inputs: tuple[Array, Array, Task, Task]) -> Task:
        return jax.tree.map(lambda leaf: leaf[None], one_task(*inputs))

    return Strategy(
        name="mlti",
        layers=tuple(layers),
        min_tasks=1 if partners == "intra" else 2,
        transform=PerTask(select, combine),
    )


def intra(
    *,
    setting: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    within: str | Within = "both",
    boxes: str = "shared",
) -> Strategy:
    """Interpolate every task with itself only; arguments as in `mlti`.

    Examples:
      >>> intra(setting="label_sharing").min_tasks
      1
    """
    strategy = mlti(
        setting=setting,
        method=method,
        layers=layers,
        alpha=alpha,
        partners="intra",
        within=within,
        boxes=boxes,
    )
    return strategy._replace(name="intra")


def cross(
    *,
    setting: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    boxes: str = "shared",
) -> Strategy:
    """Interpolate every task with another one only; arguments as in `mlti`.

    Examples:
      >>> cross(setting="label_sharing").name
      'cross'
    """
    strategy = mlti(
        setting=setting,
        method=method,
        layers=layers,
        alpha=alpha,
        partners="cross",
        boxes=boxes,
    )
    return strategy._replace(name="cross")
