"""miniImageNet, tieredImageNet, DermNet: from small files of each release to pools."""

import collections
import csv
import io
import os
import pathlib
import pickle
import re
import shutil

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from mlti_jax import data
from mlti_jax.data import image_folders, prepared
from mlti_jax.data.builders import dermnet, mini_imagenet, tiered_imagenet
from mlti_jax.errors import InputError

MINI_CLASSES = {
    "train": mini_imagenet.TRAIN + mini_imagenet.ADDITIONAL,
    "val": mini_imagenet.VALIDATION,
    "test": mini_imagenet.TEST,
}
TIERED_CLASSES = {
    "train": tiered_imagenet.TRAIN,
    "val": tiered_imagenet.VALIDATION,
    "test": tiered_imagenet.TEST,
}
DERMNET_TRAIN = dermnet.TRAIN + dermnet.ADDITIONAL


def noise(rng, number: int) -> np.ndarray:
    """Pictures of large random squares, uint8 `[number, 84, 84, 3]`."""
    small = rng.integers(0, 256, (number, 4, 4, 3), np.uint8)
    return small.repeat(21, axis=1).repeat(21, axis=2)


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def dump(content, path: pathlib.Path, protocol: int = 4) -> None:
    with path.open("wb") as file:
        pickle.dump(content, file, protocol)


def prepare(name: str, folder: pathlib.Path, data_dir: pathlib.Path):
    builder = prepared.builder(name, data_dir)
    config = tfds.download.DownloadConfig(manual_dir=folder)
    builder.download_and_prepare(download_config=config)
    return builder


def read(name: str, folder: pathlib.Path, data_dir: pathlib.Path) -> None:
    """Reads everything and writes nothing, which is faster than to prepare."""
    for examples in prepared.builder(name, data_dir).read_raw(folder).values():
        collections.deque(examples, maxlen=0)


def altered(folder: pathlib.Path, copy: pathlib.Path) -> pathlib.Path:
    """A folder with links to the same files, to be replaced one by one."""
    shutil.copytree(folder, copy, copy_function=os.symlink)
    return copy


def replace(path: pathlib.Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def check_pool(pool, classes, expected: dict[str, np.ndarray]) -> None:
    """The classes in order, and of each the very pictures in order."""
    assert pool.classes == tuple(classes)
    x, index, count = (np.asarray(part) for part in (pool.x, pool.index, pool.count))
    assert len(x) == sum(len(expected[name]) for name in classes)
    for number, name in enumerate(classes):
        rows = index[number, : count[number]]
        np.testing.assert_array_equal(x[rows], expected[name], err_msg=name)


def check_task(pool, ways: int) -> None:
    data.check_episode(pool, ways=ways, shots=1, queries=1)
    task = data.sample_task(pool, jax.random.key(0), ways=ways, shots=1, queries=1)
    assert task.support.x.shape == (ways, 84, 84, 3)
    assert task.query.y.shape == (ways, ways)
    assert 0 <= float(task.support.x.min()) <= float(task.support.x.max()) <= 1


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


# tieredImageNet.


def words(wordnet_id: str) -> str:
    """A name in words; two ids share one, as ImageNet's two cranes do."""
    return "crane" if wordnet_id in ("n02012849", "n03126707") else f"a, {wordnet_id}"


@pytest.fixture(scope="module")
def tiered_raw(tmp_path_factory):
    """One or two pictures a class; classes numbered in an order of the release's own.

    The arrays of bytes are `[n, 1]` in one split and `[n]` in the others, as OpenCV
    has written them at one time and at another.
    """
    folder = tmp_path_factory.mktemp("tiered")
    rng = np.random.default_rng(0)
    ids = sorted(sum(TIERED_CLASSES.values(), ()) + ("n03126707",))
    (folder / "synsets.txt").write_text("".join(f"{i}\n" for i in ids))
    (folder / "class_names.txt").write_text("".join(f"{words(i)}\n" for i in ids))
    expected = {}
    for split, classes in TIERED_CLASSES.items():
        order = rng.permutation(classes)
        labels = np.concatenate([np.arange(len(classes)), np.arange(20)])
        rng.shuffle(labels)
        images = noise(rng, len(labels))
        for number, name in enumerate(order):
            expected[str(name)] = images[labels == number]
        shape = (-1, 1) if split == "train" else (-1,)
        dump(
            [np.frombuffer(png(image), np.uint8).reshape(shape) for image in images],
            folder / f"{split}_images_png.pkl",
        )
        content = {
            "label_specific": labels.astype(np.int32),
            "label_general": np.zeros(len(labels), np.int32),
            "label_specific_str": [words(str(name)) for name in order],
            "label_general_str": ["thing"],
        }
        dump(content, folder / f"{split}_labels.pkl", 2)
    return folder, expected


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
    check_pool(splits.train, tiered_imagenet.TRAIN[:train_classes], expected)
    check_pool(splits.validation, tiered_imagenet.VALIDATION, expected)
    check_pool(splits.test, tiered_imagenet.TEST, expected)
    task = data.sample_batch(splits.test, jax.random.key(0), 4)
    assert task.x.shape == (4, 84, 84, 3)


def test_tiered_imagenet_small_is_the_default(tiered_prepared):
    splits = data.load("tiered_imagenet", data_dir=tiered_prepared)
    assert splits.train.classes == tiered_imagenet.TRAIN[:35]


@pytest.mark.parametrize(
    "missing",
    ["synsets.txt", "class_names.txt", "train_images_png.pkl", "val_labels.pkl"],
)
def test_tiered_imagenet_file_missing(tiered_raw, tmp_path, missing):
    folder = altered(tiered_raw[0], tmp_path / "raw")
    path = folder / missing
    path.rename(folder / f"tiered-imagenet-{missing}")
    prepared.builder("tiered_imagenet", tmp_path).read_raw(folder)
    (folder / f"tiered-imagenet-{missing}").unlink()
    with pytest.raises(InputError, match=f"has no {missing}.*What is needed there"):
        read("tiered_imagenet", folder, tmp_path)


def unknown_name(content):
    content["label_specific_str"][3] = "unicorn"


def name_twice(content):
    content["label_specific_str"][3] = content["label_specific_str"][4]


def label_out_of_range(content):
    content["label_specific"][7] = 99


def negative_label(content):
    content["label_specific"][7] = -1


def class_without_images(content):
    labels = content["label_specific"]
    labels[labels == labels[0]] = labels[1]


def float_labels(content):
    content["label_specific"] = content["label_specific"] / 2


def no_names(content):
    del content["label_specific_str"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unknown_name, "has the classes unicorn, which class_names.txt"),
        (name_twice, "has a name twice"),
        (label_out_of_range, "picture 7 of .* is of class 99, but there are 97 names"),
        (negative_label, "picture 7 of .* is of class -1"),
        (class_without_images, "does not have the 97 classes of its split: it lacks n"),
        (float_labels, "'label_specific' of .* has dtype float64"),
        (no_names, "does not hold 'label_specific' and 'label_specific_str'"),
    ],
)
def test_tiered_imagenet_bad_labels(tiered_raw, tmp_path, damage, message):
    folder = altered(tiered_raw[0], tmp_path / "raw")
    path = folder / "val_labels.pkl"
    content = pickle.loads(path.read_bytes())
    damage(content)
    replace(path, pickle.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        read("tiered_imagenet", folder, tmp_path)
    assert str(path) in str(error.value)


def test_tiered_imagenet_names_of_another_release(tiered_raw, tmp_path):
    folder = altered(tiered_raw[0], tmp_path / "raw")
    lines = (folder / "synsets.txt").read_text().splitlines()
    replace(folder / "synsets.txt", "\n".join(lines[1:]).encode())
    with pytest.raises(InputError, match="class_names.txt has 609 lines and .* 608"):
        read("tiered_imagenet", folder, tmp_path)
    replace(folder / "synsets.txt", b"\xff")
    with pytest.raises(InputError, match="synsets.txt can't be read"):
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
        (large_image, "picture 5 of .* is 84x96; expected 84x84. .* another release"),
        (damaged_image, "picture 5 of .* is no image"),
        (decoded_image, "picture 5 of .* is no uint8 array"),
        (image_missing, "holds a list of 116; expected a list of 117 pictures"),
    ],
)
def test_tiered_imagenet_bad_images(tiered_raw, tmp_path, damage, message):
    folder = altered(tiered_raw[0], tmp_path / "raw")
    path = folder / "val_images_png.pkl"
    images = pickle.loads(path.read_bytes())
    damage(images)
    replace(path, pickle.dumps(images))
    examples = prepared.builder("tiered_imagenet", tmp_path).read_raw(folder)
    with pytest.raises(InputError, match=message) as error:
        list(examples["validation"])
    assert str(path) in str(error.value)


def test_tiered_imagenet_pickle_that_is_none(tiered_raw, tmp_path):
    folder = altered(tiered_raw[0], tmp_path / "raw")
    builder = prepared.builder("tiered_imagenet", tmp_path)
    path = folder / "test_images_png.pkl"
    content = path.read_bytes()
    replace(path, content[: len(content) // 2])
    with pytest.raises(InputError, match="test_images_png.pkl was not read as a"):
        list(builder.read_raw(folder)["test"])
    replace(path, pickle.dumps({"images": 1}))
    with pytest.raises(InputError, match="holds a dict of 1; expected a list of 180"):
        list(builder.read_raw(folder)["test"])
    replace(folder / "test_labels.pkl", pickle.dumps(print))
    with pytest.raises(InputError, match="test_labels.pkl was .* asks for builtins"):
        builder.read_raw(folder)


# DermNet.


def dermnet_path(folder: pathlib.Path, name: str, style: int) -> pathlib.Path:
    """A place for the first picture of a class, in one of the ways to name it."""
    slug = "-".join(name.replace("(", "").replace(")", "").split())
    return (
        folder / name / "1.png",
        folder / "atlas" / slug / "photo.PNG",
        folder / "train" / "Some Photos" / f"{slug.lower()}-001.png",
        folder / "test" / "Some Photos" / f"{slug.upper()}-2.png",
    )[style]


@pytest.fixture(scope="module")
def dermnet_raw(tmp_path_factory):
    """Two pictures a class, named in four ways, and files to be left out."""
    folder = tmp_path_factory.mktemp("dermnet")
    rng = np.random.default_rng(0)
    expected = {}
    for number, name in enumerate(DERMNET_TRAIN + dermnet.TEST):
        images = noise(rng, 2)
        files = [dermnet_path(folder, name, (number + i) % 4) for i in range(2)]
        for file, image in zip(files, images, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(image))
        in_order = sorted(range(2), key=files.__getitem__)
        expected[name] = images[in_order]
    shutil.copy(files[0], files[0].with_name(f"{files[0].stem}9.png"))
    (folder / "Unheard Of").mkdir()
    (folder / "Unheard Of" / "07RosaceaK0216.png").write_bytes(png(images[0]))
    (folder / "Unheard Of" / "unheard-1.jpg").write_bytes(b"never read")
    (folder / dermnet.TRAIN[0] / "Thumbs.db").write_bytes(b"no image")
    return folder, expected


@pytest.fixture(scope="module")
def dermnet_prepared(dermnet_raw, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("dermnet_prepared")
    return data_dir, prepare("dermnet", dermnet_raw[0], data_dir)


@pytest.mark.parametrize("train_classes", [30, 150])
def test_dermnet(dermnet_raw, dermnet_prepared, train_classes):
    splits = data.load(
        "dermnet", data_dir=dermnet_prepared[0], train_classes=train_classes
    )
    _, expected = dermnet_raw
    check_pool(splits.train, DERMNET_TRAIN[:train_classes], expected)
    check_pool(splits.test, dermnet.TEST, expected)
    assert splits.validation is None
    check_task(splits.train, ways=5)


def test_dermnet_small_is_the_default_and_skipped_files_are_counted(dermnet_prepared):
    data_dir, builder = dermnet_prepared
    assert data.load("dermnet", data_dir=data_dir).train.classes == dermnet.TRAIN
    assert builder.info.metadata["skipped"] == {
        "of no class of the paper": 2,
        "copy of another picture of its class": 1,
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Tinea (Ringworm) Versicolor/a.jpg", "Tinea (Ringworm) Versicolor"),
        ("x/tinea-ringworm-versicolor-12.jpg", "Tinea (Ringworm) Versicolor"),
        ("x/tinea-versicolor-12.jpg", "Tinea (Ringworm) Versicolor"),
        ("x/perleche-3.jpg", "Perlèche"),
        ("Perle\u0300che/a.jpg", "Perlèche"),
        ("x/Herpes-Type-1-Primary-10.jpg", "Herpes Type 1 Primary"),
        ("x/actinic-keratosis-5FU-10.jpg", "Actinic Keratosis 5 FU"),
        ("x/AIDS-4.jpg", "AIDS (Acquired Immunodeficiency Syndrome)"),
        ("x/ctcl-4.jpg", "CTCL Cutaneous T-Cell Lymphoma"),
        ("x/warts_cryotherapy_1.jpg", "Warts Cryotherapy"),
        # The folder counts first, and coarse folders are no classes.
        ("Warts/psoriasis-1.jpg", "Warts"),
        ("Vasculitis Photos/vasculitis-1.jpg", "Vasculitis"),
        ("Eczema Photos/07eczema.jpg", None),
    ],
)
def test_dermnet_class_of_a_file(path, name):
    assert dermnet.class_of(pathlib.Path(path), dermnet.spellings()) == name


def test_dermnet_classes_missing(dermnet_raw, tmp_path):
    folder = altered(dermnet_raw[0], tmp_path / "raw")
    for path in folder.rglob("*"):
        if path.is_symlink() and "scarlet" in str(path).lower():
            path.unlink()
    with pytest.raises(InputError, match="no picture of 1 of .* 203 .*: Scarlet Fever"):
        read("dermnet", folder, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="Eczema Hand and 198 more. Put the pictures"):
        read("dermnet", tmp_path / "empty", tmp_path)


def test_dermnet_bad_files(dermnet_raw, tmp_path):
    folder = altered(dermnet_raw[0], tmp_path / "raw")
    bad = folder / dermnet.TRAIN[0] / "9.jpg"
    bad.write_bytes(b"no image")
    with pytest.raises(InputError, match=rf"{bad} is no image"):
        read("dermnet", folder, tmp_path)
    bad.unlink()
    bad.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=rf"{bad} can't be read"):
        read("dermnet", folder, tmp_path)


def test_workers_read_the_same(dermnet_raw, tiered_raw, tmp_path):
    folder, expected = dermnet_raw
    name = dermnet.TRAIN[0]
    files = {name: sorted(dermnet_path(folder, name, style) for style in (0, 1))}
    images = [e["image"] for e in image_folders.examples(files, 84, processes=2)]
    np.testing.assert_array_equal(images, expected[name])

    folder, expected = tiered_raw
    builder = prepared.builder("tiered_imagenet", tmp_path)
    builder.processes = 2
    examples = list(builder.read_raw(folder)["validation"])
    of_all = [expected[name] for name in tiered_imagenet.VALIDATION]
    np.testing.assert_array_equal(
        [e["image"] for e in examples], np.concatenate(of_all)
    )


# The lists.


def test_lists_of_classes():
    assert [len(c) for c in MINI_CLASSES.values()] == [64, 16, 20]
    assert [len(c) for c in TIERED_CLASSES.values()] == [351, 97, 160]
    assert (len(dermnet.TRAIN), len(dermnet.ADDITIONAL)) == (30, 120)
    assert len(dermnet.TEST) == 53
    for classes in (*MINI_CLASSES.values(), *TIERED_CLASSES.values()):
        assert all(len(name) == 9 and name[0] == "n" for name in classes)
    for splits in (MINI_CLASSES, TIERED_CLASSES):
        everything = sum(splits.values(), ())
        assert len(set(everything)) == len(everything)


def test_no_two_classes_of_dermnet_have_the_same_spelling():
    everything = DERMNET_TRAIN + dermnet.TEST
    known = dermnet.spellings()
    assert len(set(everything)) == 203
    for name in everything:
        without_brackets = re.sub(r"\(.*\)", "", name)
        assert known[dermnet.normalise(name)] == name
        assert known[dermnet.normalise(without_brackets)] == name
    for other, name in dermnet.OTHER_NAMES.items():
        assert known[dermnet.normalise(other)] == name
    assert set(known.values()) == set(everything)


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


def test_tiered_imagenet_lists_are_the_releases(raw_dir):
    for split, classes in TIERED_CLASSES.items():
        with (raw_dir / "tieredimagenet" / f"{split}.csv").open() as file:
            assert [row[0] for row in csv.reader(file) if row] == list(classes)
