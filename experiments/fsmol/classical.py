"""Methods without meta-learning, on the same draws; requires scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.fsmol.draws import Draw
from experiments.fsmol.evaluation import Method
from mlti_jax._internal.checks import unknown_name
from mlti_jax._internal.extras import require
from mlti_jax.data import DomainPool


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(random_state=seed)


def _logistic_regression(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000, random_state=seed)


CLASSICAL: Mapping[str, Callable[[int], Any]] = MappingProxyType(
    {"random_forest": _random_forest, "logistic_regression": _logistic_regression}
)


def classical_method(name: str, pool: DomainPool) -> Method:
    """Return a classifier of scikit-learn, with its default settings.

    Args:
      name: one of `CLASSICAL`.
      pool: the assays.

    Raises:
      InputError: if the name is unknown or scikit-learn is missing.
    """
    if name not in CLASSICAL:
        raise unknown_name("classical method", name, CLASSICAL)
    require("sklearn", "examples")
    x = np.asarray(pool.x)

    def fit(draws: Sequence[Draw]) -> Iterator[tuple[Draw, np.ndarray]]:
        for draw in draws:
            model = CLASSICAL[name](draw.number)
            model.fit(x[draw.support] / np.float32(255), draw.support_y)
            yield draw, model.predict_proba(x[draw.query] / np.float32(255))

    return fit
