"""What users' labels mean: which setting they make, and whether tasks can be drawn."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError

LABEL_SHARING = "label_sharing"
NON_LABEL_SHARING = "non_label_sharing"
REGRESSION = "regression"
SETTINGS = (LABEL_SHARING, NON_LABEL_SHARING, REGRESSION)

# Whole numbers stored as floats are classes if there are no more different ones.
MOST_FLOAT_CLASSES = 20
KINDS = {"U": "text", "b": "true or false", "i": "whole numbers", "u": "whole numbers"}


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of M samples.

    Attributes:
      setting: one of `SETTINGS`.
      group: str `[M]`, what is split and drawn: the task of each sample or, in the
        setting `non_label_sharing`, its class.
      y: the number of each sample's class, `[M]`; targets float32 `[M, Dy]`; None in
        the setting `non_label_sharing`.
      classes: the names of classes that all tasks share, in the order of the numbers.
      found: in words, what the labels were and what they were taken for.
    """

    setting: str
    group: np.ndarray
    y: np.ndarray | None
    classes: tuple[str, ...]
    found: str

    @property
    def kind(self) -> str:
        """Of thing that `group` names: `task` or `class`."""
        return "class" if self.setting == NON_LABEL_SHARING else "task"


def clean(
    field: str, values: Any, place: Callable[[int], str] = "row {}".format
) -> np.ndarray:
    """Labels or names as an array of text, booleans or numbers, none missing.

    Spaces around a text are taken away.

    Args:
      field: what they are, for errors.
      values: one for each sample.
      place: names a row, for errors.
    """
    try:
        values = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{field} is no array ({error})") from error
    if not values.ndim or not values.size:
        raise InputError(f"{field} is {values}; expected one value for each sample")
    if values.dtype.kind == "O":
        values = _typed(field, values, place)
    if values.dtype.kind == "S":
        values = np.char.decode(values)
    if values.dtype.kind not in "Ubiuf":
        raise InputError(
            f"{field} has dtype {values.dtype}; expected text, numbers or booleans"
        )
    if values.dtype.kind == "U":
        values = np.char.strip(values)
        _check_present(field, values == "", place)
    elif values.dtype.kind == "f":
        _check_present(field, ~np.isfinite(values), place)
    return values


def _typed(field: str, values: np.ndarray, place: Callable[[int], str]) -> np.ndarray:
    """An array of objects as one of a type, if all are of that type."""
    import pandas as pd

    _check_present(field, pd.isna(values), place)
    flat = values.ravel().tolist()
    for kind, dtype in ((str, str), (bool, bool), (numbers.Integral, np.int64)):
        if all(isinstance(value, kind) for value in flat):
            return values.astype(dtype)
    numeric = [isinstance(v, numbers.Real) and not isinstance(v, bool) for v in flat]
    if all(numeric):
        return values.astype(np.float64)
    flat = [value.item() if isinstance(value, np.generic) else value for value in flat]
    types = {type(value).__name__: value for value in flat}
    found = " and ".join(f"{value!r} ({name})" for name, value in types.items())
    raise InputError(
        f"{field} {'mixes' if len(types) > 1 else 'holds'} {found}; expected text only,"
        " or numbers only"
    )


def _check_present(
    field: str, missing: np.ndarray, place: Callable[[int], str]
) -> None:
    missing = missing.reshape(len(missing), -1).any(axis=1)
    if missing.any():
        raise InputError(
            f"{field} is empty, NaN or infinite in {int(missing.sum())} of"
            f" {len(missing)} rows, the first is {place(int(np.argmax(missing)))}; fill"
            " it in, or leave these rows out"
        )


def as_names(values: np.ndarray) -> np.ndarray:
    """Cleaned labels as text: 1, 1.0 and "1" are all `1`."""
    if values.dtype.kind == "f" and (values == np.round(values)).all():
        values = values.astype(np.int64)
    return values.astype(str)


def decide(y: np.ndarray, setting: str | None) -> tuple[str, str]:
    """Whether labels are classes or targets.

    Text, booleans and whole numbers are classes. Floats are targets, unless they are
    at most `MOST_FLOAT_CLASSES` different whole numbers, as 0.0 and 1.0.

    Args:
      y: cleaned labels of all tasks, `[M]`, or `[M, Dy]`.
      setting: the user's choice, which overrides; None to decide.

    Returns:
      The setting, and the reason in words.
    """
    if setting is not None and setting not in SETTINGS:
        raise unknown_name("setting", setting, SETTINGS)
    if y.ndim > 2 or (y.ndim == 2 and y.dtype.kind not in "iuf"):
        raise InputError(
            f"labels have shape {list(y.shape)}; expected [M], one a sample, or targets"
            " [M, Dy]"
        )
    kind = KINDS.get(y.dtype.kind, "real numbers")
    if setting == REGRESSION:
        if y.dtype.kind in "Ub":
            raise InputError(
                f"setting is regression, but labels are {kind}; expected numbers."
                " Convert them, or leave the setting out"
            )
        return REGRESSION, f"{kind}, taken as targets as asked"
    if y.ndim == 2:
        if y.dtype.kind == "f" and setting is None:
            return REGRESSION, f"{kind}, so targets (regression)"
        raise InputError(
            f"labels have shape {list(y.shape)}; expected [M], the class of each"
            " sample. One-hot labels: use y.argmax(axis=1); targets: setting="
            f"'{REGRESSION}'"
        )
    given = f", {setting} as asked" if setting else ""
    if y.dtype.kind != "f":
        return setting or LABEL_SHARING, f"{kind}, so classes{given}"
    number = len(np.unique(y))
    if (y == np.round(y)).all() and number <= MOST_FLOAT_CLASSES:
        other = f" (setting='{REGRESSION}' takes them as targets)"
        reason = f"{number} different whole numbers, so classes{given or other}"
        return setting or LABEL_SHARING, reason
    if setting is not None:
        raise InputError(
            f"setting is {setting}, but labels are real numbers, as {y[0]}; expected"
            " the class of each sample: text, whole numbers or booleans"
        )
    return REGRESSION, "real numbers, so targets (regression)"


def label_tasks(task: np.ndarray, y: np.ndarray, setting: str | None) -> Labels:
    """Labels of samples that belong to tasks.

    Args:
      task: names, str `[M]`.
      y: cleaned labels or targets, `[M]` or `[M, Dy]`.
      setting: the user's choice; None to decide by `y`. With `non_label_sharing` every
        class of every task is a class of its own, named `task/class`.
    """
    setting, reason = decide(y, setting)
    if setting == REGRESSION:
        targets = y.reshape(len(y), -1).astype(np.float32)
        if not np.isfinite(targets).all():
            raise InputError("targets are too large for float32; divide them first")
        _check_sizes("task", task)
        return Labels(setting, task, targets, (), reason)
    if setting == NON_LABEL_SHARING:
        group = np.char.add(np.char.add(task, "/"), as_names(y))
        return _of_classes(group, reason)
    distinct, number = np.unique(y, return_inverse=True)
    labels = Labels(setting, task, number, tuple(as_names(distinct).tolist()), reason)
    _check_tasks(labels, numeric=y.dtype.kind != "U")
    return labels


def label_classes(y: np.ndarray, setting: str | None = None) -> Labels:
    """Labels of samples without tasks: every label is a class to draw from."""
    if setting not in (None, NON_LABEL_SHARING):
        if setting not in SETTINGS:
            raise unknown_name("setting", setting, SETTINGS)
        raise InputError(
            f"setting is {setting}, but no tasks are given; say which task each sample"
            f" belongs to, or leave the setting out for {NON_LABEL_SHARING}"
        )
    if decide(y, None)[0] == REGRESSION:
        raise InputError(
            "labels are real numbers, but without tasks every label is a class; say"
            " which task each sample belongs to (regression), or make classes of them"
        )
    return _of_classes(as_names(y), "each a class to draw tasks from")


def _of_classes(group: np.ndarray, reason: str) -> Labels:
    _check_sizes("class", group)
    return Labels(NON_LABEL_SHARING, group, None, (), reason)


def _check_sizes(kind: str, group: np.ndarray) -> None:
    """Refuses a group of one sample."""
    names, counts = np.unique(group, return_counts=True)
    if counts.min() < 2:
        raise _one_sample(f"{kind} {str(names[counts.argmin()])!r}", f"the {kind}")


def _one_sample(name: str, what: str, hint: str = "") -> InputError:
    return InputError(
        f"{name} has 1 sample; it needs two at least, one to learn from and one to be"
        f" judged on. Add samples, or leave {what} out{hint}"
    )


def _check_tasks(labels: Labels, numeric: bool) -> None:
    """Refuses tasks that lack classes, or have one sample of a class."""
    tasks, row = np.unique(labels.group, return_inverse=True)
    counts = np.zeros((len(tasks), len(labels.classes)), np.int64)
    np.add.at(counts, (row, labels.y), 1)
    targets = f". If the labels are targets: setting='{REGRESSION}'" if numeric else ""
    present = (counts > 0).sum(axis=1)
    if present.min() < 2:
        task = int(present.argmin())
        only = labels.classes[int(counts[task].argmax())]
        raise InputError(
            f"task {str(tasks[task])!r} has samples of a single class, {only!r}, and"
            " nothing to tell it from; add samples of another class, or leave the task"
            f" out{targets}"
        )
    if counts.min() == 0:
        task, lacking = np.argwhere(counts == 0)[0]
        other = str(tasks[int(counts[:, lacking].argmax())])
        raise InputError(
            f"task {str(tasks[task])!r} has no sample of class"
            f" {labels.classes[lacking]!r}, which task {other!r} has; tasks that share"
            f" their labels need all {len(labels.classes)} classes. Add samples, or"
            " leave out the task or the class; where each task has classes of its own:"
            f" setting='{NON_LABEL_SHARING}'{targets}"
        )
    if counts.min() == 1:
        task, label = np.argwhere(counts == 1)[0]
        name = f"class {labels.classes[label]!r} of task {str(tasks[task])!r}"
        raise _one_sample(name, "the task or the class", targets)
