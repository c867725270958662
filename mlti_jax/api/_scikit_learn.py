"""Conventions of scikit-learn that adapted models follow, without importing it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from mlti_jax.errors import InputError


class for_classification:  # noqa: N801
    """Decorator of a method that models for regression lack, like `available_if`.

    `hasattr` is then False for models whose `classes` are None.
    """

    def __init__(self, method: Callable[..., np.ndarray]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, model: Any, owner: type) -> Callable[..., np.ndarray]:
        if model is None:
            return self.method
        if model.classes is None:
            raise AttributeError(
                f"a model for regression has no {self.method.__name__}; use predict"
            )
        return types.MethodType(self.method, model)


def r_squared(predicted: np.ndarray, targets: np.ndarray) -> float:
    r"""Return the coefficient of determination, averaged over outputs.

    $R^2 = 1 - \sum_k (f(x_k) - y_k)^2 / \sum_k (y_k - \bar y)^2$. For a constant target
    it is 1 if all predictions are equal to it, otherwise 0.

    Args:
      predicted: values `[N, Dy]`.
      targets: their targets `[N, Dy]`.

    Raises:
      InputError: if N is 1.
    """
    if len(targets) < 2:
        raise InputError("R^2 needs at least two samples, but x has one; give more")
    error = ((predicted - targets) ** 2).sum(axis=0)
    total = ((targets - targets.mean(axis=0)) ** 2).sum(axis=0)
    varies = total > 0
    ratio = error / np.where(varies, total, 1.0)
    return float(np.where(varies, 1.0 - ratio, error == 0).mean())
