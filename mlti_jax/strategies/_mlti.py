"""MLTI (Sec. 3), and its two halves: intra- and cross-task interpolation (Sec. 5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from mlti_jax import augmentation, interpolation
from mlti_jax._internal.checks import unknown_name
from mlti_jax.interpolation import Method
from mlti_jax.strategies._base import Strategy
from mlti_jax.strategies._mixing import check_mixing
from mlti_jax.types import Array, Task

# (key, task, lambda, method) -> task: an augmentation inside one task
Within = Callable[[Array, Task, Array, Method], Task]
BOTH = "both"
WITHIN: dict[str, Within | None] = {
    BOTH: None,  # support and query are mixed as in any other pair
    "query": interpolation.query_only,
    "metamix": augmentation.query_with_support,
}


def mlti(
    *,
    form: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    alpha_intra: float | None = None,
    partners: str = "any",
    within: str | Within = BOTH,
    name: str = "mlti",
) -> Strategy:
    r"""Replaces every task of the meta-batch by an interpolated one (Alg. 1 and 3).

    For each task i a partner j is drawn from the meta-batch and
    :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`; support and query are then both
    mixed by Eq. 5 or 6. One layer is drawn for the whole meta-batch, where Alg. 1
    draws one for each task: every task has the same distribution, and the compiled
    step runs one branch only.

    Args:
      form: `label_sharing` (Eq. 5) or `non_label_sharing` (Eq. 6).
      method: `mixup` (Manifold Mixup at layers above 0) or `cutmix`.
      layers: the layers to draw from; 0 is the input.
      alpha: both parameters of the Beta distribution.
      alpha_intra: the same where i = j; as `alpha` if not given.
      partners: `any`, `intra` or `cross`, see `interpolation.sample_partners`.
      within: what is done where i = j: `both` sets are mixed as in any other pair; the
        `query` set is mixed with itself; or with the support set, as in `metamix`; or
        any other augmentation, as a function `(key, task, lambda, method) -> task`.
      name: as on the command line.
    """
    mixing = check_mixing(method, layers, alpha, form)
    if partners not in interpolation.PARTNERS:
        raise unknown_name("choice of partners", partners, interpolation.PARTNERS)
    if not callable(within) and within not in WITHIN:
        raise unknown_name("augmentation within a task", within, WITHIN)
    augment = within if callable(within) else WITHIN[within]
    alpha_intra = alpha if alpha_intra is None else alpha_intra
    interpolation.check_positive("alpha_intra", alpha_intra)
    mix_pair = interpolation.FORMS[form]

    def extra_tasks(batch_size: int) -> int:
        """A single task is given a second one as partner."""
        return 1 if batch_size == 1 and partners != "intra" else 0

    def one_task(key, same, task_i: Task, task_j: Task) -> Task:
        key_lambda, key_mix, key_within = jax.random.split(key, 3)
        lam = interpolation.sample_lambda(
            key_lambda, jnp.where(same, alpha_intra, alpha)
        )
        mixed = mix_pair(key_mix, task_i, task_j, lam, mixing)
        if augment is None:
            return mixed
        augmented = augment(key_within, task_i, lam, mixing)
        return jax.tree.map(partial(jnp.where, same), augmented, mixed)

    def transform(variables, tasks: Task, key, layer: int, size: int) -> Task:
        del variables, layer
        key_partners, key_tasks = jax.random.split(key)
        j = interpolation.sample_partners(key_partners, tasks.domain, partners, size)
        task_i = jax.tree.map(lambda leaf: leaf[:size], tasks)
        task_j = jax.tree.map(lambda leaf: leaf[j], tasks)
        keys = jax.random.split(key_tasks, size)
        mixed = jax.vmap(one_task)(keys, j == jnp.arange(size), task_i, task_j)
        return jax.tree.map(lambda leaf: leaf[:, None], mixed)

    return Strategy(
        name=name,
        layers=tuple(layers),
        extra_tasks=extra_tasks,
        transform=transform,
    )


intra = partial(mlti, partners="intra", name="intra", alpha_intra=None)
cross = partial(mlti, partners="cross", name="cross", alpha_intra=None, within=BOTH)
