"""Says what a dataset holds, and makes a picture of it.

    python -m mlti_jax.data.describe --dataset=nci

prints the counts per split, domain and class, and saves a sheet of samples (of vectors:
how many features a sample has) beside the prepared records, or as `--output` says.
"""

from __future__ import annotations

import os
import pathlib
import sys

from absl import flags, logging

from mlti_jax import command_line, data
from mlti_jax.data import DATASETS, default_data_dir, pictures, prepared
from mlti_jax.data.builders.base import DatasetBuilder
from mlti_jax.data.pools import ClassPool, DomainPool, Pool
from mlti_jax.errors import InputError

DATASET = flags.DEFINE_string("dataset", None, "Name of the dataset.")
DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Where prepared datasets live; else MLTI_DATA_DIR, else ~/.cache/mlti_jax.",
)
OUTPUT = flags.DEFINE_string("output", None, "The picture's file, a PNG.")


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


def main(argv: list[str]) -> None:
    """Prints the counts and saves the picture."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}; see --help")
    name = DATASET.value
    if name is None:
        raise InputError(
            f"--dataset is missing; choose one of: {', '.join(sorted(DATASETS))}"
        )
    print(describe(name, DATA_DIR.value))
    folder = pathlib.Path(DATA_DIR.value or default_data_dir()).expanduser()
    path = pathlib.Path(OUTPUT.value or folder / name / f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.sheet(data.load(name, data_dir=DATA_DIR.value), path)
    print(f"picture: {path}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
