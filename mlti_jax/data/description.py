"""What a dataset holds, in words."""

from __future__ import annotations

import os

from mlti_jax import data
from mlti_jax.data import prepared
from mlti_jax.data.builders.base import DatasetBuilder
from mlti_jax.data.pools import ClassPool, DomainPool, Pool

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
    for split in ("train", "validation", "test"):
        pool = getattr(splits, split)
        if pool is None:
            lines.append(
                f"{split}: none in the paper; nothing is selected, and a run reports"
                " its last checkpoint"
            )
        else:
            lines += [f"{split}: {_size(pool)}", *_table(pool)]
    return "\n".join(lines)


def _record_counts(builder: DatasetBuilder, split: str) -> str:
    counts = prepared.counts(builder, split)
    text = f"{prepared.total(counts):,}"
    if len(counts) > 16:  # The table of what is loaded names them.
        return f"{text} of {len(counts)} {builder.GROUPED_BY[0]}s"
    groups = [f"{name} {prepared.total(count):,}" for name, count in counts.items()]
    return f"{text} ({', '.join(groups)})"


def _size(pool: Pool) -> str:
    count = int(pool.count.sum())
    if isinstance(pool, ClassPool):
        return f"{count:,} samples of {len(pool.classes)} classes"
    if isinstance(pool, DomainPool):
        domains, classes = len(pool.domains), len(pool.classes)
        return f"{count:,} samples of {domains} domains with {classes} classes"
    return f"{count:,} samples of {len(pool.domains)} objects"


def _table(pool: Pool) -> list[str]:
    """Counts, one domain a line, or several classes a line."""
    if isinstance(pool, DomainPool):
        width = max(len(name) for name in ("", *pool.domains))
        header = " ".join(f"{name:>9}" for name in pool.classes)
        rows = [f"  {'':{width}} {header}"]
        for name, counts in zip(pool.domains, pool.count.tolist(), strict=True):
            cells = " ".join(f"{count:>9,}" for count in counts)
            rows.append(f"  {name:{width}} {cells}")
        return rows
    names = pool.classes if isinstance(pool, ClassPool) else pool.domains
    cells = [
        f"{name} {count:,}"
        for name, count in zip(names, pool.count.tolist(), strict=True)
    ]
    width = max(map(len, cells)) + 2
    columns = max(1, 86 // width)
    return [
        "  " + "".join(f"{cell:{width}}" for cell in cells[i : i + columns]).rstrip()
        for i in range(0, len(cells), columns)
    ]
