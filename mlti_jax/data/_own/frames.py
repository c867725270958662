"""Reading tables: files, frames and columns, with errors that name them."""

from __future__ import annotations

import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlti_jax._internal.checks import did_you_mean, first_few, unknown_name
from mlti_jax.data._own.labels import clean
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
ENDINGS = (*SEPARATORS, *PARQUET)


class Table:
    """A table and its name; errors name both, and the line of a text file.

    Attributes:
      frame: the columns.
      name: of the file, or `the table`.
    """

    def __init__(self, table: Any):
        """Reads a file, or takes a frame, or a mapping of columns."""
        import pandas as pd

        self.name, self._is_text = "the table", False
        if isinstance(table, str | os.PathLike):
            path = pathlib.Path(table).expanduser()
            self.frame = _read(path)
            self.name = path.name
            self._is_text = path.suffix.lower() in SEPARATORS
        elif isinstance(table, pd.DataFrame):
            self.frame = table
        elif isinstance(table, Mapping):
            try:
                self.frame = pd.DataFrame(dict(table))
            except ValueError as error:
                raise InputError(f"the columns make no table ({error})") from error
        elif hasattr(table, "to_pandas"):  # of Arrow or Polars
            self.frame = table.to_pandas()
        else:
            raise InputError(
                f"a table can't be a {type(table).__name__}; give the path of a"
                f" {', '.join(ENDINGS)} file, a pandas DataFrame, or a dict of columns"
            )
        self._rows = np.arange(len(self.frame))
        twice = self.frame.columns[self.frame.columns.duplicated()]
        if len(twice):
            raise InputError(
                f"{self.name} has two columns named {str(twice[0])!r}; rename one"
            )
        if not len(self.frame):
            raise InputError(f"{self.name} has no rows; expected one for each sample")

    def __len__(self) -> int:
        return len(self.frame)

    def place(self, row: int) -> str:
        """A row as people count it: the head of a text file is its line 1."""
        row = self._rows[row]
        return f"line {row + 2}" if self._is_text else f"row {row}"

    def keep(self, rows: np.ndarray) -> None:
        """Leaves out all other rows, bool `[M]`; the rest keep their places."""
        self.frame = self.frame[rows]
        self._rows = self._rows[rows]

    def column(self, name: str) -> pd.Series:
        """A column, or an error that names it."""
        name, columns = str(name), [str(column) for column in self.frame.columns]
        if name not in columns:
            raise InputError(
                f"{self.name} has no column {name!r}{did_you_mean(name, columns)}; its"
                f" columns are: {first_few(columns)}"
            )
        return self.frame.iloc[:, columns.index(name)]

    def values(self, name: str) -> np.ndarray:
        """A column of labels or names, none missing; see `clean`."""
        column = self.column(name)
        return clean(f"column {name!r} of {self.name}", column, self.place)

    def numeric_columns(self, without: Sequence[str | None]) -> tuple[list[str], list]:
        """The columns of numbers, and the others; `without` are neither."""
        from pandas.api.types import is_numeric_dtype

        numeric, others = [], []
        for name in self.frame.columns:
            if str(name) not in without:
                fitting = is_numeric_dtype(self.frame[name].infer_objects())
                (numeric if fitting else others).append(str(name))
        return numeric, others

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        """Columns of finite numbers, float64 `[M, D]`."""
        return np.stack([self._numbers(name) for name in names], axis=1)

    def _numbers(self, name: str) -> np.ndarray:
        from pandas.api.types import is_numeric_dtype

        column = self.column(name).infer_objects()
        if not is_numeric_dtype(column):
            others = [not isinstance(value, numbers.Number) for value in column]
            row = int(np.argmax(others))
            raise InputError(
                f"column {name!r} of {self.name} holds {column.iloc[row]!r} in"
                f" {self.place(row)}; a feature must be a number. Leave the column out"
                " (features=...), or encode it first, as pandas.get_dummies does"
            )
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = ~np.isfinite(values)
        if missing.any():
            raise InputError(
                f"column {name!r} of {self.name} is empty, NaN or infinite in"
                f" {int(missing.sum())} of {len(values)} rows, the first is"
                f" {self.place(int(np.argmax(missing)))}; fill it in, leave these rows"
                " out, or leave the column out (features=...)"
            )
        return values


def _read(path: pathlib.Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of a table")
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            f"{path} ends in {ending!r}; a table is one of {', '.join(ENDINGS)}"
        )
    try:
        if ending in PARQUET:
            return pd.read_parquet(path)
        return pd.read_csv(
            path,
            sep=SEPARATORS[ending],
            encoding="utf-8-sig",
            low_memory=False,
            index_col=False,
        )
    except MemoryError:
        raise
    except Exception as error:  # pandas and pyarrow raise errors of many types
        line = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise InputError(f"{path} can't be read as a table ({line})") from error


def fingerprints(texts: Sequence[str], which: str) -> tuple[np.ndarray, np.ndarray]:
    """Fingerprints of molecules from their SMILES.

    Args:
      texts: SMILES.
      which: one of `molecules.FINGERPRINTS`.

    Returns:
      Bits, bool `[M, 1024]`, and which molecules RDKit could read, bool `[M]`; the
      bits of the others are all 0.
    """
    from mlti_jax.data._readers import molecules

    molecules.require_rdkit()
    if which not in molecules.FINGERPRINTS:
        raise unknown_name("fingerprint", which, molecules.FINGERPRINTS)
    # Tasks share molecules: each is parsed once.
    parsed = {text: molecules.parse_smiles(str(text)) for text in set(texts)}
    bits = np.zeros((len(texts), molecules.BITS), bool)
    readable = np.array([parsed[text] is not None for text in texts])
    for row in np.flatnonzero(readable):
        bits[row] = getattr(parsed[texts[row]], which)
    return bits, readable
