"""Base class of the TFDS builders.

A builder converts a publisher's files to records once, with
`python -m mlti_jax.data.prepare`. Afterwards
`tfds.builder("nci", data_dir=..., file_format="array_record")` reads them, given
`import mlti_jax.data.builders.nci`. Records hold decoded arrays, so reading is fast.
"""

from __future__ import annotations

import functools
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.progress import Progress
from mlti_jax.errors import InputError

PARTIAL_ADVICE = (
    "To prepare the class from the files that are there and intact, add --partial"
)
LEFT_OUT = "missing or damaged, left out by --partial"

Example = dict[str, Any]
T = TypeVar("T")


class DatasetBuilder(  # type: ignore[call-arg]  # TFDS has no type hints
    tfds.core.ShardBasedBuilder, skip_registration=True
):
    """A dataset that is read from files which the user has downloaded.

    Each split is one shard: TFDS's generator-based builders sort the examples, which
    requires TensorFlow for splits larger than 1 GB.

    A subclass implements `_info` and `read_raw`. Examples are sorted by class, or by
    domain and then class, in the order of the feature's names, which is the paper's.
    So the first k training classes are a contiguous range of records, whose bounds
    follow from the counts in the metadata.

    Attributes:
      GROUPED_BY: features that examples are sorted by, each a `ClassLabel`, or a text
        if its values are not known before the files are read.
      INSTRUCTIONS: what to download from where, and the layout of the folder.
      EXAMPLES: approximate number of examples of the full release, for the progress
        bar.
      CLASSES: the classes of each split, in the paper's order, if the dataset can be
        prepared from a part of its release; else empty.
      EXACT: whether every complete release has exactly `EXAMPLES` examples.
      processes: number of processes that read the raw files.
      partial: whether to leave out files that are missing or damaged.
      show_progress: whether to show a progress bar.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}
    GROUPED_BY: tuple[str, ...] = ("label",)
    INSTRUCTIONS = ""
    EXAMPLES = 0
    EXACT = False
    CLASSES: Mapping[str, Sequence[str]] = types.MappingProxyType({})
    processes: int = 1
    partial: bool = False
    show_progress: bool = False
    _expected: Mapping[str, int] = types.MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.MANUAL_DOWNLOAD_INSTRUCTIONS = cls.INSTRUCTIONS
        super().__init_subclass__(**kwargs)

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[Example]]:
        """Read the publisher's files in `raw`. Returns the examples of each split."""
        raise NotImplementedError

    def describe(
        self,
        features: dict[str, Any],
        *,
        description: str,
        homepage: str,
        citation: str,
        license: str,
    ) -> tfds.core.DatasetInfo:
        """Return the `DatasetInfo` of a dataset whose records keep their order."""
        return tfds.core.DatasetInfo(
            builder=self,
            description=description,
            features=tfds.features.FeaturesDict(features),
            homepage=homepage,
            citation=citation,
            license=license,
            disable_shuffling=True,
            # missing: classes of each split without examples. incomplete: examples
            # found and expected, of classes that lack some. notes: sentences.
            metadata=tfds.core.MetadataDict(
                counts={}, skipped={}, missing={}, incomplete={}, notes=[]
            ),
        )

    def watch(
        self, items: Iterable[T], label: str, total: int, unit: str = "example"
    ) -> Iterator[T]:
        """Yield `items` and shows a progress bar if `show_progress` is set.

        Args:
          items: items to yield.
          label: description of the current step.
          total: approximate number of items.
          unit: name of an item.
        """
        if not self.show_progress:
            yield from items
            return
        bar = Progress(f"{self.name}, {label}", total, unit=unit)
        try:
            for item in items:
                yield item
                bar.update(1)
        finally:
            bar.close()

    def skip(self, reason: str, number: int = 1) -> None:
        """Count skipped samples in the metadata."""
        skipped = self.info.metadata["skipped"]
        if number:
            skipped[reason] = skipped.get(reason, 0) + number

    def note(self, text: str) -> None:
        """Add a sentence on what was found to the metadata."""
        self.info.metadata["notes"].append(text)

    def expect(self, numbers: Mapping[str, int]) -> None:
        """Set the number of examples that each class of the release should have."""
        self._expected = {**self._expected, **numbers}

    def leave_out(self, error: InputError) -> None:
        """Count a file that can't be read; raise its error unless `partial` is set."""
        if not self.partial:
            message = str(error).rstrip(".")
            raise InputError(f"{message}. {PARTIAL_ADVICE}") from error
        self.skip(LEFT_OUT)

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, list[Callable]]:
        raw = pathlib.Path(dl_manager.manual_dir)
        self._expected = {}
        splits = self.read_raw(raw)
        missing = {s: list(names) for s, names in self.CLASSES.items()}
        # Those of the other splits are known after reading them.
        absent = {s: names for s, names in missing.items() if s not in splits}
        self.info.metadata["missing"].update(absent)
        return {
            split: [functools.partial(self._numbered, split, examples)]
            for split, examples in splits.items()
        }

    def _numbered(
        self, split: str, examples: Iterable[Example]
    ) -> Iterator[tuple[int, Example]]:
        """Number the examples, check their order and count them per group."""
        examples = self.watch(examples, f"writing {split}", self.EXAMPLES)
        features = self.info.features

        def is_label(name: str) -> bool:
            return isinstance(features[name], tfds.features.ClassLabel)

        counts: dict[str, Any] = {}
        last: tuple[Any, ...] = ()
        for number, example in enumerate(examples):
            ids = tuple(
                features[name].encode_example(example[name]) for name in self.GROUPED_BY
            )
            if ids < last:
                raise AssertionError(f"{split}: {self.GROUPED_BY} {ids} after {last}")
            last = ids
            *outer, inner = (
                features[name].int2str(i) if is_label(name) else example[name]
                for name, i in zip(self.GROUPED_BY, ids, strict=True)
            )
            level = counts
            for name in outer:
                level = level.setdefault(name, {})
            level[inner] = level.get(inner, 0) + 1
            written = dict(example)
            yield number, written
            # TFDS keeps a reference to each example until all are written.
            written.clear()
        metadata = self.info.metadata
        metadata["counts"][split] = counts
        missing = [name for name in self.CLASSES.get(split, ()) if name not in counts]
        if missing:
            metadata["missing"][split] = missing
        for name, count in counts.items():
            if count != self._expected.get(name, count):
                metadata["incomplete"][name] = [count, self._expected[name]]


def bytes_tensor(shape: tuple[int | None, ...], dtype: Any) -> tfds.features.Tensor:
    """Return a feature that is stored as uncompressed bytes."""
    encoding = tfds.features.Encoding.BYTES
    return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)


def image(size: int, channels: int = 3) -> tfds.features.Tensor:
    """Return the feature of a decoded image, uint8 `[size, size, channels]`."""
    return bytes_tensor((size, size, channels), np.uint8)


def split_names(text: str) -> tuple[str, ...]:
    """Return the whitespace-separated names in `text`."""
    return tuple(text.split())
