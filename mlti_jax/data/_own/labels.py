"""Users' labels: cleaning them, and inferring the setting from them."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np

from mlti_jax._internal.checks import unknown_name
from mlti_jax.data._user_arrays import ROW, Place, as_numpy, is_unicode
from mlti_jax.errors import InputError

LABEL_SHARING = "label_sharing"
NON_LABEL_SHARING = "non_label_sharing"
REGRESSION = "regression"
SETTINGS = (LABEL_SHARING, NON_LABEL_SHARING, REGRESSION)

# Floats are classes if they are integers with at most this many distinct values.
MAX_FLOAT_CLASSES = 20
KINDS = {"U": "text", "b": "booleans", "i": "integers", "u": "integers"}


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of M samples.

    Attributes:
      setting: one of `SETTINGS`.
      group: str `[M]`, the unit that is split and sampled: the task of each sample or,
        in the setting `non_label_sharing`, its class.
      y: class number of each sample, int `[M]`; in regression targets, float64
        `[M, Dy]`.
      classes: names of the classes that all tasks share, in the order of `y`; empty in
        the other settings.
      found: description of the labels and how they were interpreted.
    """

    setting: str
    group: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]
    found: str

    @property
    def kind(self) -> str:
        """What `group` names: `task` or `class`."""
        return "class" if self.setting == NON_LABEL_SHARING else "task"


# ----------------------------------------------------------------------------- cleaning


def clean(field: str, values: Any, place: Place = ROW) -> np.ndarray:
    """Convert labels or names to an array of text, booleans or numbers.

    Whitespace around a text is removed.

    Args:
      field: name of the values, for errors.
      values: one value per sample.
      place: names a row, for errors.

    Raises:
      InputError: if values are missing, masked or of mixed types.
    """
    values = as_numpy(field, values, place)
    if not values.ndim or not values.size:
        raise InputError(f"{field} is {values}; expected one value per sample")
    if values.dtype.kind == "O":
        values = _typed(field, values, place)
    if values.dtype.kind == "S":
        values = _decode(field, values)
    if values.dtype.kind not in "Ubiuf":
        raise InputError(
            f"{field} has dtype {values.dtype}; expected text, numbers or booleans"
        )
    if not is_unicode(values):
        raise InputError(f"{field} has text that is not valid Unicode; correct it")
    if values.dtype.kind == "U":
        values = np.char.strip(values)
        _check_present(field, values == "", place)
    elif values.dtype.kind == "f":
        _check_present(field, ~np.isfinite(values), place)
    return values


def _decode(field: str, values: np.ndarray) -> np.ndarray:
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{field} has bytes that are not text in UTF-8 ({error}); decode them first"
        ) from error


def _is_missing(value: object) -> bool:
    """Whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(value, numbers.Real):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _typed(field: str, values: np.ndarray, place: Place) -> np.ndarray:
    """Convert an array of objects of one type to an array of that type."""
    flat = values.ravel().tolist()
    missing = np.array([_is_missing(value) for value in flat], bool)
    _check_present(field, missing.reshape(values.shape), place)
    for kind, dtype in ((str, str), (bool, bool), (numbers.Integral, np.int64)):
        if all(isinstance(value, kind) for value in flat):
            return _as_dtype(field, values, dtype)
    numeric = [isinstance(v, numbers.Real) and not isinstance(v, bool) for v in flat]
    if all(numeric):
        return _as_dtype(field, values, np.float64)
    flat = [value.item() if isinstance(value, np.generic) else value for value in flat]
    types = {type(value).__name__: value for value in flat}
    found = " and ".join(f"{value!r} ({name})" for name, value in types.items())
    raise InputError(
        f"{field} {'mixes' if len(types) > 1 else 'contains'} {found}; expected only"
        " text, or only numbers"
    )


def _as_dtype(field: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    try:
        return values.astype(dtype)
    except OverflowError as error:
        raise InputError(
            f"{field} has an integer of more than 64 bits ({error}); if it is a name,"
            " pass it as text"
        ) from error


def _check_present(field: str, missing: np.ndarray, place: Place) -> None:
    rows = np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))
    if len(rows):
        raise InputError(
            f"{field} is empty, NaN or infinite in {len(rows)} of"
            f" {len(missing)} rows, the first is {place(int(rows[0]))}; fill"
            " in the values or remove these rows"
        )


def as_names(values: np.ndarray) -> np.ndarray:
    """Convert cleaned labels to text: 1, 1.0 and "1" all become `1`."""
    if values.dtype.kind == "f":
        # Larger floats would overflow, and different labels become the same text.
        small = np.abs(values) <= 2**53
        if (small & (values == np.round(values))).all():
            values = values.astype(np.int64)
    return values.astype(str)


# ----------------------------------------------------------------------------- settings


def infer_setting(y: np.ndarray, setting: str | None) -> tuple[str, str]:
    """Decide whether labels are classes or targets.

    Text, booleans and integers are classes. Floats are targets, unless they are
    integers with at most `MAX_FLOAT_CLASSES` distinct values, such as 0.0 and 1.0.

    Args:
      y: cleaned labels of all tasks, `[M]`, or `[M, Dy]`.
      setting: the user's choice, which takes precedence; None to infer it.

    Returns:
      The setting, and a description of the labels and their interpretation.

    Raises:
      InputError: if the setting is unknown or the labels do not fit it.
    """
    if setting is not None and setting not in SETTINGS:
        raise unknown_name("setting", setting, SETTINGS)
    if y.ndim > 2 or (y.ndim == 2 and y.dtype.kind not in "iuf"):
        raise InputError(
            f"labels have shape {list(y.shape)}; expected [M], one per sample, or"
            " targets [M, Dy]"
        )
    kind = KINDS.get(y.dtype.kind, "real numbers")
    if setting == REGRESSION:
        if y.dtype.kind in "Ub":
            raise InputError(
                f"setting is regression, but labels are {kind}; expected numbers."
                " Convert the labels or omit the setting"
            )
        return REGRESSION, f"{kind}, used as targets (setting={REGRESSION})"
    if y.ndim == 2:
        if y.dtype.kind == "f" and setting is None:
            return REGRESSION, f"{kind}, interpreted as targets (regression)"
        raise InputError(
            f"labels have shape {list(y.shape)}; expected [M], the class of each"
            " sample. For one-hot labels use y.argmax(axis=1), for targets"
            f" setting='{REGRESSION}'"
        )
    chosen = f" (setting={setting})" if setting else ""
    if y.dtype.kind != "f":
        return setting or LABEL_SHARING, f"{kind}, interpreted as classes{chosen}"
    number = len(np.unique(y))
    if (y == np.round(y)).all() and number <= MAX_FLOAT_CLASSES:
        hint = f" (for targets use setting='{REGRESSION}')"
        reason = f"{number} distinct integers, interpreted as classes{chosen or hint}"
        return setting or LABEL_SHARING, reason
    if setting is not None:
        raise InputError(
            f"setting is {setting}, but labels are real numbers such as {y[0]};"
            " expected the class of each sample: text, integers or booleans"
        )
    return REGRESSION, "real numbers, interpreted as targets (regression)"


def label_tasks(task: np.ndarray, y: np.ndarray, setting: str | None) -> Labels:
    """Interpret the labels of samples that belong to tasks.

    Args:
      task: names, str `[M]`.
      y: cleaned labels or targets, `[M]` or `[M, Dy]`.
      setting: the user's choice; None to infer it from `y`. With `non_label_sharing`
        every class of every task is a separate class, named `task/class`.

    Raises:
      InputError: if a task lacks a class or has too few samples.
    """
    setting, reason = infer_setting(y, setting)
    if setting == REGRESSION:
        targets = y.reshape(len(y), -1).astype(np.float64)
        _check_sizes("task", task)
        return Labels(setting, task, targets, (), reason)
    if setting == NON_LABEL_SHARING:
        group = np.char.add(np.char.add(task, "/"), as_names(y))
        return _separate_classes(group, reason)
    distinct, number = np.unique(y, return_inverse=True)
    labels = Labels(setting, task, number, tuple(as_names(distinct).tolist()), reason)
    _check_tasks(labels, numeric=y.dtype.kind != "U")
    return labels


def label_classes(y: np.ndarray, setting: str | None = None) -> Labels:
    """Interpret the labels of samples without tasks: every label is a class.

    Raises:
      InputError: if the setting needs tasks, labels are real numbers, or a class has
        one sample only.
    """
    if setting not in (None, NON_LABEL_SHARING):
        if setting not in SETTINGS:
            raise unknown_name("setting", str(setting), SETTINGS)
        raise InputError(
            f"setting is {setting}, but no tasks are given; pass the task of each"
            f" sample, or omit the setting for {NON_LABEL_SHARING}"
        )
    if infer_setting(y, None)[0] == REGRESSION:
        raise InputError(
            "labels are real numbers, but without tasks every label is a class; pass"
            " the task of each sample (regression) or convert the labels to classes"
        )
    return _separate_classes(as_names(y), "each label is a class to draw tasks from")


def _separate_classes(group: np.ndarray, reason: str) -> Labels:
    _check_sizes("class", group)
    _, number = np.unique(group, return_inverse=True)
    return Labels(NON_LABEL_SHARING, group, number, (), reason)


def _check_sizes(kind: str, group: np.ndarray) -> None:
    """Raise `InputError` if a group has one sample only."""
    names, counts = np.unique(group, return_counts=True)
    if counts.min() < 2:
        raise _one_sample(f"{kind} {str(names[counts.argmin()])!r}", f"the {kind}")


def _one_sample(name: str, what: str, hint: str = "") -> InputError:
    return InputError(
        f"{name} has 1 sample; expected at least 2, one for support and one for query."
        f" Add samples or remove {what}{hint}"
    )


def _check_tasks(labels: Labels, numeric: bool) -> None:
    """Raise `InputError` if a task lacks a class or has one sample of it."""
    tasks, row = np.unique(labels.group, return_inverse=True)
    counts = np.zeros((len(tasks), len(labels.classes)), np.int64)
    np.add.at(counts, (row, labels.y), 1)
    targets = f". If the labels are targets: setting='{REGRESSION}'" if numeric else ""
    present = (counts > 0).sum(axis=1)
    if present.min() < 2:
        task = int(present.argmin())
        only = labels.classes[int(counts[task].argmax())]
        raise InputError(
            f"task {str(tasks[task])!r} has samples of a single class, {only!r};"
            " expected at least 2 classes. Add samples of another class or remove the"
            f" task{targets}"
        )
    if counts.min() == 0:
        task, lacking = np.argwhere(counts == 0)[0]
        other = str(tasks[int(counts[:, lacking].argmax())])
        raise InputError(
            f"task {str(tasks[task])!r} has no sample of class"
            f" {labels.classes[lacking]!r}, which task {other!r} has; tasks that share"
            f" their labels need all {len(labels.classes)} classes. Add samples, or"
            " remove the task or the class; if each task has its own classes:"
            f" setting='{NON_LABEL_SHARING}'{targets}"
        )
    if counts.min() == 1:
        task, label = np.argwhere(counts == 1)[0]
        name = f"class {labels.classes[label]!r} of task {str(tasks[task])!r}"
        raise _one_sample(name, "the task or the class", targets)
