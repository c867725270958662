"""What a dataset holds, in words."""

from __future__ import annotations

import os

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._summary import pool_lines
from mlti_jax.data.builders.base import DatasetBuilder

LARGE = 4 * 2**30  # bytes of records


def describe(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """What the dataset holds, in words: the records, and what is loaded by default."""
    lines = []
    builder = prepared.builder(name, data_dir)
    if builder.is_prepared():
        info = builder.info
        lines = [
            f"{name} {builder.version} in {builder.data_path}",
            f"{info.description} {info.homepage}",
            f"Licence: {info.redistribution_info.license}",
        ]
        for split in info.splits:
            lines.append(f"records of {split}: {_record_counts(builder, split)}")
        for reason, count in info.metadata["skipped"].items():
            lines.append(f"left out: {count:,} ({reason})")
        if info.dataset_size > LARGE:
            lines.append("too large to be loaded for this description")
            return "\n".join(lines)
    splits = data.load(name, data_dir=data_dir)
    lines.append(f"As loaded by default: {splits.note}")
    lines += pool_lines(splits, missing="none in the paper")
    return "\n".join(lines)


def _record_counts(builder: DatasetBuilder, split: str) -> str:
    counts = prepared.counts(builder, split)
    text = f"{prepared.total(counts):,}"
    if len(counts) > 16:  # The table of what is loaded names them.
        return f"{text} of {len(counts)} {builder.GROUPED_BY[0]}s"
    groups = [f"{name} {prepared.total(count):,}" for name, count in counts.items()]
    return f"{text} ({', '.join(groups)})"
