"""Tasks from a table: columns of features, or of molecules."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.data._own.files import Table
from mlti_jax.data._own.inputs import (
    COLUMNS,
    SMILES,
    Inputs,
    Leaf,
    Smiles,
    scale_advice,
    with_statistics,
)
from mlti_jax.data._own.labels import as_names, label_classes, label_tasks
from mlti_jax.data._own.splitting import HeldOut, Partition, make_splits
from mlti_jax.data._readers.fingerprints import fingerprint_matrix, unreadable
from mlti_jax.data._splits import Splits
from mlti_jax.data._user_arrays import cast
from mlti_jax.errors import InputError

# A larger fraction of unreadable molecules is an error.
MAX_SKIPPED = 0.05
# In tables of more rows, a column of distinct integers is reported as an identifier.
MIN_ROWS_FOR_IDENTIFIERS = 20


def from_table(
    table: Any,
    *,
    label: str,
    task: str | None,
    features: Sequence[str] | str | None = None,
    smiles: str | None = None,
    fingerprint: str = "morgan",
    validation: HeldOut = None,
    test: HeldOut = 0.2,
    seed: int = 0,
    setting: str | None = None,
    standardise: bool = True,
    standardise_targets: bool = True,
) -> Splits:
    """Create a dataset from a table with one sample per row.

    Args:
      table: the path of a .csv, .tsv, .tab or .parquet file; a pandas DataFrame; or a
        dict of columns.
      label: the column of labels. Text, booleans and integers are classes, floats are
        targets (regression), as in `from_arrays`.
      task: the column with the task of each sample; None if every label is a class to
        draw tasks from (non-label-sharing).
      features: numeric columns, as a list or a comma-separated string; None for all
        numeric columns except label and task.
      smiles: a column of SMILES to use instead: the inputs are fingerprints of the
        molecules (extra `bio`). Up to 5 % unreadable molecules are skipped.
      fingerprint: `morgan` (radius 2) or `path`, with 1,024 bits.
      validation: tasks for model selection, as in `from_arrays`.
      test: tasks for evaluation, as in `from_arrays`.
      seed: seed to draw held-out fractions.
      setting: overrides what is inferred from the labels, as in `from_arrays`.
      standardise: whether to scale each feature to mean 0 and standard deviation 1 on
        the training tasks. Binary features are not changed.
      standardise_targets: whether a learner sees standardized regression targets, as
        in `from_arrays`.

    Returns:
      The pools. `summary` describes the data and all changes to it, and `inputs`
      converts new data the same way.

    Raises:
      InputError: if the table, a column or the held-out tasks can't be used.
    """
    source = os.path.basename(table) if isinstance(table, str | os.PathLike) else None
    table = Table(table)
    # Names of columns may be integers.
    label = str(label)
    task, smiles = (None if name is None else str(name) for name in (task, smiles))
    for column in (label, task, smiles):
        if column is not None:
            table.column(column)
    if smiles is not None and features is not None:
        raise InputError(
            f"both features and smiles ({smiles!r}) are set; choose one of them"
        )
    if smiles is not None:  # Before the labels, since it removes rows of the table.
        x, details = _read_molecules(table, smiles, fingerprint)
        leaf = Leaf("", x.shape[1:], str(x.dtype))
        inputs = Inputs(SMILES, (leaf,), smiles=Smiles(smiles, fingerprint))
    y = table.values(label)
    if task is None:
        labels = label_classes(y, setting)
    else:
        labels = label_tasks(as_names(table.values(task)), y, setting)
    labels = dataclasses.replace(labels, found=f"column {label!r}, {labels.found}")
    partition = Partition(labels, validation, test, seed)
    if smiles is None:
        columns, details = _choose_columns(table, features, (label, task))
        x = table.matrix(columns)
        leaf = Leaf("", (len(columns),), "float32")
        inputs = Inputs(COLUMNS, (leaf,), columns=tuple(columns))
        train = x[partition.rows("train")]
        if standardise:
            inputs, text = with_statistics(inputs, train)
            x, details = inputs.standardise(x), [*details, text]
        else:
            x, details = cast(x), [*details, *scale_advice(train)]
    return make_splits(
        partition,
        x,
        dataclasses.replace(inputs, label_names=labels.classes),
        note=table.name,
        details=details,
        source=source,
        standardise_targets=standardise_targets,
    )


def _read_molecules(
    table: Table, smiles: str, fingerprint: str
) -> tuple[np.ndarray, list[str]]:
    """Return fingerprints, bool `[M, 1024]`, and remove unreadable rows."""
    texts = table.values(smiles)
    bits, readable = fingerprint_matrix(texts.tolist(), fingerprint)
    if readable.all():
        return bits, []
    row, number = int(np.argmin(readable)), int((~readable).sum())
    first = f"the first is {unreadable(str(texts[row]))} in {table.place(row)}"
    if number > MAX_SKIPPED * len(texts):
        raise InputError(
            f"RDKit can't read {number} of the {len(texts)} molecules in column"
            f" {smiles!r} of {table.name}, more than {MAX_SKIPPED:.0%}; {first}. Check"
            " that this is the column of SMILES, and correct or remove these molecules"
        )
    table.keep(readable)
    return bits[readable], [
        f"skipped: {number} molecules that RDKit can't read; {first}"
    ]


def _choose_columns(
    table: Table, features: Sequence[str] | str | None, taken: Sequence[str | None]
) -> tuple[list[str], list[str]]:
    """Return the feature columns, and sentences on how they were chosen."""
    if features is not None:
        if isinstance(features, str):
            features = [name.strip() for name in features.split(",") if name.strip()]
        features = [str(name) for name in features]
        wrong = [name for name in features if name in taken]
        if wrong or not features:
            what = f"{wrong[0]!r} is label or task" if wrong else "the list is empty"
            raise InputError(f"features={features}: {what}; name other columns")
        return features, []
    columns, others = table.numeric_columns(taken)
    if not columns:
        raise InputError(
            f"{table.name} has no numeric column except label and task (other columns:"
            f" {first_few(others) or 'none'}); name a column of molecules (smiles=...)"
            " or add features"
        )
    unused = [f"columns not used because they are not numeric: {first_few(others)}"]
    return columns, (unused if others else []) + _identifiers(table, columns)


def _identifiers(table: Table, columns: Sequence[str]) -> list[str]:
    """Report feature columns that look like row numbers."""
    found = [
        name
        for name in columns
        if len(table) > MIN_ROWS_FOR_IDENTIFIERS
        and table.column(name).dtype.kind in "iu"
        and table.column(name).is_unique
    ]
    if not found:
        return []
    return [
        f"used as features, but with a different integer in every row:"
        f" {first_few(found)}; if they are identifiers, choose columns with features="
    ]
