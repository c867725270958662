"""Reading users' tables and arrays, with errors that name the file."""

from __future__ import annotations

import csv
import math
import os
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from mlti_jax._internal.checks import did_you_mean, first_few
from mlti_jax._internal.extras import require
from mlti_jax.data._own.labels import clean
from mlti_jax.data._readers.files import check_file
from mlti_jax.data._user_arrays import check_masks
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
TABLE_SUFFIXES = (*SEPARATORS, *PARQUET)
MAX_COLUMNS = 100_000  # of a table; more take minutes to read
MAX_BYTES = 8 * 2**30  # of pixels, arrays or numbers, which are all held in memory


# ------------------------------------------------------------------------------- tables


class Table:
    """A table and its name; errors name the table, the column and the row.

    Attributes:
      frame: the columns.
      name: the file name, or `the table`.
    """

    def __init__(self, table: Any):
        """Read a file, or wraps a data frame or a mapping of columns.

        Raises:
          InputError: if `table` can't be read, is empty or has duplicate columns.
        """
        require("pandas", "own")
        import pandas as pd

        self.name, self._is_text = "the table", False
        if isinstance(table, str | os.PathLike):
            path = pathlib.Path(table).expanduser()
            self.frame = _read_frame(path)
            self.name = path.name
            self._is_text = path.suffix.lower() in SEPARATORS
        elif isinstance(table, pd.DataFrame):
            self.frame = table
        elif isinstance(table, Mapping):
            for name, column in table.items():
                check_masks(f"column {str(name)!r} of the table", column)
            try:
                self.frame = pd.DataFrame(dict(table))
            except ValueError as error:
                raise InputError(
                    f"the columns do not form a table ({error})"
                ) from error
        elif hasattr(table, "to_pandas"):  # Arrow or Polars
            self.frame = table.to_pandas()
        else:
            raise InputError(
                f"table is a {type(table).__name__}; expected the path of a"
                f" {', '.join(TABLE_SUFFIXES)} file, a pandas DataFrame, or a dict of"
                " columns"
            )
        self._rows = np.arange(len(self.frame))
        names = [str(name) for name in self.frame.columns]
        _check_names(self.name, names)
        self._position = {name: i for i, name in enumerate(names)}
        if not len(self.frame):
            raise InputError(f"{self.name} has no rows; expected one per sample")

    def __len__(self) -> int:
        return len(self.frame)

    def place(self, row: int) -> str:
        """Names a row for errors: by line in a text file (the header is line 1)."""
        row = int(self._rows[row])
        return f"line {row + 2}" if self._is_text else f"row {row}"

    def keep(self, rows: np.ndarray) -> None:
        """Remove all rows outside the mask bool `[M]`; `place` stays correct."""
        self.frame = self.frame[rows]
        self._rows = self._rows[rows]

    def column(self, name: str) -> pd.Series:
        """Return a column; raise `InputError` if it does not exist."""
        name = str(name)
        if name not in self._position:
            columns = list(self._position)
            raise InputError(
                f"{self.name} has no column {name!r}{did_you_mean(name, columns)}; its"
                f" columns are: {first_few(columns)}"
            )
        return self.frame.iloc[:, self._position[name]]

    def values(self, name: str) -> np.ndarray:
        """Return a column of labels or names without missing values; see `clean`."""
        column = self.column(name)
        return clean(f"column {name!r} of {self.name}", column, self.place)

    def numeric_columns(
        self, without: Sequence[str | None]
    ) -> tuple[list[str], list[str]]:
        """Return the names of numeric and other columns, except those in `without`."""
        from pandas.api.types import is_numeric_dtype

        numeric: list[str] = []
        others: list[str] = []
        for name in self._position:
            if name not in without:
                is_numeric = is_numeric_dtype(self.column(name).infer_objects())
                (numeric if is_numeric else others).append(name)
        return numeric, others

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of finite numbers, float64 `[M, D]`."""
        return np.stack([self._numbers(name) for name in names], axis=1)

    def _numbers(self, name: str) -> np.ndarray:
        from pandas.api.types import is_numeric_dtype

        column = self.column(name).infer_objects()
        if not is_numeric_dtype(column):
            import pandas as pd

            # In a text file, numbers beside a word are texts too.
            parsed = pd.to_numeric(column, errors="coerce")
            row = int(np.argmax((parsed.isna() & column.notna()).to_numpy()))
            raise InputError(
                f"column {name!r} of {self.name} contains {column.iloc[row]!r} in"
                f" {self.place(row)}; expected numbers. Exclude the column"
                " (features=...) or encode it, for example with pandas.get_dummies"
            )
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = ~np.isfinite(values)
        if missing.any():
            raise InputError(
                f"column {name!r} of {self.name} is empty, NaN or infinite in"
                f" {int(missing.sum())} of {len(values)} rows, the first is"
                f" {self.place(int(np.argmax(missing)))}; fill in the values, remove"
                " these rows, or exclude the column (features=...)"
            )
        return values


def _read_frame(path: pathlib.Path) -> pd.DataFrame:
    import pandas as pd

    check_file(path)
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(
            f"{path} ends in {suffix!r}; expected one of {', '.join(TABLE_SUFFIXES)}"
        )
    try:
        if suffix in PARQUET:
            _check_parquet(path)
            return pd.read_parquet(path)
        _check_text(path, SEPARATORS[suffix])
        frame = pd.read_csv(
            path, sep=SEPARATORS[suffix], encoding="utf-8-sig", low_memory=False
        )
        if not isinstance(frame.index, pd.RangeIndex):
            # pandas uses the first fields of longer rows as names of the rows.
            raise InputError(f"{path} has rows with more fields than the header")
        return frame
    except (InputError, MemoryError):
        raise
    except Exception as error:  # pandas and pyarrow raise many types of errors.
        raise InputError(
            f"{path} can't be read as a table ({_first_line(error)})"
        ) from error


def _check_text(path: pathlib.Path, separator: str) -> None:
    """Raise `InputError` for faults of a text file that pandas does not report."""
    with path.open("rb") as binary:
        for part in iter(lambda: binary.read(2**20), b""):
            if b"\0" in part:
                raise InputError(
                    f"{path} is not a text file in UTF-8: it has NUL bytes; save it as"
                    " CSV in UTF-8"
                )
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=separator)
        # Like pandas, skip blank lines.
        lines = (row for row in rows if len(row) > 1 or "".join(row).strip())
        header, first = next(lines, []), next(lines, [])
        if len(header) > MAX_COLUMNS:
            raise InputError(
                f"{path} has {len(header):,} columns; expected at most {MAX_COLUMNS:,}."
                " Remove columns, or use from_arrays"
            )
        _check_names(str(path), header)
        if len(first) > len(header):
            raise InputError(
                f"line {rows.line_num} of {path} has {len(first)} fields, but the"
                f" header names {len(header)} columns; add the missing names, or remove"
                " separators at the ends of lines"
            )


def _check_names(table: str, names: Sequence[str]) -> None:
    """Raise `InputError` if two columns have the same name.

    pandas renames the second `y` of a file to `y.1`: the label would be a feature.
    """
    seen: set[str] = set()
    for name in map(str.strip, names):
        if name and name in seen:
            raise InputError(f"{table} has two columns named {name!r}; rename one")
        seen.add(name)


def _check_parquet(path: pathlib.Path) -> None:
    """Raise `InputError` if a table does not fit into memory."""
    metadata = require("pyarrow.parquet", "own").read_metadata(path)
    size = 8 * metadata.num_rows * metadata.num_columns
    if size > MAX_BYTES or metadata.num_columns > MAX_COLUMNS:
        raise InputError(
            f"{path} has {metadata.num_rows:,} rows and {metadata.num_columns:,}"
            f" columns; expected at most {MAX_COLUMNS:,} columns and"
            f" {MAX_BYTES // 8:,} values. Remove rows or columns"
        )


# ------------------------------------------------------------------------------- arrays


def read_npz(
    path: pathlib.Path, names: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file; others in it are not read.

    Args:
      path: the file, as `numpy.savez` or `numpy.savez_compressed` write it.
      names: arrays that it must have.
      optional: arrays that it may have.

    Raises:
      InputError: if the file is damaged, an array is missing or holds objects, or the
        arrays have more than `MAX_BYTES`.
    """
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                entry.filename.removesuffix(".npy"): entry
                for entry in archive.infolist()
            }
            found = sorted(members)
            if len(members) < len(archive.infolist()):
                raise InputError(f"{path} has two arrays of one name; save it again")
            for name in names:
                if name not in found:
                    raise InputError(
                        f"{path} has no array {name!r}, but {first_few(found)};"
                        f" expected {', '.join(names)}, as written by numpy.savez"
                    )
            wanted = [name for name in (*names, *optional) if name in found]
            entries = {name: members[name] for name in wanted}
            size = sum(entry.file_size for entry in entries.values())
            if size > MAX_BYTES:
                raise InputError(
                    f"the arrays of {path} have {size:,} bytes; expected at most"
                    f" {MAX_BYTES:,}. Remove samples or features"
                )
            return {
                name: _read_array(archive, entry, f"array {name!r} of {path}")
                for name, entry in entries.items()
            }
    except InputError:
        raise
    except Exception as error:  # Archives, decompressors and NumPy raise many types.
        raise InputError(
            f"{path} can't be read ({_first_line(error)}); expected arrays of numbers"
            " or text, as written by numpy.savez. If it is damaged, copy it again"
        ) from error


def _read_array(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, place: str
) -> np.ndarray:
    with archive.open(entry) as file:
        _check_header(file, entry.file_size, place)
    with archive.open(entry) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read()  # To the end, where the checksum is compared.
    return array


def _check_header(file: IO[bytes], size: int, place: str) -> None:
    """Raise `InputError` if the header of an array does not fit its size in bytes."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:  # Only names of fields that are not Latin-1 need version 3.
        raise InputError(
            f"{place} has version {version} of the format; expected numbers or text"
        )
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise InputError(
            f"{place} has dtype object; expected numbers or text. Convert it first,"
            " for example with astype(float) or astype(str)"
        )
    content = size - file.tell()
    if min(shape, default=0) < 0 or content != dtype.itemsize * math.prod(shape):
        raise InputError(
            f"{place} is damaged: its header says {dtype} {list(shape)}, but it has"
            f" {content:,} bytes. Copy the file again"
        )


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or ["no message"])[0][:200]
    return f"{type(error).__name__}: {text}"
