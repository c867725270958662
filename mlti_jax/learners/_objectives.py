"""Losses and metrics of the outputs for one set of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlti_jax.types import Array, Batch


class Objective(NamedTuple):
    """What is minimized and what is reported.

    Attributes:
      metric_name: name of the metric in results, `accuracy` or `mse`.
      loss: `(outputs [N, C], batch) -> scalar`.
      metric: `(outputs [N, C], batch) -> scalar`.
      higher_is_better: whether a larger metric is better.
    """

    metric_name: str
    loss: Callable[[Array, Batch], Array]
    metric: Callable[[Array, Batch], Array]
    higher_is_better: bool


def weighted_mean(values: Array, weight: Array | None) -> Array:
    """Mean of `values [N]` over the samples that count."""
    if weight is None:
        return values.mean()
    return jnp.sum(values * weight) / jnp.maximum(weight.sum(), 1.0)


def cross_entropy(logits: Array, batch: Batch) -> Array:
    r"""Cross-entropy $-\frac1N \sum_k \sum_r y_{kr} \log \mathrm{softmax}(z_k)_r$."""
    log_probabilities = jax.nn.log_softmax(logits)
    return weighted_mean(-jnp.sum(batch.y * log_probabilities, axis=-1), batch.weight)


def accuracy(logits: Array, batch: Batch) -> Array:
    """Fraction of samples whose largest logit is at their largest label."""
    # The barrier keeps LLVM from compiling the argmax together with one-hot labels of a
    # drawn task, which takes a time that doubles with every class.
    labels = jax.lax.optimization_barrier(batch.y)
    correct = jnp.argmax(logits, axis=-1) == jnp.argmax(labels, axis=-1)
    return weighted_mean(correct.astype(jnp.float32), batch.weight)


def mean_squared_error(outputs: Array, batch: Batch) -> Array:
    r"""$\frac{1}{ND} \sum_k \|f(x_k) - y_k\|^2$ for targets of length D."""
    return weighted_mean(jnp.mean((outputs - batch.y) ** 2, axis=-1), batch.weight)


CLASSIFICATION = Objective("accuracy", cross_entropy, accuracy, True)
REGRESSION = Objective("mse", mean_squared_error, mean_squared_error, False)


@dataclasses.dataclass(frozen=True)
class ScaledSquaredError:
    r"""$\frac{1}{ND} \sum_k \|\sigma \odot (f(x_k) - y_k)\|^2$, in the user's units.

    A dataclass instead of a closure, so that equal learners share compiled programs.

    Attributes:
      scale: $\sigma$, what each of the D targets was divided by.
    """

    scale: tuple[float, ...]

    def __call__(self, outputs: Array, batch: Batch) -> Array:
        """Return the error of `outputs [N, D]`."""
        scale = jnp.asarray(self.scale, jnp.float32)
        return mean_squared_error(outputs * scale, batch.replace(y=batch.y * scale))


def regression_objective(target_scale: tuple[float, ...] = ()) -> Objective:
    """Return the objective for targets that were divided by a scale; empty for 1.

    The loss is that of the standardized targets, the metric is in the user's units.
    """
    if not target_scale:
        return REGRESSION
    return REGRESSION._replace(metric=ScaledSquaredError(target_scale))
