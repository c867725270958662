"""Meta-MaxUp (Ni et al. 2021), Data Augmentation for Meta-Learning: learns from the
version of a task that has the largest loss among several augmented versions.

Difference from the paper: versions are made with the interpolation of the dataset
within the task, as in the comparison of the MLTI paper, not with image augmentations.
"""

from __future__ import annotations

import jax

from mlti_jax import interpolation
from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.strategies._base import PerTask, Strategy, each_task
from mlti_jax.strategies._mixing import PAIR_FUNCTIONS, check_mixing
from mlti_jax.types import Array, Task

SETS = ("query", "both")


def maxup(
    *,
    setting: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    versions: int = 4,
    sets: str = "query",
) -> Strategy:
    r"""Learn from the worst of m versions, $\frac1B \sum_i \max_m L(T_i^{(m)})$.

    Version m mixes the task with itself with its own
    $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$.

    Args:
      setting: `label_sharing` or `regression` (Eq. 5), or `non_label_sharing` (Eq. 6);
        used if both sets are augmented.
      method: `mixup` (Manifold Mixup at layers above 0) or `cutmix`.
      layers: the layers to draw from; 0 is the input.
      alpha: both parameters of the Beta distribution.
      versions: m; 4 in the paper.
      sets: what is augmented, only the `query` set, or `both`.

    Examples:
      >>> maxup(setting="label_sharing", versions=8).name
      'maxup'
    """
    mixing = check_mixing(setting, method, layers, alpha)
    if sets not in SETS:
        raise unknown_name("choice of sets", sets, SETS)
    check_range("strategy.maxup.versions", versions, 1000)

    def one_version(key: Array, task: Task) -> Task:
        key_lambda, key_mix = jax.random.split(key)
        lam = interpolation.sample_lambda(key_lambda, alpha)
        if sets == "query":
            return interpolation.query_only(key_mix, task, lam, mixing)
        return PAIR_FUNCTIONS[setting](key_mix, task, task, lam, mixing)

    all_versions = each_task(one_version, versions)

    def combine(keys_and_task: tuple[Array, Task]) -> Task:
        transformed = all_versions.combine(keys_and_task)
        if sets == "both":
            return transformed
        # The support set is the same in all versions: learners adapt to it once.
        return transformed.replace(support=keys_and_task[1].support)

    transform = PerTask(all_versions.select, combine)
    return Strategy(name="maxup", layers=tuple(layers), transform=transform)
