"""Reading users' files: tables and images, with errors that name the file."""

from __future__ import annotations

import concurrent.futures
import contextlib
import numbers
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from mlti_jax._internal.checks import did_you_mean, first_few
from mlti_jax._internal.extras import require
from mlti_jax._internal.processes import default_processes
from mlti_jax.data._own.labels import clean
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
TABLE_SUFFIXES = (*SEPARATORS, *PARQUET)

GRAYSCALE_MODES = ("1", "L", "LA", "La")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF tag, and values of a quarter turn

T = TypeVar("T")
R = TypeVar("R")

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
        twice = self.frame.columns[self.frame.columns.duplicated()]
        if len(twice):
            raise InputError(
                f"{self.name} has two columns named {str(twice[0])!r}; rename one"
            )
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
        name, columns = str(name), [str(column) for column in self.frame.columns]
        if name not in columns:
            raise InputError(
                f"{self.name} has no column {name!r}{did_you_mean(name, columns)}; its"
                f" columns are: {first_few(columns)}"
            )
        return self.frame.iloc[:, columns.index(name)]

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
        for name in self.frame.columns:
            if str(name) not in without:
                is_numeric = is_numeric_dtype(self.frame[name].infer_objects())
                (numeric if is_numeric else others).append(str(name))
        return numeric, others

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of finite numbers, float64 `[M, D]`."""
        return np.stack([self._numbers(name) for name in names], axis=1)

    def _numbers(self, name: str) -> np.ndarray:
        from pandas.api.types import is_numeric_dtype

        column = self.column(name).infer_objects()
        if not is_numeric_dtype(column):
            others = [not isinstance(value, numbers.Number) for value in column]
            row = int(np.argmax(others))
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

    if not path.is_file():
        raise InputError(f"file {path} does not exist; expected the path of a table")
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(
            f"{path} ends in {suffix!r}; expected one of {', '.join(TABLE_SUFFIXES)}"
        )
    try:
        if suffix in PARQUET:
            return pd.read_parquet(path)
        return pd.read_csv(
            path,
            sep=SEPARATORS[suffix],
            encoding="utf-8-sig",
            low_memory=False,
            index_col=False,
        )
    except MemoryError:
        raise
    except Exception as error:  # pandas and pyarrow raise many types of errors.
        line = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise InputError(f"{path} can't be read as a table ({line})") from error


# ------------------------------------------------------------------------------- images


class ImageHeader(NamedTuple):
    """Height and width after EXIF rotation, and whether the image is grayscale."""

    height: int
    width: int
    grayscale: bool


def read_header(path: pathlib.Path) -> ImageHeader:
    """Read the header of an image file without decoding its pixels."""
    with _opened(path) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return ImageHeader(height, width, image.mode in GRAYSCALE_MODES)


def read_image(path: pathlib.Path, shape: Sequence[int], resize: bool) -> np.ndarray:
    """Read an image and applies its EXIF rotation, uint8 `[H, W, C]`.

    Args:
      path: the file.
      shape: (H, W, C), with 1 channel for grayscale and 3 for color.
      resize: whether to scale images of another size (Lanczos).

    Raises:
      InputError: if the file is not an image, or has another size and `resize` is
        False.
    """
    from PIL import Image, ImageOps

    height, width, channels = shape
    with _opened(path) as image:
        image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            if not resize:
                raise InputError(
                    f"{path} has {image.size[1]}x{image.size[0]} pixels (height x"
                    f" width); expected {height}x{width}. Scale it first"
                )
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(image, np.uint8).reshape(height, width, channels)


def map_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return `list(map(function, items))`; image decoders release the GIL."""
    pool = concurrent.futures.ThreadPoolExecutor(default_processes())
    try:
        return list(pool.map(function, items))
    finally:  # After an error the remaining items are not needed.
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    require("PIL", "own")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise InputError(
                    f"{path} has more than 8 bits per channel (mode {image.mode});"
                    " convert it to 8 bits, or use from_arrays with floats"
                )
            yield image
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise InputError(
            f"{path} is not an image, or its format is not supported; remove it (files"
            " whose names start with a dot are ignored)"
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"file {path} does not exist") from error
    except Exception as error:  # Pillow's decoders raise many types of errors.
        raise InputError(
            f"{path} is damaged or not an image ({error}); remove it or copy it again"
        ) from error
