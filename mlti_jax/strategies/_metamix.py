"""MetaMix (Yao et al. 2021), Improving Generalization in Meta-learning via Task
Augmentation: the query set is mixed with the support set of the same task.

Departures: all use the dataset's interpolation (CutMix included), as the MLTI paper
demands of its comparison; one lambda and one layer a task and meta-batch.
"""

from __future__ import annotations

import jax

from mlti_jax import augmentation, interpolation
from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy, each_task
from mlti_jax.strategies._mixing import check_mixing
from mlti_jax.types import Task


def metamix(
    *,
    method: str = "mixup",
    layers: tuple[int, ...] = (0,),
    alpha: float = 2.0,
    channel_shuffle: bool = False,
    labels: str = "as_drawn",
) -> Strategy:
    r"""Mixes each query sample with a random support sample of its task.

    :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, then
    `augmentation.query_with_support`. With `channel_shuffle`, channels are first
    exchanged between classes, `augmentation.shuffle_channels` with
    :math:`\delta \sim \mathrm{Beta}(\alpha, \alpha)`.

    Args:
      method: `mixup` (Manifold Mixup at layers above 0) or `cutmix`.
      layers: the layers to draw from; 0 is the input.
      alpha: both parameters of the Beta distribution.
      channel_shuffle: whether channels are exchanged too (MetaMix's second part).
      labels: of the data; targets (`shift`) have no classes to exchange channels of.
    """
    mixing = check_mixing(method, layers, alpha)
    if channel_shuffle and labels == "shift":
        raise InputError(
            "metamix's channel_shuffle exchanges channels between classes, and "
            "regression has none; set strategy.metamix.channel_shuffle=False"
        )

    if channel_shuffle and 0 in layers:
        raise InputError(
            "metamix's channel_shuffle is for hidden layers, and the input is among "
            f"the layers {tuple(layers)}; set interpolation.layers from 1 up (with "
            "interpolation.method=mixup), or leave channel_shuffle off"
        )

    def one_task(key, task: Task) -> Task:
        key_lambda, key_mix, key_rate, key_shuffle = jax.random.split(key, 4)
        if channel_shuffle:
            rate = interpolation.sample_lambda(key_rate, alpha)
            task = augmentation.shuffle_channels(key_shuffle, task, rate)
        lam = interpolation.sample_lambda(key_lambda, alpha)
        return augmentation.query_with_support(key_mix, task, lam, mixing)

    return Strategy(name="metamix", layers=tuple(layers), transform=each_task(one_task))
