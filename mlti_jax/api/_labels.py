"""Labels and targets of new tasks, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlti_jax.data._own.labels import as_names, clean
from mlti_jax.errors import InputError


def as_labels(y: Any, size: int) -> np.ndarray:
    """Labels `[size]`: text, whole numbers or booleans, in the type they have."""
    labels = clean("y", y)
    if labels.shape != (size,):
        raise InputError(
            f"y has shape {list(labels.shape)}; expected [{size}], one label for each "
            "sample of x"
        )
    if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
        row = int(np.argmax(labels != np.round(labels)))
        raise InputError(
            f"y is {labels[row]} in row {row}, and the learner was trained to tell "
            "classes apart; expected text, whole numbers or booleans"
        )
    return labels


def training_numbers(classes: np.ndarray, training: Sequence[str]) -> list[int] | None:
    """The number of each class among those of training; None if one is not there."""
    numbers = {name: number for number, name in enumerate(training)}
    named = [as_names(classes)]
    if classes.dtype.kind == "b":  # They may have been 0 and 1 in training.
        named.append(as_names(classes.astype(int)))
    for names in named:
        if all(name in numbers for name in names.tolist()):
            return [numbers[name] for name in names.tolist()]
    return None


def as_targets(y: Any, size: int, length: int) -> np.ndarray:
    """Regression targets, float32 `[size, length]`."""
    targets = clean("y", y)
    wide = targets[:, None] if targets.ndim == 1 else targets
    if targets.dtype.kind not in "iuf" or wide.shape != (size, length):
        raise InputError(
            f"y is {targets.dtype}{list(targets.shape)}; expected numbers "
            f"[{size}, {length}], targets of each sample of x"
        )
    return wide.astype(np.float32)
