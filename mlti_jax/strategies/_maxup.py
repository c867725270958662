"""Meta-MaxUp (Ni et al. 2021), Data Augmentation for Meta-Learning: of several
augmented versions of a task, the one with the largest loss is learned from.

Departure: the versions are made by the dataset's interpolation within the task, as the
MLTI paper demands of its comparison, not drawn from a list of image augmentations.
"""

from __future__ import annotations

import jax

from mlti_jax import interpolation
from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.strategies._base import Strategy, each_task
from mlti_jax.strategies._mixing import check_mixing
from mlti_jax.types import Task

SETS = ("query", "both")


def maxup(
    *,
    form: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    versions: int = 4,
    sets: str = "query",
) -> Strategy:
    r"""The worst of m versions: :math:`\frac1B \sum_i \max_m \mathcal{L}(T_i^{(m)})`.

    Version m mixes the task with itself by its own
    :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`.

    Args:
      form: `label_sharing` (Eq. 5) or `non_label_sharing` (Eq. 6), for both sets.
      method: `mixup` (Manifold Mixup at layers above 0) or `cutmix`.
      layers: the layers to draw from; 0 is the input.
      alpha: both parameters of the Beta distribution.
      versions: m.
      sets: what is augmented, the `query` set alone, or `both`.
    """
    mixing = check_mixing(method, layers, alpha, form)
    if sets not in SETS:
        raise unknown_name("choice of sets", sets, SETS)
    check_range("strategy.maxup.versions", versions, 1000)

    def one_version(key, task: Task) -> Task:
        key_lambda, key_mix = jax.random.split(key)
        lam = interpolation.sample_lambda(key_lambda, alpha)
        if sets == "query":
            return interpolation.query_only(key_mix, task, lam, mixing)
        return interpolation.FORMS[form](key_mix, task, task, lam, mixing)

    return Strategy(
        name="maxup",
        layers=tuple(layers),
        transform=each_task(one_version, versions),
        same_support=sets == "query",
        reduce=lambda losses, aux: losses.max(axis=1).mean(),
    )
