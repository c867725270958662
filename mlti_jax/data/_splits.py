"""`Splits`: the pools of one dataset, and a text summary of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlti_jax.data._own.inputs import Inputs
from mlti_jax.data._pools import ClassPool, DomainPool, Pool

MAX_COLUMNS = 12  # a table with more classes shows totals per domain only
MAX_LINES = 100  # of a table; more domains are summarized


@dataclasses.dataclass(frozen=True)
class Splits:
    """A dataset, ready for meta-learning.

    Attributes:
      name: name of the dataset.
      setting: `label_sharing`, `non_label_sharing` or `regression`.
      train: pool for meta-training.
      validation: pool for model selection; None if the dataset has none.
      test: pool for meta-testing; None if the user holds out no tasks.
      note: one sentence that says which data this is.
      source: origin of the samples, for datasets with more than one source.
      images_per_class: images per class and domain, for datasets with this option.
      inputs: how the user's raw data became samples; applies the same to new data.
      details: sentences on what was found in the user's data and how it was changed.
      part: None if the data is complete. Otherwise `prepared`, the part of the release
        that was prepared, and `left_out`, the classes that the splits lack because
        they are missing or too small.
      placement: where the samples are, and why; empty for the device.
    """

    name: str
    setting: str
    train: Pool
    validation: Pool | None
    test: Pool | None
    note: str
    source: str | None = None
    images_per_class: int | None = None
    inputs: Inputs | None = None
    details: tuple[str, ...] = ()
    part: dict[str, Any] | None = None
    placement: str = ""

    @property
    def summary(self) -> str:
        """Text with the size of each split and everything done to the data.

        `counts` lists the samples of each class and domain.
        """
        setting = self.setting.replace("_", "-")
        lines = [f"{self.name} ({setting}): {self.note}"]
        lines += [f"- {detail}" for detail in self.details]
        lines += pool_lines(self, tables=False)
        return "\n".join([*lines, _smallest_group(self)])

    @property
    def counts(self) -> str:
        """Text with the number of samples of each class and domain."""
        return "\n".join(pool_lines(self))


def pool_lines(
    splits: Splits, *, missing: str = "none", tables: bool = True
) -> list[str]:
    """List the size of each split, one line of text per entry.

    Args:
      splits: the dataset.
      missing: text for a split that does not exist.
      tables: whether to list the samples of each class and domain.
    """
    lines = []
    for split in ("train", "validation", "test"):
        pool = getattr(splits, split)
        if pool is not None:
            lines += [f"{split}: {_size(pool)}", *(_table(pool) if tables else ())]
        elif split == "validation":
            lines.append(
                f"{split}: {missing}; a run reports its last checkpoint, without model"
                " selection"
            )
        else:
            lines.append(f"{split}: {missing}")
    return lines


def _smallest_group(splits: Splits) -> str:
    """Names the group that limits the number of shots and queries."""
    pools = [splits.train, splits.validation, splits.test]
    pool = min((p for p in pools if p is not None), key=lambda p: int(p.count.min()))
    count = np.asarray(pool.count).reshape(-1)
    name = pool._group_name(int(count.argmin()))
    return (
        f"smallest: {name} with {count.min()} samples; shots + queries can be at most"
        f" {count.min()}"
    )


def _size(pool: Pool) -> str:
    count = int(pool.count.sum())
    if isinstance(pool, ClassPool):
        return f"{count:,} samples of {len(pool.classes)} classes"
    if isinstance(pool, DomainPool):
        domains, classes = len(pool.domains), len(pool.classes)
        return f"{count:,} samples of {domains} domains with {classes} classes"
    return f"{count:,} samples of {len(pool.domains)} objects"


def _table(pool: Pool) -> list[str]:
    """Format counts with one domain per line, or several classes per line."""
    if isinstance(pool, DomainPool) and len(pool.domains) > MAX_LINES:
        return _summary(pool)
    if isinstance(pool, DomainPool) and len(pool.classes) <= MAX_COLUMNS:
        width = max(len(name) for name in ("", *pool.domains))
        widths = [max(9, len(name)) for name in pool.classes]
        rows: list[tuple[str, Sequence[str]]] = [("", pool.classes)]
        for name, counts in zip(pool.domains, pool.count.tolist(), strict=True):
            rows.append((name, [f"{count:,}" for count in counts]))
        return [
            f"  {name:{width}} "
            + " ".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
            for name, cells in rows
        ]
    names = pool.classes if isinstance(pool, ClassPool) else pool.domains
    totals = np.asarray(pool.count).reshape(len(names), -1).sum(axis=1).tolist()
    cells = [f"{name} {count:,}" for name, count in zip(names, totals, strict=True)]
    width = max(map(len, cells)) + 2
    columns = max(1, 86 // width)
    return [
        "  " + "".join(f"{cell:{width}}" for cell in cells[i : i + columns]).rstrip()
        for i in range(0, len(cells), columns)
    ]


def _summary(pool: DomainPool) -> list[str]:
    """Format the range of the counts over many domains."""
    names = [*pool.classes, "all classes"] if len(pool.classes) <= MAX_COLUMNS else []
    count = np.asarray(pool.count)
    columns = [*count.T, count.sum(axis=1)] if names else [count.sum(axis=1)]
    width = max(map(len, names), default=0)
    return [
        f"  {name:{width}} per domain: {column.min():,} to {column.max():,},"
        f" median {int(np.median(column)):,}"
        for name, column in zip(names or [""], columns, strict=True)
    ]
