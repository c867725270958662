"""Training steps with the samples on the device, in host memory, or in records.

Steps per second of MLTI with Conv4 on images. The records hold decoded images (uint8,
as `prepare` writes them) or JPEG files, which are decoded at each step. Images of
miniImageNet are used where `MLTI_RAW_DIR` has them, else synthetic ones. All kinds run
the tasks of the same key. Memory is the peak of a process that trains for some steps,
while the dataset grows: links to the records serve as further classes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark import timing
from experiments.benchmark.cases import Case, find
from experiments.benchmark.program import make_parts
from mlti_jax import parallel
from mlti_jax._internal.extras import require
from mlti_jax.data import ClassPool
from mlti_jax.data._placement import KINDS
from mlti_jax.data._prepared import decode_feature
from mlti_jax.data._readers.images import decode_image
from mlti_jax.data._records import Records
from mlti_jax.data._task_source import TaskSource, without_samples
from mlti_jax.errors import InputError
from mlti_jax.parallel import plan_for
from mlti_jax.strategies._objective import tasks_per_step
from mlti_jax.training import make_run_steps
from mlti_jax.training._batches import Chunks
from mlti_jax.training._step import MetaBatches, make_run_batches

STEPS = 24  # of a round; many more than are read ahead
GROWTH = (1, 10, 100)
# With all of its copies, the largest dataset would not fit into a small machine.
DEVICE_GROWTH = (1, 10)
GROWING = (12, 50)  # classes and images per class of the smallest dataset
MEMORY_STEPS = 40


class Row(NamedTuple):
    """What is timed.

    Attributes:
      case: name of the training step.
      size: height and width of the images.
      images: images per class.
      encoding: `uint8` or `jpeg`, of the records.
    """

    case: str
    size: int
    images: int
    encoding: str


ROWS = (
    Row("protonet_conv4_84_1s_mlti", 84, 600, "uint8"),
    Row("protonet_conv4_84_1s_mlti", 84, 600, "jpeg"),
    Row("maml_conv4_84_1s_mlti", 84, 600, "uint8"),
    Row("maml_conv4_84_1s_mlti", 84, 600, "jpeg"),
    Row("protonet_conv4_84_1s_mlti", 224, 60, "jpeg"),
)


def measure(rounds: int, seconds: float) -> dict:
    """Measure all rows and the growth of memory; `seconds` is not used."""
    del seconds
    share = timing.CpuShare()
    rows = [measure_row(row, min(rounds, 3)) for row in ROWS]
    return {
        "case": "pools",
        "kind": "pools",
        "images": "miniImageNet" if _real_images(1, 1) else "synthetic",
        "rows": rows,
        "memory": measure_memory(),
        "others": share.of_others(),
    }


def measure_row(row: Row, rounds: int, steps: int = STEPS) -> dict:
    """Measure steps per second of each kind, in turn."""
    case = replace(find(row.case), image_shape=(row.size, row.size, 3))
    case = replace(case, pool=(case.pool[0], row.images))
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        records = write_records(pathlib.Path(folder), case, row.encoding)
        runs = {kind: make_run(case, records, kind, stack) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for run in runs.values():
            run(1)  # compiles
        for _ in range(rounds):
            for kind, run in runs.items():
                times[kind].append(run(steps))
    rates = {kind: 1 / float(np.median(values)) for kind, values in times.items()}
    return {**row._asdict(), "steps_per_second": rates}


def make_run(
    case: Case, records: Records, kind: str, stack: contextlib.ExitStack
) -> Callable[[int], float]:
    """Build a function that trains a number of steps; it returns seconds per step.

    The first call of the compiled loop is not counted: it waits for the first tasks.

    Args:
      case: the step.
      records: its samples.
      kind: where they are, one of `KINDS`.
      stack: ends what reads them.
    """
    parts = make_parts(replace(case, pool=(1, 2)))
    plan = plan_for(jax.ShapeDtypeStruct(records.shape, records.dtype), case.tasks)
    pool = _pool(records, kind, case.pool[0])
    key, state = plan.replicate((jax.random.key(1), parts.state))
    method = (parts.learner, parts.strategy, parts.optimizer)
    done = 0

    if kind == "device":
        run_steps = make_run_steps(*method, parts.episode, case.tasks, plan)
        on_device = plan.replicate(pool)

        def run_on_device(steps: int) -> float:
            nonlocal state, done
            state, bad = run_steps(state, on_device, key, done + 1)
            int(bad)
            start = time.perf_counter()
            done += 1 + steps
            state, bad = run_steps(state, on_device, key, done)
            int(bad)
            return (time.perf_counter() - start) / steps

        return run_on_device

    number = tasks_per_step(parts.strategy, case.tasks)
    local = tuple(range(number)[plan.local_tasks(number)])
    draw = MetaBatches(parts.episode, True, number, local)
    source = TaskSource(pool, jax.random.key(1), draw, 10**6)
    small = plan.replicate(without_samples(pool))
    run_batches = make_run_batches(*method, parts.episode, case.tasks, plan)
    chunks = Chunks(source, pool, 0, plan.replicate)
    stack.callback(chunks.close)

    def run_chunk() -> int:
        nonlocal state, done
        batches, first, end = chunks.at(done)
        state, bad = run_batches(state, small, batches, first, key, end)
        int(bad)
        steps, done = end - done, end
        return steps

    def run(steps: int) -> float:
        run_chunk()
        start, trained = time.perf_counter(), 0
        while trained < steps:
            trained += run_chunk()
        return (time.perf_counter() - start) / trained

    return run


def _pool(records: Records, kind: str, classes: int) -> ClassPool:
    index = np.arange(len(records), dtype=np.int32).reshape(classes, -1)
    x = records if kind == "stream" else records[:]
    return ClassPool(
        x=jnp.asarray(x) if kind == "device" else x,
        index=jnp.asarray(index),
        count=jnp.full(classes, index.shape[1], jnp.int32),
        classes=tuple(map(str, range(classes))),
    )


# ------------------------------------------------------------------------- records


def write_records(
    folder: pathlib.Path, case: Case, encoding: str, copies: int = 1
) -> Records:
    """Write the images of a case to records.

    Args:
      folder: where to write the file.
      case: its pool has `[classes, images]`.
      encoding: `uint8` or `jpeg`.
      copies: how often the file is linked; each link holds further classes.
    """
    writer_of = require("array_record.python.array_record_module", "data")
    source_of = require("array_record.python.array_record_data_source", "data")
    tfds = require("tensorflow_datasets", "data")
    size = case.image_shape[0]
    feature = tfds.features.Tensor(
        shape=case.image_shape,
        dtype=np.uint8,
        encoding=tfds.features.Encoding.BYTES,
    )
    features = tfds.features.FeaturesDict({"image": feature})
    path = folder / "images.array_record"
    writer = writer_of.ArrayRecordWriter(str(path), "group_size:1")
    for content in _images(size, *case.pool):
        if encoding == "uint8":
            image = decode_image(content, "of the benchmark", size)
            content = features.serialize_example({"image": image})
        writer.write(content)
    writer.close()
    paths = [str(path)]
    for number in range(1, copies):
        link = folder / f"images-{number}.array_record"
        link.symlink_to(path)
        paths.append(str(link))
    source = source_of.ArrayRecordDataSource(paths)
    return Records(
        source,
        functools.partial(decode_image, place="of the benchmark", size=size)
        if encoding == "jpeg"
        else functools.partial(decode_feature, features),
        range(len(source)),
        case.image_shape,
        np.uint8,
        InputError,
    )


def _images(size: int, classes: int, images: int) -> Iterator[bytes]:
    """Yield JPEG files, class by class."""
    from PIL import Image

    if size == 84 and (paths := _real_images(classes, images)):
        for path in paths:
            yield path.read_bytes()
        return
    rng = np.random.default_rng(0)
    for _ in range(classes * images):
        # Smooth, as photographs are
        small = rng.integers(0, 256, (size // 7, size // 7, 3), np.uint8)
        image = Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        yield buffer.getvalue()


def _real_images(classes: int, images: int) -> list[pathlib.Path]:
    """Return files of miniImageNet, class by class; empty if there are too few."""
    folder = pathlib.Path(os.environ.get("MLTI_RAW_DIR", ""), "miniimagenet", "images")
    if not os.environ.get("MLTI_RAW_DIR") or not folder.is_dir():
        return []
    by_class = itertools.groupby(sorted(os.listdir(folder)), lambda name: name[:9])
    groups = [list(names) for _, names in by_class]
    groups = [names[:images] for names in groups if len(names) >= images][:classes]
    return [folder / name for names in groups for name in names] * (
        len(groups) == classes
    )


# -------------------------------------------------------------------------- memory


def measure_memory() -> list[dict]:
    """Measure the peak memory of processes that train on growing datasets."""
    rows = []
    for kind in KINDS:
        for factor in DEVICE_GROWTH if kind == "device" else GROWTH:
            command = [sys.executable, "-m", "experiments.benchmark.pools"]
            found = subprocess.run(
                [*command, kind, str(factor)],
                capture_output=True,
                text=True,
                check=True,
            )
            rows.append(json.loads(found.stdout.splitlines()[-1]))
    return rows


def train_on_growing(kind: str, factor: int) -> dict:
    """Train some steps on a dataset of a size; return the peak memory in MB."""
    case = replace(find("protonet_conv4_84_1s_vanilla"), filters=8, queries=5)
    case = replace(case, pool=GROWING)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        records = write_records(pathlib.Path(folder), case, "uint8", copies=factor)
        grown = replace(case, pool=(GROWING[0] * factor, GROWING[1]))
        make_run(grown, records, kind, stack)(MEMORY_STEPS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if sys.platform == "darwin":
        peak //= 1024  # in bytes there
    return {
        "kind": kind,
        "factor": factor,
        "samples_mb": records.nbytes / 1e6,
        "peak_mb": peak / 1e6,
    }


# --------------------------------------------------------------------------- table


def table(result: dict) -> str:
    """Format steps per second and, relative to the device, of each kind; memory."""
    lines = [
        f"pools: steps per second, 84x84 images: {result['images']}; others"
        f" {timing.format_share(result['others'])}",
        f"  {'case':28}{'size':>5} {'records':8}{'device':>9}"
        f"{'host':>16}{'stream':>16}",
    ]
    for row in result["rows"]:
        rates = row["steps_per_second"]
        cells = "".join(
            f"{rates[kind]:>8.2f} ({rates[kind] / rates['device']:5.2f})"
            for kind in ("host", "stream")
        )
        lines.append(
            f"  {row['case']:28}{row['size']:>5} {row['encoding']:8}"
            f"{rates['device']:>9.2f}{cells}"
        )
    lines.append("  peak memory of a process in MB, while the dataset grows")
    for row in result["memory"]:
        lines.append(
            f"  {row['kind']:8} x{row['factor']:<4} samples {row['samples_mb']:>8.1f}"
            f"  peak {row['peak_mb']:>8.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parallel.use_all_cores()
    print(json.dumps(train_on_growing(sys.argv[1], int(sys.argv[2]))))
