"""Tasks from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mlti_jax.data._own.assembly import Division, assemble
from mlti_jax.data._own.inputs import ARRAYS, Inputs, cast, check_arrays, leaves_of
from mlti_jax.data._own.labels import (
    NON_LABEL_SHARING,
    clean,
    label_classes,
    label_tasks,
)
from mlti_jax.data._own.splitting import KeptBack
from mlti_jax.data._own.standardisation import pixel_advice, scale_advice, standardising
from mlti_jax.data._pools import Splits
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree


def from_arrays(
    tasks: Mapping[str, Any],
    *,
    validation: KeptBack = None,
    test: KeptBack = 0.2,
    seed: int = 0,
    setting: str | None = None,
    standardise: bool = False,
) -> Splits:
    """Makes pools of arrays.

    Args:
      tasks: one of

        * `{task: (x, y)}`: tasks with labels y `[M]`, or targets `[M]` or `[M, Dy]`.
          Text, booleans and whole numbers are classes, which all tasks share; floats
          are targets (regression), unless they are no more than 20 different whole
          numbers, as 0.0 and 1.0;
        * `{class: x}`: classes to draw tasks from (non-label-sharing).

        x is an array `[M, ...]`: vectors `[M, D]`, pictures `[M, H, W, C]` (uint8 is
        divided by 255 on the way to the network), or a pytree of arrays. M may differ
        from task to task. A pair is always taken as `(x, y)`.
      validation: tasks (or classes) to choose models on: names, or a share between 0
        and 1; None for none: then nothing is chosen, and the last checkpoint stands.
      test: tasks (or classes) to judge on, likewise; None for none.
      seed: draws the shares.
      setting: `label_sharing`, `non_label_sharing` or `regression`, where the labels
        would suggest another. With `(x, y)` and `non_label_sharing` every class of
        every task is a class of its own, named `task/class`.
      standardise: whether to give each feature of vectors mean 0 and standard
        deviation 1 on the training tasks. Features that are 0 or 1 only stay.

    Returns:
      The pools. `summary` says what was found and done, `inputs` treats new data alike.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        given = "empty" if isinstance(tasks, Mapping) else f"a {type(tasks).__name__}"
        raise InputError(
            f"tasks is {given}; expected a dict {{task: (x, y)}} or {{class: x}}"
        )
    named = {str(name): tasks[name] for name in sorted(tasks, key=str)}
    if len(named) < len(tasks):
        raise InputError(
            f"tasks has {len(tasks)} names, but only {len(named)} differ as text;"
            " rename those that are alike"
        )
    if _are_pairs(named):
        x = _inputs("task", {name: pair[0] for name, pair in named.items()})
        y = _labels({name: pair[1] for name, pair in named.items()}, _sizes(x))
        labels = label_tasks(_groups(x), y, setting)
    else:
        x = _inputs("class", named)
        labels = label_classes(_groups(x), setting)
    return from_samples(
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *x.values()),
        Division(labels, validation, test, seed),
        standardise=standardise,
        note="own arrays",
    )


def from_samples(
    x: PyTree,
    division: Division,
    *,
    standardise: bool,
    note: str,
    source: str | None = None,
) -> Splits:
    """Makes pools of the samples of all tasks.

    Args:
      x: checked arrays, every leaf `[M, ...]`.
      division: the labels of the M samples, and which of them are for what.
      standardise: as in `from_arrays`.
      note, source: as in `assemble`.
    """
    pooled = cast(x)
    inputs = Inputs(ARRAYS, leaves_of(pooled), label_names=division.labels.classes)
    vectors = len(inputs.leaves) == 1 and len(inputs.shape) == 1
    details = []
    if standardise:
        if not vectors:
            raise InputError(
                f"standardise is for vectors [M, D], but a sample is"
                f" {inputs.describe()}; leave it out"
            )
        inputs, words = standardising(inputs, x[division.rows("train")])
        pooled, details = inputs.standardise(x), [words]
    elif vectors and inputs.dtype == "float32":
        details = scale_advice(x[division.rows("train")])
    elif len(inputs.shape) == 3 and inputs.dtype == "float32":
        details = pixel_advice(jax.tree.leaves(pooled)[0])
    return assemble(division, pooled, inputs, note=note, details=details, source=source)


def _are_pairs(named: Mapping[str, Any]) -> bool:
    """Whether tasks are given as (x, y), all or none of them."""
    pairs = {
        name: isinstance(value, tuple) and len(value) == 2
        for name, value in named.items()
    }
    if len(set(pairs.values())) == 1:
        return next(iter(pairs.values()))
    with_labels = next(name for name, pair in pairs.items() if pair)
    without = next(name for name, pair in pairs.items() if not pair)
    raise InputError(
        f"{with_labels!r} is a pair (x, y), but {without!r} is not; give labels to all"
        f" tasks, or to none ({NON_LABEL_SHARING}: {{class: x}})"
    )


def _inputs(kind: str, given: Mapping[str, Any]) -> dict[str, PyTree]:
    """Checked arrays, which must be of one shape and type."""
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
                f"x of {kind} {name!r} is {_in_words(found)}, but that of {first!r} is"
                f" {_in_words(expected)}; all need samples of one shape and type"
            )
    return x


def _in_words(leaves: tuple) -> str:
    return Inputs(ARRAYS, leaves).describe()


def _sizes(x: Mapping[str, PyTree]) -> dict[str, int]:
    return {name: len(jax.tree.leaves(value)[0]) for name, value in x.items()}


def _groups(x: Mapping[str, PyTree]) -> np.ndarray:
    """The name of each sample's task, of all tasks one behind the other."""
    return np.repeat(np.array(list(x)), list(_sizes(x).values()))


def _labels(given: Mapping[str, Any], sizes: Mapping[str, int]) -> np.ndarray:
    """Cleaned labels, of all tasks one behind the other."""
    y = {name: clean(f"y of task {name!r}", value) for name, value in given.items()}
    first = next(iter(y))
    for name, value in y.items():
        if len(value) != sizes[name]:
            raise InputError(
                f"y of task {name!r} has shape {list(value.shape)}, but x has"
                f" {sizes[name]} samples; expected one label for each"
            )
        if value.shape[1:] != y[first].shape[1:]:
            raise InputError(
                f"y of task {name!r} has shape {list(value.shape)}, but that of"
                f" {first!r} has {list(y[first].shape)}; expected targets of one length"
            )
        kinds = {_kind(value), _kind(y[first])}
        if len(kinds) > 1:
            raise InputError(
                f"y of task {name!r} has dtype {value.dtype}, but that of {first!r} has"
                f" {y[first].dtype}; all need labels of one kind"
            )
    return np.concatenate(list(y.values()))


def _kind(y: np.ndarray) -> str:
    """Whole and real numbers are one kind: targets may happen to be whole."""
    return "number" if y.dtype.kind in "iuf" else y.dtype.kind
