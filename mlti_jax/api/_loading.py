"""Reading saved learners: every field, name, shape and type is checked."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, get_type_hints

import jax
import numpy as np

from mlti_jax._version import __version__
from mlti_jax.api._calibration import Calibration
from mlti_jax.api._fitted import FittedLearner
from mlti_jax.api._saving import FORMAT, MANIFEST, VERSION, by_name
from mlti_jax.data import Inputs
from mlti_jax.data._own.inputs import SMILES
from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.strategies import init_variables
from mlti_jax.training._config import restore_config
from mlti_jax.training._experiment import MethodFacts, make_method
from mlti_jax.types import PyTree

SETTINGS = ("label_sharing", "non_label_sharing", "regression")
DTYPES = ("uint8", "bool", "int32", "float16", "bfloat16", "float32")
HEADER = 4096  # bytes that an array's file may have beside its numbers


def load(path: str | os.PathLike[str]) -> FittedLearner:
    """Reads a learner that `FittedLearner.save` has written, onto any kind of device.

    It has no data: `evaluate` wants tasks.
    """
    folder = pathlib.Path(path)
    manifest = _Manifest(folder)
    facts = _facts(manifest)
    classes = tuple(manifest.value("classes", list))
    if not all(isinstance(name, str) for name in classes):
        raise manifest.error("classes", "is no list of names")
    inputs = _inputs(manifest)
    config = _config(manifest)
    try:
        learner, strategy = make_method(config, facts)
        template = jax.eval_shape(
            lambda x: init_variables(learner, strategy, jax.random.key(0), x),
            _example(inputs),
        )
    except (InputError, TypeError, ValueError) as error:
        raise manifest.error("config", f"makes no learner ({error})") from error
    return FittedLearner(
        config=config,
        facts=facts,
        learner=learner,
        strategy=strategy,
        variables=_read_arrays(manifest, template),
        inputs=inputs,
        classes=classes,
        result=_result(manifest),
        calibration=_calibration(manifest),
    )


class _Manifest:
    """The manifest of a directory, whose fields are checked as they are asked for."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.path = folder, folder / MANIFEST
        if not self.path.is_file():
            raise InputError(
                f"{folder} has no {MANIFEST}, so it holds no saved learner; give the "
                "directory that one was saved in"
            )
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(
                f"{self.path} is damaged ({error}); copy the whole directory again"
            ) from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError(
                f"{self.path} is of another program; give the directory of a learner "
                "that was saved by its method `save`"
            )
        self.fields = found
        version = self.value("format_version", int)
        if version > VERSION:
            raise InputError(
                f"{folder} was saved in format {version} by mlti_jax "
                f"{found.get('package_version')}, and this one, "
                f"{__version__}, reads up to {VERSION}; update mlti_jax"
            )
        if version < 1:
            raise self.error("format_version", f"is {version}; expected 1 or more")
        self.value("package_version", str)

    def error(self, field: str, fault: str) -> InputError:
        return InputError(f"{self.path}: {field} {fault}; save the learner again")

    def value(self, field: str, kind: type, within: Mapping | None = None) -> Any:
        """A field of a kind, or an error that names it."""
        place = self.fields if within is None else within
        if field not in place:
            raise self.error(field, "is missing")
        value = place[field]
        wrong_bool = isinstance(value, bool) and kind is not bool
        if kind is float and isinstance(value, int) and not wrong_bool:
            value = float(value)
        if not isinstance(value, kind) or wrong_bool:
            raise self.error(field, f"is {str(value)[:80]!r}; expected {kind.__name__}")
        return value


def _facts(manifest: _Manifest) -> MethodFacts:
    saved = manifest.value("facts", dict)
    setting = manifest.value("setting", str, saved)
    if setting not in SETTINGS:
        raise manifest.error("setting", f"is {setting!r}; expected one of {SETTINGS}")
    numbers = [manifest.value(name, int, saved) for name in MethodFacts._fields[1:]]
    if numbers[0] < 1 or min(numbers) < 0:
        raise manifest.error("facts", f"are {numbers}; expected numbers of classes")
    return MethodFacts(setting, *numbers)


def _inputs(manifest: _Manifest) -> Inputs:
    saved = manifest.value("inputs", dict)
    try:
        inputs = Inputs.from_json(json.dumps(saved))
        _check_inputs(inputs)
    except (InputError, TypeError, ValueError) as error:
        raise manifest.error("inputs", f"can't be used ({error})") from error
    return inputs


def _check_inputs(inputs: Inputs) -> None:
    """Refuses a record whose parts do not fit together."""
    if not inputs.leaves:
        raise InputError("samples have no array")
    _example(inputs)
    lengths = {
        len(part) for part in (inputs.mean, inputs.scale, inputs.columns) if part
    }
    if lengths - set(inputs.shape[-1:]) or bool(inputs.mean) != bool(inputs.scale):
        raise InputError(f"mean, scale or columns are not of length {inputs.shape}")
    if inputs.mean and not np.isfinite([inputs.mean, inputs.scale]).all():
        raise InputError("mean or scale is not finite")
    if (inputs.kind == SMILES) != (inputs.smiles is not None):
        raise InputError(f"kind is {inputs.kind}, and smiles {inputs.smiles}")


def _example(inputs: Inputs) -> PyTree:
    """Two samples without values, as a network takes them."""
    named = {}
    for path, shape, dtype in inputs.leaves:
        if dtype not in DTYPES or not all(0 < n < 2**31 for n in shape):
            raise InputError(f"samples are {dtype}{list(shape)}")
        kept = dtype == "int32"  # as in `data.pools.take_inputs`
        struct = jax.ShapeDtypeStruct((2, *shape), dtype if kept else "float32")
        name = re.fullmatch(r"\['(\w+)'\]|", path)
        if name is None:
            raise InputError(f"samples have an array at {path!r}")
        named[name.group(1)] = struct
    return named[None] if list(named) == [None] else named


def _config(manifest: _Manifest) -> Any:
    saved = manifest.value("config", dict)
    if not isinstance(saved.get("dataset"), dict):
        raise manifest.error("config.dataset", "is missing, or no table")
    try:
        return restore_config(saved)
    except InputError as error:
        raise manifest.error("config", f"can't be used ({error})") from None


def _result(manifest: _Manifest) -> dict:
    saved = manifest.value("result", dict)
    queries = saved.get("queries", 0)
    if queries is not None:
        manifest.value("queries", int, saved)
    for name in ("mean", "ci95"):
        manifest.value(name, float, saved)
    manifest.value("metric", str, saved)
    return saved


def _calibration(manifest: _Manifest) -> Calibration | None:
    if manifest.fields.get("calibration", 0) is None:
        return None
    saved = manifest.value("calibration", dict)
    kinds = get_type_hints(Calibration)
    found = Calibration(
        **{
            name: manifest.value(name, kinds[name], saved)
            for name in Calibration._fields
        }
    )
    if not (math.isfinite(found.temperature) and found.temperature > 0):
        raise manifest.error("temperature", f"is {found.temperature}")
    return found


def _read_arrays(manifest: _Manifest, template: Variables) -> Variables:
    """The variables, once every name, shape, dtype and the checksum are right."""
    listed = manifest.value("arrays", dict)
    name = manifest.value("file", str, listed)
    digest = manifest.value("sha256", str, listed)
    path = manifest.folder / name
    if path.parent != manifest.folder or not path.is_file():
        raise InputError(
            f"{manifest.folder} lacks {name}, the learner's arrays; copy the whole "
            "directory again"
        )
    expected = by_name(template)
    largest = sum(
        leaf.size * leaf.dtype.itemsize + HEADER for leaf in expected.values()
    )
    damaged = InputError(
        f"{path} is damaged: it is not the file that {MANIFEST} is for; copy the whole "
        "directory again"
    )
    if path.stat().st_size > largest:
        raise damaged
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise damaged
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            unpacked = sum(part.file_size for part in file.infolist())
        if unpacked > largest:
            raise damaged
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = {key: file[key] for key in file.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, KeyError):
        raise damaged from None
    leaves = []
    for key in sorted(set(expected) ^ set(found)):
        where = "lacks" if key in expected else "has, beyond what is expected,"
        raise InputError(
            f"{path} {where} {key}: it belongs to another learner than {MANIFEST} says"
        )
    for key, leaf in expected.items():
        array = found[key]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise InputError(
                f"{path}: {key} is {array.dtype}{list(array.shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)} by {MANIFEST}"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {key} has NaN or infinite values")
        leaves.append(jax.numpy.asarray(array))
    return jax.tree.unflatten(jax.tree.structure(template), leaves)
