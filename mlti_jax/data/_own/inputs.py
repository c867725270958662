"""`Inputs`: how users' raw data becomes arrays, in training and for new data."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import first_few, unknown_name
from mlti_jax.data._own.files import Table
from mlti_jax.data._own.image_files import map_threads, read_image
from mlti_jax.data._own.labels import clean
from mlti_jax.data._own.targets import TargetScaling
from mlti_jax.data._pools import take_inputs
from mlti_jax.data._readers.fingerprints import fingerprint_matrix, unreadable
from mlti_jax.data._user_arrays import (
    as_numpy,
    cast,
    check_arrays,
    check_magnitude,
    is_list,
)
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

# Values of `Inputs.kind`; saved models contain them.
ARRAYS, IMAGES, COLUMNS, SMILES = "arrays", "pictures", "columns", "smiles"
KINDS = (ARRAYS, IMAGES, COLUMNS, SMILES)

# Ratio of standard deviations from which `scale_advice` suggests to standardize.
WIDE_RANGE = 100.0
# Standardized pixels are smaller than this, values from 0 to 255 are not.
MAX_PIXEL = 10.0


class Leaf(NamedTuple):
    """One array of an input: its path in the pytree, and shape and dtype per sample."""

    path: str
    shape: tuple[int, ...]
    dtype: str


class Smiles(NamedTuple):
    """The column of SMILES, and the fingerprint: `morgan` or `path`."""

    column: str
    fingerprint: str = "morgan"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A record of how raw data became samples, which converts new data the same way.

    `inputs(raw)` returns what a network takes, or raises `InputError`.

    Attributes:
      kind: `arrays`, `pictures` (image files), `columns` (of a table) or `smiles`.
      leaves: the arrays of an input, as pools store them; one, unless x is a pytree.
      mean, scale: x becomes `(x - mean) / scale`, one number per feature; empty if x
        is not standardized.
      columns: feature columns of a table, in order.
      smiles: the column of SMILES, and the fingerprint.
      resize: whether images of another size are scaled.
      label_names: the classes that all tasks share, in the order of the outputs.
      targets: how regression targets are standardized.
    """

    kind: str
    leaves: tuple[Leaf, ...]
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    smiles: Smiles | None = None
    resize: bool = False
    label_names: tuple[str, ...] = ()
    targets: TargetScaling = TargetScaling()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample (of the first array, if x is a pytree)."""
        return self.leaves[0].shape

    @property
    def dtype(self) -> str:
        """Dtype in the pool (of the first array, if x is a pytree)."""
        return self.leaves[0].dtype

    def __call__(self, raw: Any) -> PyTree:
        """Convert new raw data to network inputs, every leaf `[N, ...]`.

        Args:
          raw: for `arrays`, an array `[N, ...]` or a pytree as in training; for
            `pictures`, paths of files, or uint8 `[N, H, W, C]`; for `columns`, a table
            (path, DataFrame or dict of columns), or `[N, D]` in the columns' order;
            for `smiles`, a table, a list of SMILES, or fingerprints `[N, 1024]`.

        Raises:
          InputError: if the data differs from the training data in shape or type, or
            a file can't be read.
        """
        compact = jax.tree.map(jnp.asarray, self.compact(raw))
        return take_inputs(compact, slice(None))

    def compact(self, raw: Any) -> PyTree:
        """Convert raw data to what pools store: images as uint8, bits as booleans."""
        is_array = isinstance(raw, np.ndarray | jax.Array)
        if self.smiles is not None and not (is_array and raw.ndim == 2):
            return self._read_molecules(raw, self.smiles)
        if self.kind == IMAGES and _are_paths(raw):
            return self._read_images(raw)
        if self.kind == COLUMNS and not (is_array or isinstance(raw, list)):
            raw = Table(raw).matrix(self.columns)
        x = self._check(raw)
        x = self.standardise(x) if self.mean else self._match_dtypes(x)
        check_magnitude("x", x)
        return x

    def standardise(self, x: np.ndarray) -> np.ndarray:
        """Return `(x - mean) / scale` as float32, computed in float64."""
        x = x.astype(np.float64)
        with np.errstate(over="ignore"):  # `check_magnitude` reports it.
            return ((x - np.array(self.mean)) / np.array(self.scale)).astype(np.float32)

    def describe(self) -> str:
        """Return a short text: dtype, shape, and columns or fingerprint."""
        parts = [f"{leaf.dtype} {list(leaf.shape)}" for leaf in self.leaves]
        if len(self.leaves) > 1:
            parts = [
                f"{leaf.path} {part}"
                for leaf, part in zip(self.leaves, parts, strict=True)
            ]
        text = ", ".join(parts)
        if self.smiles is not None:
            fingerprint = self.smiles.fingerprint
            text += f", {fingerprint} fingerprints of column {self.smiles.column!r}"
        if self.kind == COLUMNS:
            text += f", columns {first_few(self.columns)}"
        return text

    # ------------------------------------------------------------------------ JSON

    def to_json(self) -> str:
        """Serialize the record; see `from_json`."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Inputs:
        """Restore a record from the output of `to_json`.

        Raises:
          InputError: if the text is not such a record.
        """
        try:
            fields = {name: _tuples(value) for name, value in json.loads(text).items()}
            fields["leaves"] = tuple(
                Leaf(str(path), tuple(map(int, shape)), str(np.dtype(dtype)))
                for path, shape, dtype in fields["leaves"]
            )
            if fields["smiles"] is not None:
                fields["smiles"] = Smiles(*fields["smiles"])
            # Records of earlier versions have no targets.
            fields["targets"] = TargetScaling(*fields.get("targets", ()))
            inputs = cls(**fields)
            inputs._check_record()
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            SyntaxError,  # from np.dtype
            RecursionError,
        ) as error:
            raise InputError(
                f"the record of inputs can't be read ({type(error).__name__}: {error});"
                " it is damaged, or from another version of this package"
            ) from error
        if inputs.kind not in KINDS:
            raise unknown_name("kind of inputs", inputs.kind, KINDS)
        return inputs

    def _check_record(self) -> None:
        """Raise `ValueError` if fields of a record that was read are inconsistent."""
        for mean, scale in ((self.mean, self.scale), self.targets):
            numbers = (*mean, *scale)
            if not all(isinstance(n, float) and math.isfinite(n) for n in numbers):
                raise ValueError("mean or scale is not a list of finite numbers")
            if len(mean) != len(scale):
                raise ValueError("mean and scale do not fit together")
            if min(scale, default=1.0) <= 0:
                raise ValueError(f"scale is {min(scale)}; expected positive numbers")
        if not self.leaves:
            raise ValueError("it has no array")
        lengths = {len(part) for part in (self.mean, self.columns) if part}
        if lengths and (
            len(self.leaves) > 1 or {self.shape} != {(n,) for n in lengths}
        ):
            raise ValueError(
                f"mean, scale or columns do not fit the shape {self.shape}"
            )
        if (self.kind == SMILES) != (self.smiles is not None):
            raise ValueError(f"kind is {self.kind}, but smiles is {self.smiles}")
        names = (*self.columns, *self.label_names, *(self.smiles or ()))
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a name is not text")
        for leaf in self.leaves:
            if (
                min(leaf.shape, default=1) < 1
                or np.dtype(leaf.dtype).kind not in "buif"
            ):
                raise ValueError(f"an array is {leaf.dtype} {list(leaf.shape)}")

    # ----------------------------------------------------------------- kinds of data

    def _check(self, raw: Any) -> PyTree:
        """Return checked arrays with the shapes of training."""
        found = jax.tree_util.tree_leaves_with_path(raw, is_leaf=is_list)
        given = {
            jax.tree_util.keystr(path): as_numpy("x", leaf).shape
            for path, leaf in found
        }
        if list(given) != [leaf.path for leaf in self.leaves]:
            raise InputError(
                f"x has the arrays {list(given)}; expected those of training,"
                f" {[leaf.path for leaf in self.leaves]}"
            )
        for leaf in self.leaves:
            shape = given[leaf.path]
            if shape == leaf.shape:
                raise InputError(
                    f"x{leaf.path} has shape {list(shape)}, the shape of one sample;"
                    " expected a leading axis of samples: x[None]"
                )
            if shape[1:] != leaf.shape:
                raise InputError(
                    f"x{leaf.path} has shape {list(shape)}; expected"
                    f" [{', '.join(map(str, ('N', *leaf.shape)))}], as in training"
                )
        return check_arrays("x", raw)

    def _match_dtypes(self, x: PyTree) -> PyTree:
        """Cast to the dtypes of training; raise `InputError` if values change."""

        def match(leaf: Leaf, array: np.ndarray) -> np.ndarray:
            converted = array.astype(leaf.dtype)
            pixels = (array.dtype == np.uint8) != (leaf.dtype == "uint8")
            if str(array.dtype) != leaf.dtype and (
                pixels or not (converted == array).all()
            ):
                raise InputError(
                    f"x{leaf.path} has dtype {array.dtype}; expected {leaf.dtype}, as"
                    " in training. (Only uint8 images are divided by 255)"
                )
            return converted

        found, structure = jax.tree.flatten(cast(x))
        return jax.tree.unflatten(structure, map(match, self.leaves, found))

    def _read_images(self, raw: Any) -> np.ndarray:
        files = [raw] if isinstance(raw, str | os.PathLike) else list(raw)
        if not files:
            raise InputError("the list of image files is empty; pass at least one path")
        paths = [pathlib.Path(file).expanduser() for file in files]
        return np.stack(
            map_threads(lambda p: read_image(p, self.shape, self.resize), paths)
        )

    def _read_molecules(self, raw: Any, smiles: Smiles) -> np.ndarray:
        # A column of a data frame has one axis, a data frame two.
        if isinstance(raw, list | tuple) or getattr(raw, "ndim", 2) == 1:
            place: Callable[[int], str] = "row {}".format
            texts = clean("x", raw)
        else:
            table = Table(raw)
            place, texts = table.place, table.values(smiles.column)
        bits, readable = fingerprint_matrix(texts.tolist(), smiles.fingerprint)
        if not readable.all():
            row = int(np.argmin(readable))
            raise InputError(
                f"RDKit can't read the molecule {unreadable(str(texts[row]))} in"
                f" {place(row)}; correct its SMILES or remove it"
            )
        return bits


def leaves_of(x: PyTree) -> tuple[Leaf, ...]:
    """List the arrays of x, `[M, ...]`, in the form of `Inputs.leaves`."""
    return tuple(
        Leaf(jax.tree_util.keystr(path), leaf.shape[1:], str(leaf.dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(x)
    )


def _are_paths(raw: Any) -> bool:
    if isinstance(raw, str | os.PathLike):
        return True
    return isinstance(raw, list | tuple) and all(
        isinstance(path, str | os.PathLike) for path in raw
    )


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, recursively."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------------- standardization


def feature_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean and scale of features.

    Args:
      x: samples of the training tasks, `[M, D]`.

    Returns:
      Mean and standard deviation, `[D]`; 0 and 1 for binary features, which are not
      standardized, and a scale of 1 for constant ones.
    """
    x = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = x.mean(axis=0), x.std(axis=0)
    # Rounding can give equal numbers a tiny deviation, and so a huge standard score.
    scale[x.min(axis=0) == x.max(axis=0)] = 1.0
    unchanged = _is_binary(x)
    mean[unchanged], scale[unchanged] = 0.0, 1.0
    return mean, scale


def with_statistics(inputs: Inputs, x: np.ndarray) -> tuple[Inputs, str]:
    """Add the statistics of the training tasks to a record of vectors.

    Args:
      inputs: record of vectors.
      x: samples of the training tasks, `[M, D]`.

    Returns:
      The new record, and one sentence on the features.

    Raises:
      InputError: if the squares of a feature overflow or vanish in float64.
    """
    mean, scale = feature_statistics(x)
    wrong = ~(np.isfinite(mean) & np.isfinite(scale) & (scale > 0))
    if wrong.any():
        number = int(np.argmax(wrong))
        name = repr(inputs.columns[number]) if inputs.columns else str(number)
        raise InputError(
            f"feature {name} has values up to {np.abs(x[:, number]).max():.3g}, for"
            " which no standard deviation can be computed; scale them to about 1"
        )
    leaf = inputs.leaves[0]._replace(dtype="float32")
    inputs = dataclasses.replace(
        inputs, leaves=(leaf,), mean=tuple(mean.tolist()), scale=tuple(scale.tolist())
    )
    binary, constant = int(_is_binary(x).sum()), x.min(axis=0) == x.max(axis=0)
    text = f"standardized: {x.shape[1] - binary} of {x.shape[1]} features"
    if binary:
        text += f", the other {binary} are 0 or 1"
    if constant.any():
        text += f"; {int(constant.sum())} are constant in the training tasks"
    return inputs, text


def scale_advice(x: np.ndarray) -> list[str]:
    """Suggest to standardize features `[M, D]` if their scales differ widely."""
    with np.errstate(over="ignore", invalid="ignore"):
        spread = x.astype(np.float64).std(axis=0)
    spread = spread[spread > 0]
    if not len(spread) or spread.max() <= WIDE_RANGE * spread.min():
        return []
    return [
        f"standard deviations of features differ by a factor of"
        f" {spread.max() / spread.min():,.0f}; use standardise=True to scale them"
    ]


def pixel_advice(x: np.ndarray) -> list[str]:
    """Suggest to scale float images `[M, H, W, C]` if their values are large."""
    largest = float(np.abs(x).max())
    if largest <= MAX_PIXEL:
        return []
    return [
        f"images are floats up to {largest:.3g} and are used without scaling; divide"
        " them by 255, or pass uint8, which is divided by 255"
    ]


def _is_binary(x: np.ndarray) -> np.ndarray:
    return ((x == 0) | (x == 1)).all(axis=0)
