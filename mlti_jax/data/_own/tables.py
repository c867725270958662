"""Tasks from a table: columns of features, or of molecules."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.data._own.assembly import Division, assemble
from mlti_jax.data._own.frames import Table, fingerprints
from mlti_jax.data._own.inputs import COLUMNS, SMILES, Inputs, Leaf, Smiles
from mlti_jax.data._own.labels import as_names, label_classes, label_tasks
from mlti_jax.data._own.splitting import KeptBack
from mlti_jax.data._own.standardisation import scale_advice, standardising
from mlti_jax.data._pools import Splits
from mlti_jax.errors import InputError

# More molecules that RDKit refuses than this are no accident.
LARGEST_SHARE_SKIPPED = 0.05


def from_table(
    table: Any,
    *,
    label: str,
    task: str | None,
    features: Sequence[str] | str | None = None,
    smiles: str | None = None,
    fingerprint: str = "morgan",
    validation: KeptBack = None,
    test: KeptBack = 0.2,
    seed: int = 0,
    setting: str | None = None,
    standardise: bool = True,
) -> Splits:
    """Makes pools of a table with one sample a row.

    Args:
      table: the path of a .csv, .tsv, .tab or .parquet file; a pandas DataFrame; or a
        dict of columns.
      label: the column of labels. Text, booleans and whole numbers are classes, floats
        are targets (regression), as in `from_arrays`.
      task: the column that says which task a sample belongs to; None if every label is
        a class to draw tasks from (non-label-sharing).
      features: columns of numbers, a list or a text with commas; None for all columns
        of numbers that are neither label nor task.
      smiles: a column of molecules instead: the inputs are their fingerprints (extra
        `bio`). Those that RDKit can't read are left out, up to 5 %.
      fingerprint: `morgan` (radius 2) or `path`, of 1,024 bits.
      validation, test, seed: which tasks are kept back, as in `from_arrays`.
      setting: overrides what labels suggest, as in `from_arrays`.
      standardise: whether to give each feature mean 0 and standard deviation 1 on the
        training tasks. Features that are 0 or 1 only stay as they are.

    Returns:
      The pools. `summary` says what was found and done, `inputs` treats new data alike.
    """
    source = os.path.basename(table) if isinstance(table, str | os.PathLike) else None
    table = Table(table)
    # Columns of frames may have numbers for names.
    label, task, smiles = (None if n is None else str(n) for n in (label, task, smiles))
    for column in (label, task, smiles):
        if column is not None:
            table.column(column)
    if smiles is not None and features is not None:
        raise InputError(
            f"both features and smiles ({smiles!r}) are given; choose one of them"
        )
    details = []
    if smiles is not None:
        bits, details = _read_molecules(table, smiles, fingerprint)
    y = table.values(label)
    if task is None:
        labels = label_classes(y, setting)
    else:
        labels = label_tasks(as_names(table.values(task)), y, setting)
    labels = dataclasses.replace(labels, found=f"column {label!r}, {labels.found}")
    division = Division(labels, validation, test, seed)
    if smiles is not None:
        leaf = Leaf("", bits.shape[1:], str(bits.dtype))
        x, inputs = bits, Inputs(SMILES, (leaf,), smiles=Smiles(smiles, fingerprint))
    else:
        columns, details = _choose_columns(table, features, (label, task))
        x = table.matrix(columns)
        leaf = Leaf("", (len(columns),), "float32")
        inputs = Inputs(COLUMNS, (leaf,), columns=tuple(columns))
        train = x[division.rows("train")]
        if standardise:
            inputs, words = standardising(inputs, train)
            x, details = inputs.standardise(x), [*details, words]
        else:
            x, details = inputs.compact(x), [*details, *scale_advice(train)]
    return assemble(
        division,
        x,
        dataclasses.replace(inputs, label_names=labels.classes),
        note=table.name,
        details=details,
        source=source,
    )


def _read_molecules(
    table: Table, smiles: str, fingerprint: str
) -> tuple[np.ndarray, list[str]]:
    """Fingerprints, bool `[M, 1024]`; rows that RDKit can't read leave the table."""
    texts = table.values(smiles)
    bits, readable = fingerprints(texts.tolist(), fingerprint)
    if readable.all():
        return bits, []
    row, refused = int(np.argmin(readable)), int((~readable).sum())
    first = f"the first is {str(texts[row])!r} in {table.place(row)}"
    if refused > LARGEST_SHARE_SKIPPED * len(texts):
        raise InputError(
            f"of the {len(texts)} molecules in column {smiles!r} of {table.name}, RDKit"
            f" can't read {refused}, more than {LARGEST_SHARE_SKIPPED:.0%}; {first}."
            " Is it the column of SMILES? Else correct them, or leave them out"
        )
    table.keep(readable)
    return bits[readable], [f"left out: {refused} that RDKit can't read; {first}"]


def _choose_columns(
    table: Table, features: Sequence[str] | str | None, taken: Sequence[str | None]
) -> tuple[list[str], list[str]]:
    """The columns of features, and what to say of them."""
    if features is not None:
        if isinstance(features, str):
            features = [name.strip() for name in features.split(",") if name.strip()]
        features = [str(name) for name in features]
        wrong = [name for name in features if name in taken]
        if wrong or not features:
            what = f"{wrong[0]!r} is label or task" if wrong else "it is empty"
            raise InputError(f"features={features}: {what}; name other columns")
        return features, []
    columns, others = table.numeric_columns(taken)
    if not columns:
        raise InputError(
            f"{table.name} has no column of numbers beside label and task, but"
            f" {first_few(others) or 'no other'}; name a column of molecules"
            " (smiles=...), or add features"
        )
    words = [f"columns not used, since they hold no numbers: {first_few(others)}"]
    return columns, (words if others else []) + _identifiers(table, columns)


def _identifiers(table: Table, columns: Sequence[str]) -> list[str]:
    """Says which columns may be numbers of rows rather than features."""
    found = [
        name
        for name in columns
        if len(table) > 20
        and table.column(name).dtype.kind in "iu"
        and table.column(name).is_unique
    ]
    if not found:
        return []
    return [
        f"taken as features, but with another whole number in every row:"
        f" {first_few(found)}; if they are identifiers, name the features"
    ]
