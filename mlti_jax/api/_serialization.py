"""Saved learners: a manifest in JSON and plain arrays, safe to share.

Reading executes nothing from the files: no pickle, no code. `manifest.json` names the
file of the arrays and has its checksum and its own. It is replaced last and atomically,
so a directory always holds one complete learner. `read` verifies both checksums and
checks every field, name, shape and dtype.
"""

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
from typing import Any, NamedTuple, get_type_hints

import jax
import numpy as np

from mlti_jax._internal.storage import (
    damaged,
    digest,
    is_temporary,
    make_folder,
    read_sealed_json,
    write_file,
    write_json,
)
from mlti_jax._version import __version__
from mlti_jax.api._calibration import Calibration
from mlti_jax.data import Inputs
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.strategies import Strategy, init_variables
from mlti_jax.training._checkpoints import leaves_by_name, tree_from_leaves
from mlti_jax.training._config import restore_config
from mlti_jax.training._experiment import MethodFacts, make_method, own_parts
from mlti_jax.training._optimizer import CUSTOM
from mlti_jax.types import PyTree

MANIFEST = "manifest.json"
_FORMAT = "mlti_jax learner"
_VERSION = 3  # 1 has no checksum of the manifest, 2 no parts of the user
_SETTINGS = ("label_sharing", "non_label_sharing", "regression")
_DTYPES = ("uint8", "bool", "int32", "float16", "bfloat16", "float32")
_ARRAYS = re.compile(r"arrays-[0-9a-f]{16}\.npz")
_FACTS = MethodFacts._fields[:-1]  # `inputs` has the scale of targets
_HEADER = 4096  # bytes that the file of an array may have in addition to its numbers


class SavedLearner(NamedTuple):
    """The parts of a fitted learner that are saved, see `FittedLearner`."""

    config: Any
    facts: MethodFacts
    variables: Variables
    inputs: Inputs
    classes: tuple[str, ...]
    result: dict[str, Any]
    calibration: Calibration | None
    adapted: tuple[str, ...] | None


# ------------------------------------------------------------------------- writing


def write(saved: SavedLearner, path: str | os.PathLike[str]) -> None:
    """Write a learner into a directory, completely or not at all.

    Args:
      saved: the learner.
      path: a new or empty directory, or that of a saved learner, which is replaced.
    """
    folder = pathlib.Path(path)
    _check_target(folder)
    arrays: dict[str, Any] = {
        name: np.asarray(leaf) for name, leaf in leaves_by_name(saved.variables).items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    checksum = hashlib.sha256(content).hexdigest()
    file = f"arrays-{checksum[:16]}.npz"
    calibration = saved.calibration
    manifest = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "package_version": __version__,
        "arrays": {"file": file, "sha256": checksum},
        "facts": {name: getattr(saved.facts, name) for name in _FACTS},
        "classes": list(saved.classes),
        "inputs": json.loads(saved.inputs.to_json()),
        "calibration": None if calibration is None else calibration._asdict(),
        "result": saved.result,
        "config": saved.config.to_dict(),
        "adapted": None if saved.adapted is None else list(saved.adapted),
    }
    make_folder(folder)
    write_file(folder / file, lambda target: target.write(content))
    write_json(folder / MANIFEST, manifest, seal=True)
    for other in folder.glob("arrays-*.npz"):
        if other.name != file:
            other.unlink()


def _check_target(folder: pathlib.Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a directory to save the learner in")
    if not folder.is_dir() or (folder / MANIFEST).is_file():
        return
    # What an interrupted `write` leaves may be written over.
    others = [
        path
        for path in folder.iterdir()
        if not (is_temporary(path) or _ARRAYS.fullmatch(path.name))
    ]
    if others:
        raise InputError(
            f"{folder} holds other files; give a new directory to save the learner in"
        )


# ------------------------------------------------------------------------- reading


def read(
    path: str | os.PathLike[str], network: Any = None
) -> tuple[SavedLearner, Learner, Strategy]:
    """Read a learner that `write` has written, and build its method.

    Raises `InputError` if a file is missing, damaged or of another version.

    Args:
      path: the directory.
      network: the user's own network, as in `fit`; None if a backbone was used.
    """
    manifest = _Manifest(pathlib.Path(path))
    inputs = _inputs(manifest)
    facts = _facts(manifest, inputs)
    classes = tuple(manifest.value("classes", list))
    if not all(isinstance(name, str) for name in classes):
        raise manifest.error("classes", "is not a list of names")
    if facts.setting == "label_sharing" and len(classes) != facts.outputs:
        raise manifest.error(
            "classes", f"has {len(classes)}, not {facts.outputs} names"
        )
    config, adapted = _config(manifest), _adapted(manifest)
    _check_network(manifest.folder, config, network)
    own = own_parts(network, adapted)
    try:
        learner, strategy = make_method(config, facts, own)
        template = jax.eval_shape(
            lambda x: init_variables(learner, strategy, jax.random.key(0), x),
            _example(inputs),
        )
    except (InputError, TypeError, ValueError) as error:
        if network is not None:
            raise InputError(
                f"the learner in {manifest.folder} does not have the given network "
                f"({error}); give the network of its training"
            ) from error
        raise manifest.error(
            "config", f"does not define a learner ({error})"
        ) from error
    saved = SavedLearner(
        config=config,
        facts=facts,
        variables=_read_arrays(manifest, template),
        inputs=inputs,
        classes=classes,
        result=_result(manifest),
        calibration=_calibration(manifest),
        adapted=adapted,
    )
    return saved, learner, strategy


class _Manifest:
    """The manifest of a directory; each field is checked when it is read."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.path = folder, folder / MANIFEST
        if not self.path.is_file():
            raise InputError(
                f"{folder} has no {MANIFEST}, so it is not a saved learner; give the "
                "directory of one"
            )
        advice = "copy the whole directory again"
        found, seal = read_sealed_json(self.path, advice)
        if found.get("format") != _FORMAT:
            raise InputError(
                f"{self.path} is not a manifest of mlti_jax; give a directory written "
                "by the method `save` of a fitted learner"
            )
        self.fields = found
        version = self.value("format_version", int)
        if version > _VERSION:
            raise InputError(
                f"{folder} was saved in format {version} by mlti_jax "
                f"{found.get('package_version')}, and this one, "
                f"{__version__}, reads up to {_VERSION}; update mlti_jax"
            )
        if version < 1:
            raise self.error("format_version", f"is {version}; expected 1 or more")
        if (version > 1 or seal is not None) and seal != digest(found):
            fault = "its content does not match its checksum"
            raise damaged(self.path, fault, advice)
        self.value("package_version", str)

    def error(self, field: str, fault: str) -> InputError:
        return InputError(f"{self.path}: {field} {fault}; save the learner again")

    def value(
        self, field: str, kind: type, within: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a field of a type; raise `InputError` if missing or different."""
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


def _facts(manifest: _Manifest, inputs: Inputs) -> MethodFacts:
    saved = manifest.value("facts", dict)
    setting = manifest.value("setting", str, saved)
    if setting not in _SETTINGS:
        raise manifest.error("setting", f"is {setting!r}; expected one of {_SETTINGS}")
    numbers = [manifest.value(name, int, saved) for name in _FACTS[1:]]
    if numbers[0] < 1 or min(numbers) < 0:
        raise manifest.error("facts", f"are {numbers}; expected numbers of classes")
    scale = inputs.targets.scale
    if scale and (setting, numbers[0]) != ("regression", len(scale)):
        raise manifest.error("targets", f"have {len(scale)} scales")
    return MethodFacts(setting, *numbers)._replace(target_scale=scale)


def _inputs(manifest: _Manifest) -> Inputs:
    saved = manifest.value("inputs", dict)
    try:
        inputs = Inputs.from_json(json.dumps(saved))
        _example(inputs)
    except (InputError, TypeError, ValueError) as error:
        raise manifest.error("inputs", f"cannot be used ({error})") from error
    return inputs


def _example(inputs: Inputs) -> PyTree:
    """Return shapes and dtypes of two samples, as a network receives them."""
    named: dict[str | None, Any] = {}
    for path, shape, dtype in inputs.leaves:
        if dtype not in _DTYPES or not all(0 < n < 2**31 for n in shape):
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
        raise manifest.error("config.dataset", "is missing or not a dictionary")
    try:
        return restore_config(saved)
    except InputError as error:
        raise manifest.error("config", f"cannot be used ({error})") from None


def _adapted(manifest: _Manifest) -> tuple[str, ...] | None:
    """Return the names of the adapted parameters; None if layers are adapted."""
    if manifest.fields.get("adapted") is None:
        return None
    names = manifest.value("adapted", list)
    if not all(isinstance(name, str) for name in names):
        raise manifest.error("adapted", "is not a list of names")
    return tuple(names)


def _check_network(folder: pathlib.Path, config: Any, network: Any) -> None:
    """Raise `InputError` if a network is missing, or given without need."""
    name = config.backbone.name
    if name == CUSTOM and network is None:
        raise InputError(
            f"the learner in {folder} has a network of your own, which is code and not "
            "saved; pass it again: mlti_jax.load(path, network=...)"
        )
    if name != CUSTOM and network is not None:
        raise InputError(
            f"the learner in {folder} has the backbone {name}; load it without network"
        )


def _result(manifest: _Manifest) -> dict[str, Any]:
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
    """Return the variables after checking checksum, names, shapes, dtypes, values."""
    listed = manifest.value("arrays", dict)
    name = manifest.value("file", str, listed)
    expected = manifest.value("sha256", str, listed)
    path = manifest.folder / name
    if path.parent != manifest.folder or not path.is_file():
        raise InputError(
            f"{manifest.folder} lacks {name}, the learner's arrays; copy the whole "
            "directory again"
        )
    largest = sum(
        leaf.size * leaf.dtype.itemsize + _HEADER for leaf in jax.tree.leaves(template)
    )
    fault = InputError(
        f"{path} is damaged: its checksum is not that of {MANIFEST}; copy the whole "
        "directory again"
    )
    if path.stat().st_size > largest:
        raise fault
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise fault
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
        if unpacked > largest:
            raise fault
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = {key: file[key] for key in file.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, KeyError):
        raise fault from None
    own = manifest.fields["config"]["backbone"]["name"] == CUSTOM
    advice = "give the network of its training" if own else "copy the directory again"
    variables = tree_from_leaves(found, template, str(path), advice)
    for key, array in found.items():
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {key} has NaN or infinite values")
    return variables
