"""tieredImageNet: small files in its layout, prepared and loaded."""

import csv
import pickle

import jax
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data._pools import sample_batch
from mlti_jax.data._registry import dataset_builder
from mlti_jax.data.builders._tiered_imagenet_classes import TEST, TRAIN, VALIDATION
from mlti_jax.errors import InputError
from tests.support.raw_files import (
    check_pool,
    linked_copy,
    png,
    prepare,
    read,
    replace,
)
from tests.support.releases import TIERED_CLASSES, write_tiered_imagenet


@pytest.fixture(scope="module")
def tiered_raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiered")
    return folder, write_tiered_imagenet(folder)


@pytest.fixture(scope="module")
def tiered_prepared(tiered_raw, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("tiered_prepared")
    prepare("tiered_imagenet", tiered_raw[0], data_dir)
    return data_dir


@pytest.mark.parametrize("train_classes", [35, 351])
def test_tiered_imagenet(tiered_raw, tiered_prepared, train_classes):
    splits = data.load(
        "tiered_imagenet", data_dir=tiered_prepared, train_classes=train_classes
    )
    _, expected = tiered_raw
    check_pool(splits.train, TRAIN[:train_classes], expected)
    check_pool(splits.validation, VALIDATION, expected)
    check_pool(splits.test, TEST, expected)
    task = sample_batch(splits.test, jax.random.key(0), 4)
    assert task.x.shape == (4, 84, 84, 3)


def test_tiered_imagenet_small_is_the_default(tiered_prepared):
    splits = data.load("tiered_imagenet", data_dir=tiered_prepared)
    assert splits.train.classes == TRAIN[:35]


@pytest.mark.parametrize(
    "missing",
    ["synsets.txt", "class_names.txt", "train_images_png.pkl", "val_labels.pkl"],
)
def test_tiered_imagenet_file_missing(tiered_raw, tmp_path, missing):
    folder = linked_copy(tiered_raw[0], tmp_path / "raw")
    path = folder / missing
    path.rename(folder / f"tiered-imagenet-{missing}")
    dataset_builder("tiered_imagenet", tmp_path).read_raw(folder)
    (folder / f"tiered-imagenet-{missing}").unlink()
    with pytest.raises(InputError, match=f"has no {missing}.*To get it: Download"):
        read("tiered_imagenet", folder, tmp_path)


def unknown_name(content):
    content["label_specific_str"][3] = "unicorn"


def name_twice(content):
    content["label_specific_str"][3] = content["label_specific_str"][4]


def label_out_of_range(content):
    content["label_specific"][7] = 99


def negative_label(content):
    content["label_specific"][7] = -1


def float_labels(content):
    content["label_specific"] = content["label_specific"] / 2


def no_names(content):
    del content["label_specific_str"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unknown_name, "has the classes unicorn, which class_names.txt"),
        (name_twice, "has duplicate names"),
        (label_out_of_range, "image 7 of .* has class 99; expected .* 0 to 96"),
        (negative_label, "image 7 of .* has class -1"),
        (float_labels, "'label_specific' of .* has dtype float64"),
        (no_names, "does not hold 'label_specific' and 'label_specific_str'"),
    ],
)
def test_tiered_imagenet_bad_labels(tiered_raw, tmp_path, damage, message):
    folder = linked_copy(tiered_raw[0], tmp_path / "raw")
    path = folder / "val_labels.pkl"
    content = pickle.loads(path.read_bytes())
    damage(content)
    replace(path, pickle.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        read("tiered_imagenet", folder, tmp_path)
    assert str(path) in str(error.value)


def test_tiered_imagenet_names_of_another_release(tiered_raw, tmp_path):
    folder = linked_copy(tiered_raw[0], tmp_path / "raw")
    lines = (folder / "synsets.txt").read_text().splitlines()
    replace(folder / "synsets.txt", "\n".join(lines[1:]).encode())
    with pytest.raises(InputError, match="class_names.txt has 609 lines and .* 608"):
        read("tiered_imagenet", folder, tmp_path)
    replace(folder / "synsets.txt", b"\xff")
    with pytest.raises(InputError, match="can't read .*synsets.txt"):
        read("tiered_imagenet", folder, tmp_path)


def large_image(images):
    images[5] = np.frombuffer(png(np.zeros((96, 84, 3), np.uint8)), np.uint8)


def damaged_image(images):
    images[5] = images[5][: len(images[5]) // 2]


def decoded_image(images):
    images[5] = np.zeros((84, 84, 3), np.float32)


def image_missing(images):
    images.pop()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (large_image, "image 5 of .* is 84x96; expected 84x84. .* another release"),
        (damaged_image, "can't decode the image 5 of"),
        (decoded_image, "image 5 of .* is not a uint8 array"),
        (image_missing, "holds a list of 213; expected a list of 214 images"),
    ],
)
def test_tiered_imagenet_bad_images(tiered_raw, tmp_path, damage, message):
    folder = linked_copy(tiered_raw[0], tmp_path / "raw")
    path = folder / "val_images_png.pkl"
    images = pickle.loads(path.read_bytes())
    damage(images)
    replace(path, pickle.dumps(images))
    examples = dataset_builder("tiered_imagenet", tmp_path).read_raw(folder)
    with pytest.raises(InputError, match=message) as error:
        list(examples["validation"])
    assert str(path) in str(error.value)


def test_tiered_imagenet_invalid_pickle(tiered_raw, tmp_path):
    folder = linked_copy(tiered_raw[0], tmp_path / "raw")
    builder = dataset_builder("tiered_imagenet", tmp_path)
    path = folder / "test_images_png.pkl"
    content = path.read_bytes()
    replace(path, content[: len(content) // 2])
    with pytest.raises(InputError, match="can't read .*test_images_png.pkl as a"):
        list(builder.read_raw(folder)["test"])
    replace(path, pickle.dumps({"images": 1}))
    with pytest.raises(InputError, match="holds a dict of 1; expected a list of 340"):
        list(builder.read_raw(folder)["test"])
    replace(folder / "test_labels.pkl", pickle.dumps(print))
    with pytest.raises(InputError, match="test_labels.pkl .* refers to builtins"):
        builder.read_raw(folder)


def test_reading_in_processes_gives_the_same_images(tiered_raw, tmp_path):
    folder, expected = tiered_raw
    builder = dataset_builder("tiered_imagenet", tmp_path)
    builder.processes = 2
    examples = list(builder.read_raw(folder)["validation"])
    in_order = [expected[name] for name in VALIDATION]
    np.testing.assert_array_equal(
        [e["image"] for e in examples], np.concatenate(in_order)
    )


def test_number_of_classes():
    assert [len(c) for c in TIERED_CLASSES.values()] == [351, 97, 160]
    everything = sum(TIERED_CLASSES.values(), ())
    assert len(set(everything)) == len(everything)
    assert all(len(name) == 9 and name[0] == "n" for name in everything)


def test_tiered_imagenet_lists_are_the_releases(raw_dir):
    for split, classes in TIERED_CLASSES.items():
        with (raw_dir / "tieredimagenet" / f"{split}.csv").open() as file:
            assert [row[0] for row in csv.reader(file) if row] == list(classes)
