"""MetaMix (Yao et al. 2021), Improving Generalization in Meta-learning via Task
Augmentation: mixes the query set with the support set of the same task.

Differences from the paper: all methods use the interpolation of the dataset (CutMix
included), as in the comparison of the MLTI paper; one lambda per task and one layer per
meta-batch.
"""

from __future__ import annotations

import jax

from mlti_jax import augmentation, interpolation
from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy, each_task
from mlti_jax.strategies._mixing import check_mixing
from mlti_jax.types import Array, Task


def metamix(
    *,
    setting: str,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    channel_shuffle: bool = False,
) -> Strategy:
    r"""Mix each query sample with a random support sample of its task.

    Draws $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$ and applies
    `augmentation.query_with_support`. With `channel_shuffle`, channels are first
    exchanged between classes: `augmentation.shuffle_channels` with
    $\delta \sim \mathrm{Beta}(\alpha, \alpha)$.

    Args:
      setting: `label_sharing`, `non_label_sharing` or `regression`.
      method: `mixup` (Manifold Mixup at layers above 0) or `cutmix`.
      layers: the layers to draw from; 0 is the input.
      alpha: both parameters of the Beta distribution; MetaMix's paper uses 2, and 0.5
        on Pose.
      channel_shuffle: whether to exchange channels too (MetaMix's second part).

    Examples:
      >>> metamix(setting="label_sharing", layers=(0, 1)).layers
      (0, 1)
    """
    mixing = check_mixing(setting, method, layers, alpha)
    if channel_shuffle and setting == "regression":
        raise InputError(
            "metamix's channel_shuffle exchanges channels between classes, and "
            "regression has no classes; set strategy.metamix.channel_shuffle=False"
        )

    if channel_shuffle and 0 in layers:
        raise InputError(
            "metamix's channel_shuffle is for hidden layers, and the input is among "
            f"the layers {tuple(layers)}; set interpolation.layers to layers >= 1 "
            "(with interpolation.method=mixup), or channel_shuffle=False"
        )

    def one_task(key: Array, task: Task) -> Task:
        key_lambda, key_mix, key_rate, key_shuffle = jax.random.split(key, 4)
        if channel_shuffle:
            rate = interpolation.sample_lambda(key_rate, alpha)
            task = augmentation.shuffle_channels(key_shuffle, task, rate)
        lam = interpolation.sample_lambda(key_lambda, alpha)
        return augmentation.query_with_support(key_mix, task, lam, mixing)

    return Strategy(name="metamix", layers=tuple(layers), transform=each_task(one_task))
