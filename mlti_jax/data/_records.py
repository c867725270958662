"""Samples that stay in ArrayRecord files and are read when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from mlti_jax.errors import InputError


class RecordSource(Protocol):
    """Random access to records, such as `array_record`'s data source."""

    def __getitems__(self, keys: Sequence[int]) -> Sequence[bytes]:
        """Return several records."""


class Records:
    """Samples in files, with the shape and dtype of the array that they form.

    `records[rows]` reads and decodes some of them. Nothing else is read, and nothing is
    kept. They can be pickled for another process, which opens the files again.

    Args:
      source: the records.
      decode: returns the sample of a record.
      rows: the record of each sample, `[M]`.
      shape: shape of a sample.
      dtype: dtype of a sample.
      damaged: returns the error to raise if a record can't be read, from the reason.
      version: bytes that differ if the content of the files does.
      workers: number of processes that read tasks for training; 0 for threads.
    """

    def __init__(
        self,
        source: RecordSource,
        decode: Callable[[bytes], np.ndarray],
        rows: Sequence[int] | np.ndarray,
        shape: tuple[int, ...],
        dtype: Any,
        damaged: Callable[[str], InputError],
        version: bytes = b"",
        workers: int = 0,
    ) -> None:
        self.source, self.decode, self.damaged = source, decode, damaged
        self.rows = np.asarray(rows, np.int64)
        self.shape: tuple[int, ...] = (len(self.rows), *shape)
        self.dtype = np.dtype(dtype)
        self.version, self.workers = version, workers

    def identity(self) -> np.ndarray:
        """Return bytes that identify the samples: their version and their records."""
        return np.frombuffer(self.version + self.rows.tobytes(), np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the array that the samples form."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Read samples; `rows` is anything that selects entries of an array `[M]`.

        Raises:
          InputError: if a record can't be read.
        """
        chosen = self.rows[rows]
        out = np.empty((chosen.size, *self.shape[1:]), self.dtype)
        try:
            keys = [int(row) for row in chosen.reshape(-1)]
            # array_record cannot read nothing.
            found = self.source.__getitems__(keys) if keys else ()
            for place, record in enumerate(found):
                sample = self.decode(record)
                if sample.shape != self.shape[1:]:
                    raise ValueError(
                        f"record {keys[place]} has a sample of shape"
                        f" {list(sample.shape)}, expected {list(self.shape[1:])}"
                    )
                out[place] = sample
        except (MemoryError, InputError):
            raise
        except Exception as error:  # Readers and decoders raise many types of errors.
            text = (str(error).strip().splitlines() or ["no message"])[0][:200]
            raise self.damaged(f"{type(error).__name__}: {text}") from error
        return out.reshape(*chosen.shape, *self.shape[1:])

    # NumPy and JAX call these to read everything at once, which may not fit.

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _not_an_array()

    @property
    def __jax_array__(self) -> NoReturn:
        raise _not_an_array()


def _not_an_array() -> InputError:
    return InputError(
        "this needs all samples in memory, but they are streamed from files; load the"
        " dataset with pool='device' or 'host' (--config.dataset.pool=host)"
    )
