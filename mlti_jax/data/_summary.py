"""What pools hold, in words."""

from __future__ import annotations

import numpy as np

from mlti_jax.data._pools import ClassPool, DomainPool, Pool, Splits

MOST_ROWS = 20  # of a table of counts in a summary
MOST_COLUMNS = 12  # of such a table; more classes are counted together


def describe_splits(splits: Splits) -> str:
    """What a dataset holds and what was done to it, in words, with counts."""
    setting = splits.setting.replace("_", "-")
    lines = [f"{splits.name} ({setting}): {splits.note}"]
    lines += [f"- {detail}" for detail in splits.details]
    lines += pool_lines(splits, most=MOST_ROWS)
    return "\n".join([*lines, _smallest(splits)])


def pool_lines(
    splits: Splits, *, missing: str = "none", most: int | None = None
) -> list[str]:
    """The counts of each split.

    Args:
      splits: the dataset.
      missing: what to say of a split that is not there.
      most: lines of a split's table, after which it is cut off; None for all.
    """
    lines = []
    for split in ("train", "validation", "test"):
        pool = getattr(splits, split)
        if pool is not None:
            lines += [f"{split}: {_size(pool)}", *_cut(_table(pool), most)]
        elif split == "validation":
            lines.append(
                f"{split}: {missing}; nothing is selected, and a run reports its last"
                " checkpoint"
            )
        else:
            lines.append(f"{split}: {missing}")
    return lines


def _smallest(splits: Splits) -> str:
    """The group that bounds the size of tasks."""
    pools = [splits.train, splits.validation, splits.test]
    pool = min((p for p in pools if p is not None), key=lambda p: int(p.count.min()))
    count = np.asarray(pool.count).reshape(-1)
    name = pool._group_name(int(count.argmin()))
    return (
        f"smallest: {name} with {count.min()} samples, so that shots and queries can be"
        f" {count.min()} in all"
    )


def _size(pool: Pool) -> str:
    count = int(pool.count.sum())
    if isinstance(pool, ClassPool):
        return f"{count:,} samples of {len(pool.classes)} classes"
    if isinstance(pool, DomainPool):
        domains, classes = len(pool.domains), len(pool.classes)
        return f"{count:,} samples of {domains} domains with {classes} classes"
    return f"{count:,} samples of {len(pool.domains)} objects"


def _cut(rows: list[str], most: int | None) -> list[str]:
    if most is None or len(rows) <= most:
        return rows
    return [*rows[:most], f"  ... and {len(rows) - most} lines more"]


def _table(pool: Pool) -> list[str]:
    """Counts, one domain a line, or several classes a line."""
    if isinstance(pool, DomainPool) and len(pool.classes) <= MOST_COLUMNS:
        width = max(len(name) for name in ("", *pool.domains))
        widths = [max(9, len(name)) for name in pool.classes]
        rows = [("", pool.classes)]
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
