"""Labels, targets and pools that users give to a fitted learner."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.data import Inputs, Splits
from mlti_jax.data._own.inputs import Leaf, leaves_of
from mlti_jax.data._own.labels import as_names, clean
from mlti_jax.data._pools import Pool, RegressionPool
from mlti_jax.data._user_arrays import check_magnitude
from mlti_jax.errors import InputError


@contextlib.contextmanager
def errors_about(what: str) -> Iterator[None]:
    """Prefix the message of an `InputError` with the data that it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error


def as_labels(y: Any, size: int) -> np.ndarray:
    """Return labels `[size]`, text, integers or booleans, in their own dtype."""
    labels = clean("y", y)
    if labels.shape != (size,):
        raise InputError(
            f"y has shape {list(labels.shape)}; expected [{size}], one label for each "
            "sample of x"
        )
    if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
        row = int(np.argmax(labels != np.round(labels)))
        raise InputError(
            f"y is {labels[row]} in row {row}, but the learner classifies; expected "
            "text, integers or booleans"
        )
    return labels


def as_targets(y: Any, size: int, length: int) -> np.ndarray:
    """Return regression targets in the user's units, float64 `[size, length]`."""
    targets = clean("y", y)
    wide = targets[:, None] if targets.ndim == 1 else targets
    if targets.dtype.kind not in "iuf" or wide.shape != (size, length):
        raise InputError(
            f"y is {targets.dtype}{list(targets.shape)}; expected numbers "
            f"[{size}, {length}], targets of each sample of x"
        )
    check_magnitude("y", wide)
    return wide.astype(np.float64)


def training_indices(classes: np.ndarray, training: Sequence[str]) -> list[int] | None:
    """Return the index of each class among those of training; None if one is new."""
    indices = {name: index for index, name in enumerate(training)}
    named = [as_names(classes)]
    if classes.dtype.kind == "b":  # may have been 0 and 1 in training
        named.append(as_names(classes.astype(int)))
    for names in named:
        if all(name in indices for name in names.tolist()):
            return [indices[name] for name in names.tolist()]
    return None


def evaluation_pool(
    tasks: Splits | Pool, inputs: Inputs, *, target_length: int | None
) -> Pool:
    """Return a pool to evaluate on, with samples as the learner expects them.

    Raises `InputError` if samples, classes or targets do not fit the learner.

    Args:
      tasks: splits, of which the test pool is taken, or a pool, whose samples are used
        without conversion.
      inputs: how the learner's samples were made.
      target_length: outputs of a learner that predicts targets; None if it classifies.
    """
    pool = tasks.test if isinstance(tasks, Splits) else tasks
    if not isinstance(pool, Pool):
        raise InputError(
            f"tasks is of type {type(pool).__name__}; expected a pool, or Splits with "
            "a test pool, as from mlti_jax.data.from_arrays"
        )
    has_targets = isinstance(pool, RegressionPool)
    if has_targets != (target_length is not None):
        has, needs = ("classes", "targets")[:: -1 if has_targets else 1]
        raise InputError(f"the tasks have {has}; the learner is for {needs}")
    if isinstance(pool, RegressionPool) and pool.y.shape[-1] != target_length:
        raise InputError(
            f"the tasks have targets of length {pool.y.shape[-1]}; the learner was "
            f"trained on targets of length {target_length}"
        )
    if isinstance(tasks, Splits) and tasks.inputs is not None:
        pool = _convert(pool, tasks.inputs, inputs)
    found = leaves_of(pool.x)
    if found != inputs.leaves:
        raise InputError(
            f"the tasks' samples are {_shapes(found)}; the learner was trained on "
            f"{_shapes(inputs.leaves)}"
        )
    return pool


def _convert(pool: Pool, theirs: Inputs, own: Inputs) -> Pool:
    """Standardize the samples and targets of a pool as the learner's were."""
    for name in ("columns", "smiles"):
        if getattr(theirs, name) != getattr(own, name):
            raise InputError(
                f"the {name} of the tasks are {getattr(theirs, name)}; the learner was "
                f"trained on {getattr(own, name)}"
            )
    if isinstance(pool, RegressionPool) and theirs.targets != own.targets:
        y = own.targets.standardise(theirs.targets.restore(np.asarray(pool.y)))
        check_magnitude("standardized y", y)
        pool = dataclasses.replace(pool, y=jnp.asarray(y))
    if (theirs.mean, theirs.scale) == (own.mean, own.scale):
        return pool
    x = np.asarray(pool.x, np.float64)
    if theirs.mean:  # undo the statistics of the other tasks
        x = x * np.array(theirs.scale) + np.array(theirs.mean)
    x = own.standardise(x) if own.mean else x.astype(np.float32)
    return dataclasses.replace(pool, x=jnp.asarray(x))


def listed(names: Sequence[Any] | np.ndarray) -> str:
    """Return the first few names, for a message."""
    return first_few([str(name) for name in names])


def _shapes(leaves: tuple[Leaf, ...]) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
