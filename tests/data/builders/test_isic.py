"""ISIC: small files in its layout, prepared and loaded."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from mlti_jax import data
from mlti_jax.data.builders import isic
from mlti_jax.errors import InputError
from tests.support.raw_files import noise, prepare, read

CLASSES = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")  # columns of the release


def jpeg(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_isic(folder, packed=True, number=3):
    """Writes images in random order of classes; returns the images of each class."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(7).repeat(number))
    rows = ["image," + ",".join(CLASSES)]
    contents, expected = {}, {label: [] for label in CLASSES}
    images = noise(rng, len(labels))
    for i, (label, pixels) in enumerate(zip(labels, images, strict=True)):
        name = f"ISIC_{i:07d}"
        marks = ["1.0" if column == label else "0.0" for column in range(7)]
        rows.append(",".join([name, *marks]))
        contents[name] = jpeg(pixels)
        with Image.open(io.BytesIO(contents[name])) as image:
            expected[CLASSES[label]].append(np.asarray(image))
    (folder / f"{isic._LABELS}.csv").write_text("\n".join(rows) + "\n")
    if packed:
        with zipfile.ZipFile(folder / f"{isic._IMAGES}.zip", "w") as archive:
            for name, content in contents.items():
                archive.writestr(f"{isic._IMAGES}/{name}.jpg", content)
    else:
        (folder / isic._IMAGES).mkdir()
        for name, content in contents.items():
            (folder / isic._IMAGES / f"{name}.jpg").write_bytes(content)
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


def test_images_are_resized(tmp_path):
    folder, _ = write_isic(tmp_path, packed=False)
    path = next((folder / isic._IMAGES).iterdir())
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
        (lambda text: text.replace("VASC", "OTHER"), "has no column 'VASC', found"),
        (lambda text: text.replace("1.0", "0.0", 1), "line 2 of .* marks the classes"),
        (lambda text: text.replace("0.0", "1.0", 1), r"line 2 of .* marks .*, '"),
        (
            lambda text: text + "ISIC_9999999,1.0,0,0,0,0,0,0\n",
            "no image ISIC_9999999",
        ),
        (lambda text: text[: len(text) // 3], "line .*marks|has no images of"),
        (lambda text: "", "has no column 'image'"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_other_releases(tmp_path, change, message, packed):
    folder, _ = write_isic(tmp_path, packed)
    path = folder / f"{isic._LABELS}.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message):
        read("isic", folder, tmp_path)


def test_damaged_images(tmp_path):
    folder, _ = write_isic(tmp_path, packed=False)
    path = next((folder / isic._IMAGES).iterdir())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=f"can't decode the image {path.name} in"):
        read("isic", folder, tmp_path)
