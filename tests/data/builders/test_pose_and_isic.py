"""Pose and ISIC: from small files of their releases to pools."""

import io
import pickle
import zipfile

import jax
import numpy as np
import pytest
from PIL import Image

from mlti_jax import data
from mlti_jax.data.builders import isic, pose
from mlti_jax.errors import InputError
from tests.support.raw_files import dump, noise, prepare, read

# Pose.


def pose_arrays(objects: int, seed: int, pictures: int = 4):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (objects, pictures, 128 * 128), np.uint8)
    return x, rng.random((objects, pictures, 1), np.float32)


def write_pose(folder, train, test):
    folder.mkdir(parents=True, exist_ok=True)
    dump(train, folder / "train_data_ins.pkl")
    dump(test, folder / "val_data_ins.pkl")
    return folder


def test_pose(tmp_path):
    train, test = pose_arrays(6, seed=0), pose_arrays(3, seed=1)
    folder = write_pose(tmp_path / "raw", train, test)
    prepare("pose", folder, tmp_path / "data")
    splits = data.load("pose", data_dir=tmp_path / "data")
    assert splits.setting == "regression"
    assert splits.validation is None
    for pool, (x, y) in ((splits.train, train), (splits.test, test)):
        assert len(pool.domains) == len(x)
        for number in range(len(x)):
            rows = np.asarray(pool.index[number])
            got = np.asarray(pool.x)[rows]
            np.testing.assert_array_equal(got, x[number].reshape(-1, 128, 128, 1))
            np.testing.assert_allclose(np.asarray(pool.y)[rows], 10 * y[number])
    fewer = data.load("pose", data_dir=tmp_path / "data", train_classes=2)
    assert fewer.train.domains == ("train_00", "train_01")
    task = data.sample_task(fewer.train, jax.random.key(0), ways=1, shots=2, queries=2)
    assert task.support.x.shape == (2, 128, 128, 1)
    assert task.query.y.shape == (2, 1)
    with pytest.raises(InputError, match="train_classes is 7; .* 1 to 6"):
        data.load("pose", data_dir=tmp_path / "data", train_classes=7)


def test_pose_takes_the_last_of_several_angles(tmp_path):
    x, y = pose_arrays(2, seed=0)
    several = np.concatenate([np.full_like(y, 9), y], axis=-1)
    dump([x.tolist(), several], tmp_path / "a.pkl")
    images, turns = pose.read_pickle(tmp_path / "a.pkl")
    np.testing.assert_array_equal(images.reshape(x.shape), x)
    np.testing.assert_array_equal(turns, y[..., 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": 1}, "a dict; expected a pair"),
        ((np.zeros((2, 4, 100), np.uint8), np.zeros((2, 4, 1))), r"\[2, 4, 100\]"),
        (
            (np.zeros((2, 4, 16384), np.uint8), np.zeros((2, 3, 1))),
            r"\[2, 3, 1\] angle",
        ),
        ((np.zeros((2, 4, 16384)), np.zeros((2, 4, 1))), "dtype float64, from 0.0"),
        ((np.full((2, 4, 16384), 300), np.zeros((2, 4, 1))), "from 300 to 300"),
        ((np.zeros((2, 4, 16384), int), np.full((2, 4, 1), np.nan)), "finite numbers"),
        ((np.zeros((51, 1, 16384), int), np.zeros((51, 1, 1))), "51 objects"),
        (
            ([np.zeros((1, 16384)), np.zeros((2, 16384))], np.zeros(2)),
            "different sizes",
        ),
    ],
)
def test_pose_of_another_layout(tmp_path, content, message):
    folder = write_pose(tmp_path, content, pose_arrays(2, seed=0))
    with pytest.raises(InputError, match=f"train_data_ins.pkl holds.*{message}"):
        read("pose", folder, tmp_path)


def test_pose_refuses_other_pickles_and_names_missing_files(tmp_path):
    folder = write_pose(tmp_path, pose_arrays(2, seed=0), pose_arrays(2, seed=0))
    (folder / "val_data_ins.pkl").write_bytes(pickle.dumps(pytest.fixture))
    with pytest.raises(InputError, match="val_data_ins.pkl was not read as a pickle"):
        read("pose", folder, tmp_path)
    (folder / "val_data_ins.pkl").unlink()
    with pytest.raises(InputError, match="has no val_data_ins.pkl. .*Yin et al."):
        read("pose", folder, tmp_path)


# ISIC.

CLASSES = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")  # columns of the release


def jpeg(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_isic(folder, packed=True, number=3):
    """Pictures in random order of classes; gives what must come out."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(7).repeat(number))
    rows = ["image," + ",".join(CLASSES)]
    contents, expected = {}, {label: [] for label in CLASSES}
    pictures = noise(rng, len(labels))
    for i, (label, picture) in enumerate(zip(labels, pictures, strict=True)):
        name = f"ISIC_{i:07d}"
        marks = ["1.0" if column == label else "0.0" for column in range(7)]
        rows.append(",".join([name, *marks]))
        contents[name] = jpeg(picture)
        with Image.open(io.BytesIO(contents[name])) as image:
            expected[CLASSES[label]].append(np.asarray(image))
    (folder / f"{isic.LABELS}.csv").write_text("\n".join(rows) + "\n")
    if packed:
        with zipfile.ZipFile(folder / f"{isic.IMAGES}.zip", "w") as archive:
            for name, content in contents.items():
                archive.writestr(f"{isic.IMAGES}/{name}.jpg", content)
    else:
        (folder / isic.IMAGES).mkdir()
        for name, content in contents.items():
            (folder / isic.IMAGES / f"{name}.jpg").write_bytes(content)
    return folder, expected


@pytest.mark.parametrize("packed", [True, False])
def test_isic(tmp_path, packed):
    folder, expected = write_isic(tmp_path / "raw", packed)
    prepare("isic", folder, tmp_path / "data")
    splits = data.load("isic", data_dir=tmp_path / "data")
    assert splits.setting == "non_label_sharing"
    assert splits.validation is None
    assert splits.train.classes == ("NV", "MEL", "BKL", "BCC")
    assert set(splits.test.classes) == {"DF", "AKIEC", "VASC"}
    for pool in (splits.train, splits.test):
        for number, label in enumerate(pool.classes):
            rows = np.asarray(pool.index[number])
            np.testing.assert_array_equal(
                np.asarray(pool.x)[rows], np.stack(expected[label])
            )
    fewer = data.load("isic", data_dir=tmp_path / "data", train_classes=2)
    assert fewer.train.classes == ("NV", "MEL")


def test_isic_pictures_are_scaled(tmp_path):
    folder, _ = write_isic(tmp_path, packed=False)
    path = next((folder / isic.IMAGES).iterdir())
    Image.new("RGB", (600, 450), (10, 200, 30)).save(path, quality=100)
    examples = prepare("isic", folder, tmp_path / "data").as_data_source("train")
    every = [
        *examples,
        *prepare("isic", folder, tmp_path / "data").as_data_source("test"),
    ]
    plain = [e for e in every if e["name"].decode() == path.stem]
    assert plain[0]["image"].shape == (84, 84, 3)
    assert np.ptp(plain[0]["image"], axis=(0, 1)).max() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("VASC", "OTHER"), "has no column 'VASC', but"),
        (lambda text: text.replace("1.0", "0.0", 1), "line 2 of .* marks the classes"),
        (lambda text: text.replace("0.0", "1.0", 1), r"line 2 of .* marks .*, '"),
        (
            lambda text: text + "ISIC_9999999,1.0,0,0,0,0,0,0\n",
            "no picture ISIC_9999999",
        ),
        (lambda text: text[: len(text) // 3], "line .*marks|has no pictures of"),
        (lambda text: "", "has no column 'image'"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_isic_of_another_release(tmp_path, change, message, packed):
    folder, _ = write_isic(tmp_path, packed)
    path = folder / f"{isic.LABELS}.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message):
        read("isic", folder, tmp_path)


def test_isic_with_damaged_pictures(tmp_path):
    folder, _ = write_isic(tmp_path, packed=False)
    path = next((folder / isic.IMAGES).iterdir())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=rf"{path.name} in .* is no image"):
        read("isic", folder, tmp_path)
