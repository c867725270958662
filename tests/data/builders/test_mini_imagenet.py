"""miniImageNet: from small files of its two releases to pools."""

import csv
import pathlib
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from mlti_jax import data
from mlti_jax.data.builders import mini_imagenet
from mlti_jax.errors import InputError
from tests.support.raw_files import (
    altered,
    check_pool,
    check_task,
    dump,
    noise,
    prepare,
    read,
    replace,
)

MINI_CLASSES = {
    "train": mini_imagenet.TRAIN + mini_imagenet.ADDITIONAL,
    "val": mini_imagenet.VALIDATION,
    "test": mini_imagenet.TEST,
}


# miniImageNet: lists and JPEG files.


@pytest.fixture(scope="module")
def mini_lists(tmp_path_factory):
    """Two grey pictures a class (JPEG keeps plain grey), listed in mixed order."""
    folder = tmp_path_factory.mktemp("mini_lists")
    (folder / "images").mkdir()
    expected = {}
    for split, classes in MINI_CLASSES.items():
        lines = ["filename,label"]
        # As in the release, where the paper's order is not that of the list.
        for number, name in enumerate(sorted(classes)):
            greys = (2 * number, 2 * number + 1)
            for grey, size in zip(greys, ((84, 84), (40, 56)), strict=True):
                file = f"{name}0000{grey:04}.jpg"
                picture = Image.new("RGB", size, (grey, grey, grey))
                picture.save(folder / "images" / file, quality=100)
                lines.append(f"{file},{name}")
            expected[name] = np.stack([np.full((84, 84, 3), g) for g in greys])
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder, expected


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
    check_pool(splits.validation, mini_imagenet.VALIDATION, expected)
    check_pool(splits.test, mini_imagenet.TEST, expected)
    check_task(splits.train, ways=5)


def test_mini_imagenet_small_is_the_default(mini_from_lists):
    splits = data.load("mini_imagenet", data_dir=mini_from_lists)
    assert splits.train.classes == mini_imagenet.TRAIN
    with pytest.raises(InputError, match="train_classes is 65.*from 1 to 64"):
        data.load("mini_imagenet", data_dir=mini_from_lists, train_classes=65)


@pytest.mark.parametrize("missing", ["train.csv", "val.csv", "test.csv", "images"])
def test_mini_imagenet_file_missing(mini_lists, tmp_path, missing):
    folder = altered(mini_lists[0], tmp_path / "raw")
    if missing == "images":
        shutil.rmtree(folder / missing)
    else:
        (folder / missing).unlink()
    with pytest.raises(InputError, match=f"has no {missing}.*What is needed there"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_column_missing(mini_lists, tmp_path):
    folder = altered(mini_lists[0], tmp_path / "raw")
    replace(folder / "val.csv", b"file,label\na.jpg,n01855672\n")
    with pytest.raises(InputError, match=r"val.csv has no column 'filename', but"):
        read("mini_imagenet", folder, tmp_path)
    replace(folder / "val.csv", b"")
    with pytest.raises(InputError, match=r"val.csv has no column 'filename'"):
        read("mini_imagenet", folder, tmp_path)
    replace(folder / "val.csv", b"filename,label\n\xff\xfe")
    with pytest.raises(InputError, match=r"val.csv can't be read as a table"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_listed_file_missing(mini_lists, tmp_path):
    folder = altered(mini_lists[0], tmp_path / "raw")
    first = (folder / "test.csv").read_text().splitlines()[1].split(",")[0]
    (folder / "images" / first).unlink()
    with pytest.raises(InputError, match=rf"line 2 of .*test.csv names {first}"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_older_split_is_refused(mini_lists, tmp_path):
    # Vinyals et al. assign some of the same 100 classes to other splits.
    folder = altered(mini_lists[0], tmp_path / "raw")
    train, val = ((folder / f"{s}.csv").read_text() for s in ("train", "val"))
    replace(folder / "train.csv", val.encode())
    replace(folder / "val.csv", train.encode())
    with pytest.raises(InputError, match=r"train.csv does not have the 64 .*Vinyals"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_class_missing_or_unknown(mini_lists, tmp_path):
    folder = altered(mini_lists[0], tmp_path / "raw")
    lines = (folder / "train.csv").read_text()
    replace(folder / "train.csv", lines.replace(",n03017168", ",n99999999").encode())
    with pytest.raises(InputError, match="lacks n03017168; it has n99999999"):
        read("mini_imagenet", folder, tmp_path)
    replace(folder / "train.csv", lines.replace(",n03017168", "").encode())
    with pytest.raises(InputError, match="lacks n03017168; it has None"):
        read("mini_imagenet", folder, tmp_path)


def test_mini_imagenet_undecodable_image(mini_lists, tmp_path):
    folder = altered(mini_lists[0], tmp_path / "raw")
    file = next((folder / "images").glob("n03017168*"))
    content = file.read_bytes()
    replace(file, content[: len(content) // 2])
    # Prepared, to see that TFDS hands the error on as it is.
    with pytest.raises(InputError, match=f"{file.name} is no image .*again"):
        prepare("mini_imagenet", folder, tmp_path / "prepared")


# miniImageNet: the cache.


@pytest.fixture(scope="module")
def mini_cache(tmp_path_factory):
    """Two or three pictures a class, the rows of a class in no order."""
    folder = tmp_path_factory.mktemp("mini_cache")
    rng = np.random.default_rng(0)
    expected = {}
    for split, classes in MINI_CLASSES.items():
        owner = np.concatenate([np.arange(len(classes)).repeat(2), [0]])
        rng.shuffle(owner)
        images = noise(rng, len(owner))
        rows = {
            name: [int(row) for row in np.flatnonzero(owner == number)[::-1]]
            for number, name in enumerate(classes)
        }
        expected |= {name: images[rows[name]] for name in classes}
        content = {"image_data": images, "class_dict": dict(sorted(rows.items()))}
        protocol = 2 if split == "train" else 4
        dump(content, folder / f"mini-imagenet-cache-{split}.pkl", protocol)
    return folder, expected


def test_mini_imagenet_from_cache(mini_cache, tmp_path):
    folder, expected = mini_cache
    prepare("mini_imagenet", folder, tmp_path)
    splits = data.load("mini_imagenet", data_dir=tmp_path, train_classes=64)
    check_pool(splits.train, MINI_CLASSES["train"], expected)
    check_pool(splits.validation, mini_imagenet.VALIDATION, expected)
    check_pool(splits.test, mini_imagenet.TEST, expected)
    check_task(splits.test, ways=5)


def test_mini_imagenet_cache_with_the_mirrors_name(mini_cache, tmp_path):
    folder = altered(mini_cache[0], tmp_path / "raw")
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


def class_missing(content):
    del content["class_dict"]["n03017168"]


def no_images(content):
    del content["image_data"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (float_images, "'image_data' of .* has dtype float32"),
        (small_images, r"pictures of shape \[32, 32, 3\]; expected uint8 and \[84"),
        (row_out_of_range, "n03017168 in 'class_dict' of .* lists picture 10000"),
        (negative_row, "n03017168 in 'class_dict' of .* lists picture -1"),
        (no_row, "n03017168 in 'class_dict' of .* is no list of whole numbers"),
        (rows_of_text, "n03017168 in 'class_dict' of .* is no list of whole numbers"),
        (class_missing, "'class_dict' of .* lacks n03017168"),
        (no_images, "does not hold 'image_data' and 'class_dict'"),
    ],
)
def test_mini_imagenet_bad_cache(mini_cache, tmp_path, damage, message):
    folder = altered(mini_cache[0], tmp_path / "raw")
    path = folder / "mini-imagenet-cache-train.pkl"
    content = pickle.loads(path.read_bytes())
    damage(content)
    replace(path, pickle.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        read("mini_imagenet", folder, tmp_path)
    assert str(path) in str(error.value)


def test_mini_imagenet_pickle_that_is_none(mini_cache, tmp_path):
    folder = altered(mini_cache[0], tmp_path / "raw")
    path = folder / "mini-imagenet-cache-train.pkl"
    content = path.read_bytes()
    replace(path, content[: len(content) // 2])
    with pytest.raises(InputError, match="cache-train.pkl was not read as a pickle"):
        read("mini_imagenet", folder, tmp_path)
    replace(path, pickle.dumps({"image_data": pathlib.Path("x"), "class_dict": {}}))
    with pytest.raises(InputError, match="asks for pathlib.* no part of an array"):
        read("mini_imagenet", folder, tmp_path)
    replace(path, pickle.dumps(3))
    with pytest.raises(InputError, match="does not hold 'image_data'"):
        read("mini_imagenet", folder, tmp_path)


def test_lists_of_classes():
    assert [len(c) for c in MINI_CLASSES.values()] == [64, 16, 20]
    assert len(mini_imagenet.TRAIN) == 12
    everything = sum(MINI_CLASSES.values(), ())
    assert len(set(everything)) == len(everything)
    assert all(len(name) == 9 and name[0] == "n" for name in everything)


def test_mini_imagenet_lists_are_the_releases(raw_dir):
    for split, classes in MINI_CLASSES.items():
        path = raw_dir / "miniimagenet" / f"{split}.csv"
        with path.open() as file:
            rows = list(csv.DictReader(file))
        files = mini_imagenet.read_list(path, classes, {r["filename"] for r in rows})
        assert {len(names) for names in files.values()} == {600}
        listed = list(dict.fromkeys(row["label"] for row in rows))
        if split == "train":
            assert sorted(classes) == sorted(listed)
        else:
            assert list(classes) == listed
