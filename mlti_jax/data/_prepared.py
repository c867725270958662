"""Reading prepared datasets: from TFDS records to NumPy arrays."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax._internal.extras import require
from mlti_jax.data._data_dir import resolve_data_dir
from mlti_jax.data._pools import ClassPool, samples_are_deferred
from mlti_jax.data._records import Records
from mlti_jax.data._splits import Splits
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    from mlti_jax.data.builders._base import DatasetBuilder

RECORDS_PER_READ = 1024
DIGESTS = "digests.json"  # written next to the records
# What to do about classes that a part of a release lacks.
REFUSE, SKIP = "refuse", "skip"


def builder(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """Return the TFDS builder of a dataset, prepared or not.

    The module of the dataset must be imported, which registers the builder with TFDS;
    `_registry.dataset_builder` does both.

    Raises:
      InputError: if the metadata of a prepared dataset is damaged.
    """
    tfds = require("tensorflow_datasets", "data")
    folder = resolve_data_dir(data_dir)
    try:
        return tfds.builder(name, data_dir=folder, file_format="array_record")
    except Exception as error:  # Damaged metadata raises errors of many types.
        raise _damaged(name, folder, folder / name, _first_line(error)) from error


def _damaged(
    name: str, data_dir: pathlib.Path, place: object, reason: str
) -> InputError:
    return InputError(
        f"the prepared records in {place} can't be read ({reason}); prepare {name}"
        f" again with python -m mlti_jax.data.prepare --dataset={name} --raw=DIR"
        f" --data_dir={data_dir} --overwrite"
    )


def _first_line(error: Exception) -> str:
    # TFDS adds a line in front of the cause.
    text = (str(error).strip().splitlines() or ["no message"])[-1][:200]
    return f"{type(error).__name__}: {text}"


def open_prepared(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """Return the builder of a prepared dataset.

    Raises:
      InputError: if the dataset is not prepared, or its metadata is damaged; the
        message says what to do.
    """
    found = builder(name, data_dir)
    if not found.is_prepared():
        folder = resolve_data_dir(data_dir)
        raise InputError(
            f"{name} is not prepared in {folder}. {found.INSTRUCTIONS} Then run: python"
            f" -m mlti_jax.data.prepare --dataset={name} --raw=DIR --data_dir={folder}"
        )
    check(found)
    return found


def write_digests(folder: pathlib.Path) -> None:
    """Store digests of the metadata of a prepared dataset, and sizes of its records.

    Records are not hashed, since they have checksums that are verified on reading.
    """
    (folder / DIGESTS).write_text(json.dumps(_digests(folder), indent=1))


def _digests(folder: pathlib.Path) -> dict[str, str]:
    return {
        path.name: f"{path.stat().st_size} bytes"
        if ".array_record" in path.name
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != DIGESTS
    }


def check(prepared: DatasetBuilder) -> None:
    """Raise `InputError` if metadata and records do not match.

    Datasets that were prepared by an earlier version have no digests; for these only
    the counts are compared.
    """
    folder = pathlib.Path(prepared.data_path)
    reason = ""
    try:
        for split, info in prepared.info.splits.items():
            if total(counts(prepared, split)) != info.num_examples:
                reason = f"the counts of {split} are wrong"
        if (folder / DIGESTS).exists():
            stored = json.loads((folder / DIGESTS).read_bytes())
            found = _digests(folder)
            changed = [name for name in stored if found.get(name) != stored[name]]
            if changed:
                reason = f"{changed[0]} has changed since it was written"
    except Exception as error:  # Damaged JSON raises errors of many types.
        reason = _first_line(error)
    if reason:
        raise _damaged(prepared.name, folder.parent.parent, folder, reason)


def counts(prepared: DatasetBuilder, split: str) -> dict[str, Any]:
    """Return the samples per class of a split, or per domain and class, in order."""
    return prepared.info.metadata["counts"][split]


def total(count: int | dict[str, Any]) -> int:
    """Return the number of samples of one entry of `counts`, or of all entries."""
    return count if isinstance(count, int) else sum(map(total, count.values()))


def split_classes(prepared: DatasetBuilder, split: str) -> list[str]:
    """Return all classes of a split in order, with those that have no examples.

    Empty if the release has no such split.
    """
    metadata = prepared.info.metadata
    # Datasets that were prepared by an earlier version lack no class.
    known = {*metadata["counts"].get(split, ())}
    known.update(metadata.get("missing", {}).get(split, ()))
    (group,) = prepared.GROUPED_BY
    return [name for name in prepared.info.features[group].names if name in known]


def has_train_classes(prepared: DatasetBuilder, number: int) -> bool:
    """Return whether none of the first `number` training classes is missing."""
    missing = prepared.info.metadata.get("missing", {}).get("train", ())
    return not missing or number <= split_classes(prepared, "train").index(missing[0])


def part_of_release(prepared: DatasetBuilder) -> str:
    """Return which part of its release a dataset was prepared from; empty if complete.

    For example `48 of 100 classes, 28,800 of 60,000 images`.
    """
    metadata = prepared.info.metadata
    found = prepared.info.splits.total_num_examples
    missing = sum(map(len, metadata.get("missing", {}).values()))
    incomplete = metadata.get("incomplete", {})
    parts = []
    if missing:
        classes = sum(len(split_classes(prepared, s)) for s in prepared.CLASSES)
        parts.append(f"{classes - missing} of {classes} classes")
    if prepared.EXACT and found < prepared.EXAMPLES:
        parts.append(f"{found:,} of {prepared.EXAMPLES:,} images")
    elif incomplete:
        lacking = sum(expected - kept for kept, expected in incomplete.values())
        parts.append(f"{found:,} of {found + lacking:,} images")
    return ", ".join(parts)


def findings(prepared: DatasetBuilder) -> list[str]:
    """Return sentences on what was missing or left out when a dataset was prepared."""
    metadata = prepared.info.metadata
    lines = []
    if part := part_of_release(prepared):
        lines.append(f"a part of the release: {part}")
    for split, names in metadata.get("missing", {}).items():
        number = len(split_classes(prepared, split))
        lines.append(
            f"missing: {len(names)} of {number} {split} classes: {', '.join(names)}"
        )
    for name, (kept, expected) in metadata.get("incomplete", {}).items():
        lines.append(f"incomplete: class {name}, {kept:,} of {expected:,} images")
    lines += [f"note: {text}" for text in metadata.get("notes", ())]
    for reason, count in metadata["skipped"].items():
        lines.append(f"skipped: {count:,} ({reason})")
    return lines


def first_rows(prepared: DatasetBuilder, split: str, groups: int | None) -> range:
    """Return the rows of the first `groups` classes (or domains); None for all."""
    return range(sum(list(map(total, counts(prepared, split).values()))[:groups]))


def read(
    prepared: DatasetBuilder,
    split: str,
    fields: Iterable[str],
    rows: Sequence[int] | np.ndarray,
) -> dict[str, np.ndarray]:
    """Read some records of a split.

    Args:
      prepared: from `open_prepared`.
      split: name of the split.
      fields: names of the features to read.
      rows: indices of the records.

    Returns:
      For each field an array with one entry per row: classes as integers, texts as an
      array of `str`.

    Raises:
      InputError: if the records can't be read.
    """
    tfds = require("tensorflow_datasets", "data")
    features = prepared.info.features
    columns: dict[str, Any] = {}
    texts = [name for name in fields if isinstance(features[name], tfds.features.Text)]
    # Decoding dominates the cost, so only the requested features are decoded.
    wanted = tfds.features.FeaturesDict({name: features[name] for name in fields})
    try:
        source = prepared.as_data_source(split).data_source
        for name in fields:
            shape = () if name in texts else features[name].shape
            if None in shape:  # The length is known from the records only.
                first = wanted.deserialize_example_np(source.__getitems__([0])[0])
                shape = first[name].shape
            dtype = object if name in texts else features[name].np_dtype
            columns[name] = np.empty((len(rows), *shape), dtype)
        for start in range(0, len(rows), RECORDS_PER_READ):
            part = [int(row) for row in rows[start : start + RECORDS_PER_READ]]
            for place, record in enumerate(source.__getitems__(part), start):
                example = wanted.deserialize_example_np(record)
                for name, column in columns.items():
                    column[place] = example[name]
        for name in texts:
            columns[name] = np.array([text.decode() for text in columns[name]])
    except MemoryError:
        raise
    except Exception as error:  # TFDS and array_record raise many types of errors.
        folder = pathlib.Path(prepared.data_path)
        raise _damaged(
            prepared.name, folder.parent.parent, folder, _first_line(error)
        ) from error
    return columns


def read_each(
    prepared: DatasetBuilder,
    split: str,
    fields: Iterable[str],
    rows: Sequence[int] | np.ndarray,
) -> Iterator[dict[str, Any]]:
    """Yield records one by one; unlike with `read`, arrays may differ in length.

    Args:
      prepared: from `open_prepared`.
      split: name of the split.
      fields: names of the features to read.
      rows: indices of the records.

    Raises:
      InputError: if the records can't be read.
    """
    tfds = require("tensorflow_datasets", "data")
    features = prepared.info.features
    wanted = tfds.features.FeaturesDict({name: features[name] for name in fields})
    try:
        source = prepared.as_data_source(split).data_source
        for row in rows:
            (record,) = source.__getitems__([int(row)])
            yield wanted.deserialize_example_np(record)
    except MemoryError:
        raise
    except Exception as error:  # TFDS and array_record raise many types of errors.
        folder = pathlib.Path(prepared.data_path)
        raise _damaged(
            prepared.name, folder.parent.parent, folder, _first_line(error)
        ) from error


def samples(
    prepared: DatasetBuilder,
    split: str,
    field: str,
    rows: Sequence[int] | np.ndarray,
) -> np.ndarray | Records:
    """Return the samples of a split: an array, or `Records` in `samples_stay`.

    Args:
      prepared: from `open_prepared`.
      split: name of the split.
      field: name of the feature that is the network's input.
      rows: indices of the records.
    """
    if not samples_are_deferred():
        return read(prepared, split, (field,), rows)[field]
    folder = pathlib.Path(prepared.data_path)
    damaged = functools.partial(_damaged, prepared.name, folder.parent.parent, folder)
    tfds = require("tensorflow_datasets", "data")
    feature = prepared.info.features[field]
    decode = functools.partial(
        decode_feature, tfds.features.FeaturesDict({field: feature})
    )
    shape = feature.shape
    try:
        source = prepared.as_data_source(split).data_source
        if None in shape:  # The length is known from the records only.
            shape = decode(source.__getitems__([int(rows[0])])[0]).shape
    except Exception as error:  # TFDS and array_record raise many types of errors.
        raise damaged(_first_line(error)) from error
    written = folder / DIGESTS  # which an earlier version did not write
    version = written.read_bytes() if written.exists() else b""
    return Records(source, decode, rows, shape, feature.np_dtype, damaged, version)


def decode_feature(features: Any, record: bytes) -> np.ndarray:
    """Return the value of the only one of `features` in a record."""
    (value,) = features.deserialize_example_np(record).values()
    return value


def class_splits(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    *,
    train_classes: int,
    field: str,
    note: str,
    missing_classes: str = REFUSE,
    min_images: int = 1,
) -> Splits:
    """Load a dataset of classes with splits `train`, `test`, optionally `validation`.

    Args:
      name: name of the dataset.
      data_dir: the directory of prepared datasets; None for the default.
      train_classes: number of training classes, the first ones in the paper's order.
      field: the feature that is the network's input.
      note: start of the sentence that describes the data.
      missing_classes: if the dataset was prepared from a part of its release that
        lacks some of the classes: `refuse` to load it, or `skip` these classes.
      min_images: classes with fewer samples are left out.

    Raises:
      InputError: if an argument is invalid, the dataset is not prepared, or classes
        are missing.
    """
    if missing_classes not in (REFUSE, SKIP):
        raise unknown_name("missing_classes", missing_classes, (REFUSE, SKIP))
    prepared = open_prepared(name, data_dir)
    wanted = {
        split: classes
        for split in ("train", "validation", "test")
        if (classes := split_classes(prepared, split))
    }
    check_range("train_classes", train_classes, len(wanted["train"]))
    wanted["train"] = wanted["train"][:train_classes]
    check_range("min_images", min_images, 10**9)

    def smaller_than(number: int) -> dict[str, list[str]]:
        sizes = {split: _sizes(prepared, split) for split in wanted}
        smaller = {
            split: [name for name in names if sizes[split].get(name, 0) < number]
            for split, names in wanted.items()
        }
        return {split: names for split, names in smaller.items() if names}

    missing, too_small = smaller_than(1), smaller_than(min_images)
    used = {
        split: [name for name in names if name not in too_small.get(split, ())]
        for split, names in wanted.items()
    }
    if missing and missing_classes == REFUSE:
        raise _classes_missing(prepared, data_dir, wanted, missing)
    for split in ("train", "test"):
        if not used.get(split):
            raise InputError(
                f"{name} in {resolve_data_dir(data_dir)} has no {split} class with"
                f" {min_images} or more images"
                f" ({part_of_release(prepared) or 'the whole release'})"
            )

    def pool(split: str) -> ClassPool:
        classes, sizes = used[split], _sizes(prepared, split)
        rows = _rows_of(prepared, split, classes)
        # Records are sorted by class, so they need not be read for their labels.
        label = np.repeat(classes, [sizes[name] for name in classes])
        return ClassPool.from_arrays(
            samples(prepared, split, field, rows), label, classes=classes
        )

    part = part_of_release(prepared)
    sentences = [f"{note}, {len(used['train'])} training classes"]
    if part:
        sentences.append(f"Prepared from a part of the release: {part}")
    for split, lacking in too_small.items():
        absent = missing.get(split, [])
        for reason, left_out in (
            ("missing", absent),
            (f"smaller than {min_images} images", sorted({*lacking} - {*absent})),
        ):
            if left_out:
                sentences.append(
                    f"{len(left_out)} of {len(wanted[split])} {split} classes are"
                    f" {reason} and left out: {', '.join(left_out)}"
                )
    return Splits(
        name=name,
        setting="non_label_sharing",
        train=pool("train"),
        validation=pool("validation") if used.get("validation") else None,
        test=pool("test"),
        note=". ".join(sentences),
        part={"prepared": part, "left_out": too_small} if part else None,
    )


def _sizes(prepared: DatasetBuilder, split: str) -> dict[str, int]:
    """Return the number of samples of each class that has any, in order."""
    found = prepared.info.metadata["counts"].get(split, {})
    return {name: total(count) for name, count in found.items()}


def _rows_of(prepared: DatasetBuilder, split: str, classes: list[str]) -> np.ndarray:
    """Return the rows of some classes of a split, in order."""
    sizes = _sizes(prepared, split)
    ends = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
    ranges = [np.arange(ends[name] - sizes[name], ends[name]) for name in classes]
    return np.concatenate(ranges)


def _classes_missing(
    prepared: DatasetBuilder,
    data_dir: str | os.PathLike[str] | None,
    wanted: dict[str, list[str]],
    missing: dict[str, list[str]],
) -> InputError:
    """Return the error for a run that needs classes that are not prepared."""
    name, train = prepared.name, wanted["train"]
    lists = "; ".join(
        f"{len(names)} of {len(wanted[split])} {split} classes: {', '.join(names)}"
        for split, names in missing.items()
    )
    advice = []
    if list(missing) == ["train"] and (first := train.index(missing["train"][0])) > 1:
        advice.append(
            f"set train_classes to at most {first}"
            f" (--config.dataset.train_classes={first}), which needs none of them"
        )
    if all(len(names) < len(wanted[split]) for split, names in missing.items()):
        advice.append(
            "use the other classes, which the results then report"
            f" (--config.dataset.missing_classes={SKIP})"
        )
    folder = resolve_data_dir(data_dir)
    advice.append(
        "prepare the whole release: python -m mlti_jax.data.prepare"
        f" --dataset={name} --raw=DIR --data_dir={folder} --overwrite"
    )
    return InputError(
        f"{name} in {folder} was prepared from a part of the release"
        f" ({part_of_release(prepared)}), which lacks {lists}. This run needs them."
        f" To fix it, {'; or '.join(advice)}"
    )
