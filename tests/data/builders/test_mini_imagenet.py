"""miniImageNet: small files in its two layouts, prepared and loaded."""

import csv
import pathlib
import pickle
import shutil

import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data.builders import mini_imagenet
from mlti_jax.errors import InputError
from tests.support.raw_files import (
    check_pool,
    check_task,
    linked_copy,
    prepare,
    read,
    replace,
)
from tests.support.releases import MINI_CLASSES, write_mini_cache, write_mini_lists


@pytest.fixture(scope="module")
def mini_lists(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini_lists")
    return folder, write_mini_lists(folder)


@pytest.fixture(scope="module")
def mini_from_lists(mini_lists, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("mini_prepared")
    prepare("mini_imagenet", mini_lists[0], data_dir)
    return data_dir


@pytest.mark.parametrize("train_classes", [8, 12, 64])
def test_mini_imagenet_from_lists(mini_lists, mini_from_lists, train_classes):
    splits = data.load(
        "mini_imagenet", data_dir=mini_from_lists, train_classes=train_classes
    )
    _, expected = mini_lists
    assert splits.setting == "non_label_sharing"
    check_pool(splits.train, MINI_CLASSES["train"][:train_classes], expected)
    check_pool(splits.validation, mini_imagenet._VALIDATION, expected)
    check_pool(splits.test, mini_imagenet._TEST, expected)
    check_task(splits.train, ways=5)


def test_mini_imagenet_small_is_the_default(mini_from_lists):
    splits = data.load("mini_imagenet", data_dir=mini_from_lists)
    assert splits.train.classes == mini_imagenet._TRAIN
    with pytest.raises(InputError, match="train_classes is 65.*from 1 to 64"):
        data.load("mini_imagenet", data_dir=mini_from_lists, train_classes=65)


@pytest.mark.parametrize("missing", ["train.csv", "val.csv", "test.csv", "images"])
def test_mini_imagenet_file_missing(mini_lists, tmp_path, missing):
    folder = linked_copy(mini_lists[0], tmp_path / "raw")
    if missing == "images":
        shutil.rmtree(folder / missing)
    else:
        (folder / missing).unlink()
    with pytest.raises(InputError, match=f"has no {missing}.*To get it: Put into"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_column_missing(mini_lists, tmp_path):
    folder = linked_copy(mini_lists[0], tmp_path / "raw")
    replace(folder / "val.csv", b"file,label\na.jpg,n01855672\n")
    with pytest.raises(InputError, match=r"val.csv has no column 'filename', found"):
        read("mini_imagenet", folder, tmp_path)
    replace(folder / "val.csv", b"")
    with pytest.raises(InputError, match=r"val.csv has no column 'filename'"):
        read("mini_imagenet", folder, tmp_path)
    replace(folder / "val.csv", b"filename,label\n\xff\xfe")
    with pytest.raises(InputError, match=r"can't read .*val.csv as a table"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_listed_file_missing(mini_lists, tmp_path):
    folder = linked_copy(mini_lists[0], tmp_path / "raw")
    first = (folder / "test.csv").read_text().splitlines()[1].split(",")[0]
    (folder / "images" / first).unlink()
    with pytest.raises(InputError, match=rf"line 2 of .*test.csv lists {first}"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_older_split_raises(mini_lists, tmp_path):
    # Vinyals et al. assign some of the same 100 classes to other splits.
    folder = linked_copy(mini_lists[0], tmp_path / "raw")
    train, val = ((folder / f"{s}.csv").read_text() for s in ("train", "val"))
    replace(folder / "train.csv", val.encode())
    replace(folder / "val.csv", train.encode())
    with pytest.raises(InputError, match=r"train.csv does not have the 64 .*Vinyals"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_class_missing_or_unknown(mini_lists, tmp_path):
    folder = linked_copy(mini_lists[0], tmp_path / "raw")
    lines = (folder / "train.csv").read_text()
    replace(folder / "train.csv", lines.replace(",n03017168", ",n99999999").encode())
    with pytest.raises(InputError, match="n03017168 missing; n99999999 not expected"):
        read("mini_imagenet", folder, tmp_path)
    replace(folder / "train.csv", lines.replace(",n03017168", "").encode())
    with pytest.raises(InputError, match="n03017168 missing; None not expected"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_undecodable_image(mini_lists, tmp_path):
    folder = linked_copy(mini_lists[0], tmp_path / "raw")
    file = next((folder / "images").glob("n03017168*"))
    content = file.read_bytes()
    replace(file, content[: len(content) // 2])
    # With `prepare`, to check that TFDS does not change the error.
    with pytest.raises(InputError, match=f"can't decode .*{file.name} .*again"):
        prepare("mini_imagenet", folder, tmp_path / "prepared")


# ------------------------------------------------------------------------- the cache


@pytest.fixture(scope="module")
def mini_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini_cache")
    return folder, write_mini_cache(folder)


def test_mini_imagenet_from_cache(mini_cache, tmp_path):
    folder, expected = mini_cache
    prepare("mini_imagenet", folder, tmp_path)
    splits = data.load("mini_imagenet", data_dir=tmp_path, train_classes=64)
    check_pool(splits.train, MINI_CLASSES["train"], expected)
    check_pool(splits.validation, mini_imagenet._VALIDATION, expected)
    check_pool(splits.test, mini_imagenet._TEST, expected)
    check_task(splits.test, ways=5)


def test_mini_imagenet_cache_without_a_class(mini_cache, tmp_path):
    folder = linked_copy(mini_cache[0], tmp_path / "raw")
    path = folder / "mini-imagenet-cache-train.pkl"
    content = pickle.loads(path.read_bytes())
    del content["class_dict"]["n03017168"]  # the first of the paper's list
    replace(path, pickle.dumps(content))
    prepare("mini_imagenet", folder, tmp_path)
    with pytest.raises(InputError, match="1 of 12 train classes: n03017168. This"):
        data.load("mini_imagenet", data_dir=tmp_path)
    splits = data.load("mini_imagenet", data_dir=tmp_path, missing_classes="skip")
    check_pool(splits.train, mini_imagenet._TRAIN[1:], mini_cache[1])


def test_mini_imagenet_cache_with_the_mirrors_name(mini_cache, tmp_path):
    folder = linked_copy(mini_cache[0], tmp_path / "raw")
    val = folder / "mini-imagenet-cache-val.pkl"
    val.rename(folder / "mini-imagenet-cache-validation.pkl")
    read("mini_imagenet", folder, tmp_path)
    (folder / "mini-imagenet-cache-test.pkl").unlink()
    with pytest.raises(InputError, match="has no mini-imagenet-cache-test.pkl"):
        read("mini_imagenet", folder, tmp_path)


def float_images(content):
    content["image_data"] = content["image_data"].astype(np.float32)


def small_images(content):
    content["image_data"] = content["image_data"][:, :32, :32]


def row_out_of_range(content):
    content["class_dict"]["n03017168"].append(10_000)


def negative_row(content):
    content["class_dict"]["n03017168"].append(-1)


def no_row(content):
    content["class_dict"]["n03017168"].clear()


def rows_of_text(content):
    content["class_dict"]["n03017168"] = "all"


def class_unknown(content):
    content["class_dict"]["n99999999"] = content["class_dict"].pop("n03017168")


def no_images(content):
    del content["image_data"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (float_images, "'image_data' of .* has dtype float32"),
        (small_images, r"images of shape \[32, 32, 3\]; expected uint8 and \[84"),
        (row_out_of_range, "n03017168 in 'class_dict' of .* lists image 10000"),
        (negative_row, "n03017168 in 'class_dict' of .* lists image -1"),
        (no_row, "n03017168 in 'class_dict' of .* is not a list of integers"),
        (rows_of_text, "n03017168 in 'class_dict' of .* is not a list of integers"),
        (class_unknown, "'class_dict' of .*: n99999999 not expected"),
        (no_images, "does not hold 'image_data' and 'class_dict'"),
    ],
)
def test_mini_imagenet_bad_cache(mini_cache, tmp_path, damage, message):
    folder = linked_copy(mini_cache[0], tmp_path / "raw")
    path = folder / "mini-imagenet-cache-train.pkl"
    content = pickle.loads(path.read_bytes())
    damage(content)
    replace(path, pickle.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        read("mini_imagenet", folder, tmp_path)
    assert str(path) in str(error.value)


def test_mini_imagenet_invalid_pickle(mini_cache, tmp_path):
    folder = linked_copy(mini_cache[0], tmp_path / "raw")
    path = folder / "mini-imagenet-cache-train.pkl"
    content = path.read_bytes()
    replace(path, content[: len(content) // 2])
    with pytest.raises(InputError, match="can't read .*cache-train.pkl as a pickle"):
        read("mini_imagenet", folder, tmp_path)
    replace(path, pickle.dumps({"image_data": pathlib.Path("x"), "class_dict": {}}))
    with pytest.raises(InputError, match="refers to pathlib.* not part of an array"):
        read("mini_imagenet", folder, tmp_path)
    replace(path, pickle.dumps(3))
    with pytest.raises(InputError, match="does not hold 'image_data'"):
        read("mini_imagenet", folder, tmp_path)


def test_number_of_classes():
    assert [len(c) for c in MINI_CLASSES.values()] == [64, 16, 20]
    assert len(mini_imagenet._TRAIN) == 12
    everything = sum(MINI_CLASSES.values(), ())
    assert len(set(everything)) == len(everything)
    assert all(len(name) == 9 and name[0] == "n" for name in everything)


def test_mini_imagenet_lists_are_the_releases(raw_dir):
    for split, classes in MINI_CLASSES.items():
        path = raw_dir / "miniimagenet" / f"{split}.csv"
        with path.open() as file:
            rows = list(csv.DictReader(file))
        files = mini_imagenet._read_list(path, classes)
        assert {len(names) for names in files.values()} == {600}
        listed = list(dict.fromkeys(row["label"] for row in rows))
        if split == "train":
            assert sorted(classes) == sorted(listed)
        else:
            assert list(classes) == listed
