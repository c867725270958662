"""Tasks from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mlti_jax.data._own.inputs import (
    ARRAYS,
    Inputs,
    Leaf,
    leaves_of,
    pixel_advice,
    scale_advice,
    with_statistics,
)
from mlti_jax.data._own.labels import (
    NON_LABEL_SHARING,
    clean,
    label_classes,
    label_tasks,
)
from mlti_jax.data._own.splitting import HeldOut, Partition, make_splits
from mlti_jax.data._splits import Splits
from mlti_jax.data._user_arrays import cast, check_arrays
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree


def from_arrays(
    tasks: Mapping[str, Any],
    *,
    validation: HeldOut = None,
    test: HeldOut = 0.2,
    seed: int = 0,
    setting: str | None = None,
    standardise: bool = False,
    standardise_targets: bool = True,
) -> Splits:
    """Create a dataset from arrays.

    Args:
      tasks: one of

        * `{task: (x, y)}`: tasks with labels y `[M]`, or targets `[M]` or `[M, Dy]`.
          Text, booleans and integers are classes, which all tasks share. Floats are
          targets (regression), unless they are integers with at most 20 distinct
          values, such as 0.0 and 1.0;
        * `{class: x}`: classes to draw tasks from (non-label-sharing).

        x is an array `[M, ...]`: vectors `[M, D]`, images `[M, H, W, C]` (uint8 is
        divided by 255 before it reaches the network), or a pytree of arrays. M may
        differ between tasks. A pair is always interpreted as `(x, y)`.
      validation: tasks (or classes) for model selection: names, or a fraction between
        0 and 1. None for none: the last checkpoint is used.
      test: tasks (or classes) for evaluation, in the same form; None for none.
      seed: seed to draw the fractions.
      setting: `label_sharing`, `non_label_sharing` or `regression`, to override what
        is inferred from the labels. With `(x, y)` and `non_label_sharing` every class
        of every task is a separate class, named `task/class`.
      standardise: whether to scale each feature of vectors to mean 0 and standard
        deviation 1 on the training tasks. Binary features are not changed.
      standardise_targets: whether a learner sees regression targets with mean 0 and
        standard deviation 1 on the training tasks (per output). Metric, predictions
        and the targets of new tasks are in the original units either way. Without
        effect on classes.

    Returns:
      The pools. `summary` describes the data and all changes to it, and `inputs`
      converts new data the same way.

    Raises:
      InputError: if arrays, labels or held-out tasks can't be used.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        given = "empty" if isinstance(tasks, Mapping) else f"a {type(tasks).__name__}"
        raise InputError(
            f"tasks is {given}; expected a dict {{task: (x, y)}} or {{class: x}}"
        )
    named = {str(name): tasks[name] for name in sorted(tasks, key=str)}
    if len(named) < len(tasks):
        raise InputError(
            f"tasks has {len(tasks)} names, but only {len(named)} are distinct as text;"
            " rename the others"
        )
    if _are_pairs(named):
        x = _check_inputs("task", {name: pair[0] for name, pair in named.items()})
        y = _check_labels({name: pair[1] for name, pair in named.items()}, _sizes(x))
        labels = label_tasks(_groups(x), y, setting)
    else:
        x = _check_inputs("class", named)
        labels = label_classes(_groups(x), setting)
    return from_samples(
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *x.values()),
        Partition(labels, validation, test, seed),
        standardise=standardise,
        standardise_targets=standardise_targets,
        note="own arrays",
    )


def from_samples(
    x: PyTree,
    partition: Partition,
    *,
    standardise: bool,
    standardise_targets: bool,
    note: str,
    source: str | None = None,
) -> Splits:
    """Create a dataset from the concatenated samples of all tasks.

    Args:
      x: checked arrays, every leaf `[M, ...]`.
      partition: labels of the M samples, and the split of each.
      standardise, standardise_targets: as in `from_arrays`.
      note, source: as in `make_splits`.
    """
    pooled = cast(x)
    inputs = Inputs(ARRAYS, leaves_of(pooled), label_names=partition.labels.classes)
    vectors = len(inputs.leaves) == 1 and len(inputs.shape) == 1
    details: list[str] = []
    if standardise:
        if not vectors:
            raise InputError(
                f"standardise=True needs vectors [M, D], but a sample is"
                f" {inputs.describe()}; omit standardise"
            )
        inputs, text = with_statistics(inputs, x[partition.rows("train")])
        pooled, details = inputs.standardise(x), [text]
    elif vectors and inputs.dtype == "float32":
        details = scale_advice(x[partition.rows("train")])
    elif len(inputs.shape) == 3 and inputs.dtype == "float32":
        details = pixel_advice(jax.tree.leaves(pooled)[0])
    return make_splits(
        partition,
        pooled,
        inputs,
        note=note,
        details=details,
        source=source,
        standardise_targets=standardise_targets,
    )


def _are_pairs(named: Mapping[str, Any]) -> bool:
    """Whether tasks are pairs (x, y); raises `InputError` if only some are."""
    pairs = {
        name: isinstance(value, tuple) and len(value) == 2
        for name, value in named.items()
    }
    if len(set(pairs.values())) == 1:
        return next(iter(pairs.values()))
    with_labels = next(name for name, pair in pairs.items() if pair)
    without = next(name for name, pair in pairs.items() if not pair)
    raise InputError(
        f"{with_labels!r} is a pair (x, y), but {without!r} is not; pass labels for all"
        f" tasks, or for none ({NON_LABEL_SHARING}: {{class: x}})"
    )


def _check_inputs(kind: str, given: Mapping[str, Any]) -> dict[str, PyTree]:
    """Return checked arrays; raise `InputError` if shapes or dtypes differ."""
    x = {
        name: check_arrays(f"x of {kind} {name!r}", value)
        for name, value in given.items()
    }
    first = next(iter(x))
    expected = leaves_of(cast(x[first]))
    for name, value in x.items():
        found = leaves_of(cast(value))
        if found != expected:
            raise InputError(
                f"x of {kind} {name!r} is {_describe(found)}, but that of {first!r} is"
                f" {_describe(expected)}; expected samples of one shape and dtype"
            )
    return x


def _describe(leaves: tuple[Leaf, ...]) -> str:
    return Inputs(ARRAYS, leaves).describe()


def _sizes(x: Mapping[str, PyTree]) -> dict[str, int]:
    return {name: len(jax.tree.leaves(value)[0]) for name, value in x.items()}


def _groups(x: Mapping[str, PyTree]) -> np.ndarray:
    """Names the task of each sample of the concatenated tasks, str `[M]`."""
    return np.repeat(np.array(list(x)), list(_sizes(x).values()))


def _check_labels(given: Mapping[str, Any], sizes: Mapping[str, int]) -> np.ndarray:
    """Return the cleaned and concatenated labels of all tasks."""
    y = {name: clean(f"y of task {name!r}", value) for name, value in given.items()}
    first = next(iter(y))
    for name, value in y.items():
        if len(value) != sizes[name]:
            raise InputError(
                f"y of task {name!r} has shape {list(value.shape)}, but x has"
                f" {sizes[name]} samples; expected one label per sample"
            )
        if value.shape[1:] != y[first].shape[1:]:
            raise InputError(
                f"y of task {name!r} has shape {list(value.shape)}, but that of"
                f" {first!r} has {list(y[first].shape)}; expected targets of one length"
            )
        if _kind(value) != _kind(y[first]):
            raise InputError(
                f"y of task {name!r} has dtype {value.dtype}, but that of {first!r} has"
                f" {y[first].dtype}; expected labels of one kind"
            )
    return np.concatenate(list(y.values()))


def _kind(y: np.ndarray) -> str:
    """Integers and floats are one kind, since targets may happen to be integers."""
    return "number" if y.dtype.kind in "iuf" else y.dtype.kind
