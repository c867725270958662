"""How users' raw inputs become arrays: one record, for training and for new data."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import did_you_mean, first_few, unknown_name
from mlti_jax.data import _arrays as arrays
from mlti_jax.data._own.frames import Table, fingerprints
from mlti_jax.data._own.labels import as_names, clean
from mlti_jax.data._own.pictures import in_threads, read_picture
from mlti_jax.data._pools import take_inputs
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

ARRAYS, PICTURES, COLUMNS, SMILES = "arrays", "pictures", "columns", "smiles"
KINDS = (ARRAYS, PICTURES, COLUMNS, SMILES)


class Leaf(NamedTuple):
    """One array of an input: where it stands in the pytree, and what a sample is."""

    path: str
    shape: tuple[int, ...]
    dtype: str


class Smiles(NamedTuple):
    """The column that molecules are in, and their fingerprint: `morgan` or `path`."""

    column: str
    fingerprint: str = "morgan"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What inputs are, and what was done to them; new data is treated alike.

    Call it on new raw data: `inputs(raw)` is what a network takes, or one clear error.

    Attributes:
      kind: `arrays`, `pictures` (files), `columns` (of a table) or `smiles`.
      leaves: the arrays of an input, as pools hold them; one, unless x is a pytree.
      mean, scale: x becomes `(x - mean) / scale`, one number a feature; empty if not.
      columns: the features of a table, in order.
      smiles: the column of molecules, and the fingerprint.
      resize: whether pictures of another size are scaled.
      label_names: the classes that all tasks share, in the order of the outputs.
    """

    kind: str
    leaves: tuple[Leaf, ...]
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    smiles: Smiles | None = None
    resize: bool = False
    label_names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample; of several arrays, that of the first."""
        return self.leaves[0].shape

    @property
    def dtype(self) -> str:
        """As pools hold it; of several arrays, that of the first."""
        return self.leaves[0].dtype

    def __call__(self, raw: Any) -> PyTree:
        """New raw data as a network takes it, every leaf `[N, ...]`.

        Args:
          raw: for `arrays`, an array `[N, ...]` or a pytree as in training; for
            `pictures`, paths of files, or uint8 `[N, H, W, C]`; for `columns`, a table
            (path, DataFrame or dict of columns), or `[N, D]` in the columns' order;
            for `smiles`, a table, a list of SMILES, or fingerprints `[N, 1024]`.
        """
        compact = jax.tree.map(jnp.asarray, self.compact(raw))
        return take_inputs(compact, slice(None))

    def compact(self, raw: Any) -> PyTree:
        """The same as pools hold it: pictures as uint8, bits as booleans."""
        is_array = isinstance(raw, np.ndarray | jax.Array)
        if self.kind == SMILES and not (is_array and raw.ndim == 2):
            return self._molecules(raw)
        if self.kind == PICTURES and _are_paths(raw):
            return self._pictures(raw)
        if self.kind == COLUMNS and not (is_array or isinstance(raw, list)):
            raw = Table(raw).matrix(self.columns)
        x = self._check(raw)
        return self.standardise(x) if self.mean else self._match(x)

    def standardise(self, x: np.ndarray) -> np.ndarray:
        """`(x - mean) / scale`, rounded to float32 only then."""
        x = x.astype(np.float64)
        return ((x - np.array(self.mean)) / np.array(self.scale)).astype(np.float32)

    def label_ids(self, y: Any) -> Array:
        """The numbers of classes that all tasks share, `[N]`, from their names."""
        names = as_names(clean("y", y))
        if names.ndim != 1:
            raise InputError(
                f"y has shape {list(names.shape)}; expected [N], the class of each"
                " sample"
            )
        known = {name: number for number, name in enumerate(self.label_names)}
        for name in names.tolist():
            if name not in known:
                raise InputError(
                    f"y has the label {name!r}{did_you_mean(name, known)}; the model"
                    f" was trained with: {first_few(self.label_names)}"
                )
        return jnp.array([known[name] for name in names.tolist()], jnp.int32)

    def describe(self) -> str:
        """In words."""
        parts = [f"{leaf.dtype} {list(leaf.shape)}" for leaf in self.leaves]
        if len(self.leaves) > 1:
            parts = [
                f"{leaf.path} {part}"
                for leaf, part in zip(self.leaves, parts, strict=True)
            ]
        text = ", ".join(parts)
        if self.kind == SMILES:
            fingerprint = self.smiles.fingerprint
            text += f", {fingerprint} fingerprints of column {self.smiles.column!r}"
        if self.kind == COLUMNS:
            text += f", columns {first_few(self.columns)}"
        return text

    # ------------------------------------------------------------------------ JSON

    def to_json(self) -> str:
        """As text; `from_json` makes the same record of it."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Inputs:
        """The record that `to_json` wrote."""
        try:
            fields = {name: _tuples(value) for name, value in json.loads(text).items()}
            fields["leaves"] = tuple(
                Leaf(str(path), tuple(map(int, shape)), str(np.dtype(dtype)))
                for path, shape, dtype in fields["leaves"]
            )
            if fields["smiles"] is not None:
                fields["smiles"] = Smiles(*fields["smiles"])
            inputs = cls(**fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the record of inputs can't be read ({type(error).__name__}: {error});"
                " it is damaged, or of another version of this project"
            ) from error
        if inputs.kind not in KINDS:
            raise unknown_name("kind of inputs", inputs.kind, KINDS)
        return inputs

    # ---------------------------------------------------------------- kinds of data

    def _check(self, raw: Any) -> PyTree:
        """Arrays of the shapes that were trained with."""
        found = jax.tree_util.tree_leaves_with_path(raw, is_leaf=_is_list)
        given = {
            jax.tree_util.keystr(path): _as_numpy("x", leaf).shape
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
                    f"x{leaf.path} has shape {list(shape)}, which is one sample;"
                    " expected a first axis for samples: x[None]"
                )
            if shape[1:] != leaf.shape:
                raise InputError(
                    f"x{leaf.path} has shape {list(shape)}; expected"
                    f" [{', '.join(map(str, ('N', *leaf.shape)))}], as in training"
                )
        return check_arrays("x", raw)

    def _match(self, x: PyTree) -> PyTree:
        """Arrays of the types that were trained with, if that changes no value."""

        def match(leaf: Leaf, array: np.ndarray) -> np.ndarray:
            converted = array.astype(leaf.dtype)
            pictures = (array.dtype == np.uint8) != (leaf.dtype == "uint8")
            if str(array.dtype) != leaf.dtype and (
                pictures or not (converted == array).all()
            ):
                raise InputError(
                    f"x{leaf.path} has dtype {array.dtype}; expected {leaf.dtype}, as"
                    " in training. (Pictures in uint8 are divided by 255 when they are"
                    " read, others are not)"
                )
            return converted

        found, structure = jax.tree.flatten(cast(x))
        return jax.tree.unflatten(structure, map(match, self.leaves, found))

    def _pictures(self, raw: Any) -> np.ndarray:
        paths = [raw] if isinstance(raw, str | os.PathLike) else list(raw)
        if not paths:
            raise InputError("there are no pictures; expected one path or more")
        paths = [pathlib.Path(path).expanduser() for path in paths]
        return np.stack(
            in_threads(lambda p: read_picture(p, self.shape, self.resize), paths)
        )

    def _molecules(self, raw: Any) -> np.ndarray:
        # A column of a frame has one axis, a frame two.
        if isinstance(raw, list | tuple) or getattr(raw, "ndim", 2) == 1:
            place, texts = "row {}".format, clean("x", raw)
        else:
            table = Table(raw)
            place, texts = table.place, table.values(self.smiles.column)
        bits, readable = fingerprints(texts.tolist(), self.smiles.fingerprint)
        if not readable.all():
            row = int(np.argmin(readable))
            raise InputError(
                f"RDKit can't read the molecule {str(texts[row])!r} in {place(row)};"
                " correct its SMILES, or leave it out"
            )
        return bits


def check_arrays(field: str, x: Any) -> PyTree:
    """Users' arrays as NumPy's, every leaf `[M, ...]`, M alike and above 0.

    Args:
      field: what x is, for errors.
      x: an array, or what NumPy makes one of; or a pytree of these (lists are arrays).
    """
    leaves, structure = jax.tree.flatten(x, is_leaf=_is_list)
    if not leaves:
        raise InputError(f"{field} is empty; expected an array [M, ...]")
    checked = [_check_array(field, leaf) for leaf in leaves]
    if len({len(array) for array in checked}) > 1:
        raise InputError(
            f"{field} has arrays of {', '.join(str(len(a)) for a in checked)} samples;"
            " expected as many in each"
        )
    return jax.tree.unflatten(structure, checked)


def _as_numpy(field: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(
            f"{field} is no array ({error}); pad rows of different lengths to one"
        ) from error


def _check_array(field: str, values: Any) -> np.ndarray:
    values = arrays.check_values(field, _as_numpy(field, values))
    if values.ndim < 2 or 0 in values.shape:
        raise InputError(
            f"{field} has shape {list(values.shape)}; expected [M, ...], with at least"
            " one sample and one feature. For a single feature use x[:, None]"
        )
    if values.dtype.kind == "f" and np.abs(values).max() > np.finfo(np.float32).max:
        raise InputError(
            f"{field} has values up to {np.abs(values).max():g}, too large for float32;"
            " divide them first"
        )
    return values


def cast(x: PyTree) -> PyTree:
    """Checked arrays in the types that pools hold.

    Pictures (uint8 `[M, H, W, C]`) and booleans stay as they are, other numbers become
    float32. In a pytree of several arrays whole numbers become int32: they may be
    positions in a table of embeddings.
    """
    alone = len(jax.tree.leaves(x)) == 1

    def cast_leaf(leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype.kind == "b" or (leaf.dtype == np.uint8 and leaf.ndim == 4):
            return leaf
        whole = leaf.dtype.kind in "iu" and not alone
        return leaf.astype(np.int32 if whole else np.float32)

    return jax.tree.map(cast_leaf, x)


def leaves_of(x: PyTree) -> tuple[Leaf, ...]:
    """The arrays of x, `[M, ...]`, as `Inputs` lists them."""
    return tuple(
        Leaf(jax.tree_util.keystr(path), leaf.shape[1:], str(leaf.dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(x)
    )


def _is_list(node: Any) -> bool:
    return isinstance(node, list)


def _are_paths(raw: Any) -> bool:
    if isinstance(raw, str | os.PathLike):
        return True
    return isinstance(raw, list | tuple) and all(
        isinstance(path, str | os.PathLike) for path in raw
    )


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
