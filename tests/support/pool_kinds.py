"""Small pools of images with their samples in each place: device, host, records."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter

from experiments.configs import mini_imagenet
from mlti_jax.data import ClassPool, DomainPool, RegressionPool, Splits
from mlti_jax.data._pools import Pool
from mlti_jax.data._records import Records
from mlti_jax.errors import InputError

SHAPE = (12, 12, 3)


def images(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (number, *SHAPE), np.uint8)


def decode(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.uint8).reshape(SHAPE)


def damaged(reason: str) -> InputError:
    return InputError(f"damaged: {reason}")


def write(path: pathlib.Path, x: np.ndarray) -> pathlib.Path:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for sample in x:
        writer.write(sample.tobytes())
    writer.close()
    return path


def records(path: pathlib.Path, x: np.ndarray, workers: int = 0) -> Records:
    """Records that hold x in reverse order; row i is nevertheless sample i."""
    write(path, x[::-1])
    rows = np.arange(len(x))[::-1]
    source = ArrayRecordDataSource([str(path)])
    return Records(source, decode, rows, SHAPE, np.uint8, damaged, workers=workers)


def make_pool(setting: str, seed: int = 0) -> Pool:
    """A pool on the device, with groups of different sizes."""
    if setting == "non_label_sharing":
        label = np.repeat(np.arange(5), np.arange(6, 11))
        return ClassPool.from_arrays(images(len(label), seed), label)
    if setting == "label_sharing":
        domain = np.repeat(np.arange(4), 18)
        return DomainPool.from_arrays(images(72, seed), domain, np.arange(72) % 3)
    domain = np.repeat(np.arange(4), 12)
    y = np.random.default_rng(seed).normal(size=(48, 1))
    return RegressionPool.from_arrays(images(48, seed), y, domain)


def moved(
    pool: Pool, kind: str, folder: pathlib.Path, name: str = "x", workers: int = 0
) -> Pool:
    """The same pool with its samples in another place."""
    x = np.array(pool.x)
    if kind == "stream":
        x = records(folder / f"{name}.array_record", x, workers)
    return pool if kind == "device" else dataclasses.replace(pool, x=x)


def splits(kind: str, folder: pathlib.Path, workers: int = 0) -> Splits:
    """Three pools of classes in one place."""
    pools = {
        name: moved(make_pool("non_label_sharing", seed), kind, folder, name, workers)
        for seed, name in enumerate(("train", "validation", "test"))
    }
    return Splits("toy", "non_label_sharing", **pools, note="toy images")


def small_config(learner="protonet", strategy="mlti", **changes):
    config = mini_imagenet.get_config(f"learner={learner},strategy={strategy}")
    config.task.update({"ways": 3, "shots": 2, "queries": 3})
    config.backbone.conv4.update({"filters": 4, "blocks": 2})
    config.train.update({"steps": 20, "log_every": 5, "checkpoint_every": 10})
    config.eval.update({"every": 10, "num_tasks": 10, "validation_tasks": 5})
    config.eval.update({"queries": 3, "tasks_per_pass": 4})
    config.update_from_flattened_dict(changes)
    return config
