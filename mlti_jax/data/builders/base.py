"""What the TFDS builders share.

A builder turns a publisher's files into records, once, with one file a dataset:
`tfds.builder("nci", data_dir=..., file_format="array_record")` after
`import mlti_jax.data.builders.nci`, or `python -m mlti_jax.data.prepare`.
Records are whole arrays, so that nothing is decoded again when they are read.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.progress import Progress

Example = dict[str, Any]


class DatasetBuilder(tfds.core.ShardBasedBuilder, skip_registration=True):
    """A dataset that is read from files which the user has downloaded.

    Written shard by shard, one a split: TFDS's generator-based builders sort examples,
    and need TensorFlow for that where a split has more than 1 GB.

    A subclass names its features and reads the raw files. Its examples come sorted by
    class, or by domain and then class, in the order of the feature's names, which is
    the paper's. So the first k training classes are one contiguous part of the
    records, and the counts (in the metadata) tell where each class stands.

    Attributes:
      GROUPED_BY: the features that examples are sorted by, each a `ClassLabel`.
      INSTRUCTIONS: what to download from where, and how it must lie in the folder.
      EXAMPLES: about how many the publisher's release makes, to show progress.
      processes: how many processes read the raw files.
      show_progress: whether to show how far the work is.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}
    GROUPED_BY: tuple[str, ...] = ("label",)
    INSTRUCTIONS = ""
    EXAMPLES = 0
    processes: int = 1
    show_progress: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.MANUAL_DOWNLOAD_INSTRUCTIONS = cls.INSTRUCTIONS
        super().__init_subclass__(**kwargs)

    def read_raw(self, raw: pathlib.Path) -> dict[str, Iterable[Example]]:
        """The examples of each split, from the publisher's files in `raw`."""
        raise NotImplementedError  # Every dataset's own.

    def describe(
        self,
        features: dict[str, Any],
        *,
        description: str,
        homepage: str,
        citation: str,
        license: str,
    ) -> tfds.core.DatasetInfo:
        """The `DatasetInfo` of a dataset whose records keep their order."""
        return tfds.core.DatasetInfo(
            builder=self,
            description=description,
            features=tfds.features.FeaturesDict(features),
            homepage=homepage,
            citation=citation,
            license=license,
            disable_shuffling=True,
            metadata=tfds.core.MetadataDict(counts={}, skipped={}),
        )

    def watch(
        self, items: Iterable[Any], label: str, total: int, unit: str = "example"
    ) -> Iterator[Any]:
        """Passes items on, and shows how far it is.

        Args:
          items: to pass on.
          label: what is done with them.
          total: how many there will be, about.
          unit: what one is called.
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

    def skip(self, reason: str) -> None:
        """Counts a sample that is left out."""
        skipped = self.info.metadata["skipped"]
        skipped[reason] = skipped.get(reason, 0) + 1

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, list[Callable]]:
        raw = pathlib.Path(dl_manager.manual_dir)
        return {
            split: [functools.partial(self._numbered, split, examples)]
            for split, examples in self.read_raw(raw).items()
        }

    def _numbered(
        self, split: str, examples: Iterable[Example]
    ) -> Iterator[tuple[int, Example]]:
        """Checks the order of the examples, and counts them."""
        examples = self.watch(examples, f"writing {split}", self.EXAMPLES)
        features = self.info.features
        counts: dict[str, Any] = {}
        last: tuple[int, ...] = ()
        for number, example in enumerate(examples):
            ids = tuple(
                features[name].encode_example(example[name]) for name in self.GROUPED_BY
            )
            if ids < last:
                raise AssertionError(f"{split}: {self.GROUPED_BY} {ids} after {last}")
            last = ids
            *outer, inner = (
                features[name].int2str(i)
                for name, i in zip(self.GROUPED_BY, ids, strict=True)
            )
            level = counts
            for name in outer:
                level = level.setdefault(name, {})
            level[inner] = level.get(inner, 0) + 1
            written = dict(example)
            yield number, written
            # TFDS holds on to each example until all are written, to count them.
            written.clear()
        self.info.metadata["counts"][split] = counts


def bytes_tensor(shape: tuple[int, ...], dtype: Any) -> tfds.features.Tensor:
    """A feature that is stored as it lies in memory."""
    encoding = tfds.features.Encoding.BYTES
    return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)


def image(size: int, channels: int = 3) -> tfds.features.Tensor:
    """A picture, uint8 `[size, size, channels]`, decoded."""
    return bytes_tensor((size, size, channels), np.uint8)
