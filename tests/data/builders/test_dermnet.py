"""DermNet: from a small tree of folders to pools."""

import pathlib
import re
import shutil

import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import image_folders
from mlti_jax.data.builders import dermnet
from mlti_jax.errors import InputError
from tests.support.raw_files import (
    altered,
    check_pool,
    check_task,
    noise,
    png,
    prepare,
    read,
)

DERMNET_TRAIN = dermnet.TRAIN + dermnet.ADDITIONAL


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
    prepare("dermnet", dermnet_raw[0], data_dir)
    return data_dir


@pytest.mark.parametrize("train_classes", [30, 150])
def test_dermnet(dermnet_raw, dermnet_prepared, train_classes):
    splits = data.load(
        "dermnet", data_dir=dermnet_prepared, train_classes=train_classes
    )
    _, expected = dermnet_raw
    check_pool(splits.train, DERMNET_TRAIN[:train_classes], expected)
    check_pool(splits.test, dermnet.TEST, expected)
    assert splits.validation is None
    check_task(splits.train, ways=5)


def test_dermnet_small_is_the_default_and_skipped_files_are_counted(dermnet_prepared):
    data_dir = dermnet_prepared
    builder = prepared.open_prepared("dermnet", data_dir)
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


def test_workers_read_the_same(dermnet_raw):
    folder, expected = dermnet_raw
    name = dermnet.TRAIN[0]
    files = {name: sorted(dermnet_path(folder, name, style) for style in (0, 1))}
    images = [e["image"] for e in image_folders.examples(files, 84, processes=2)]
    np.testing.assert_array_equal(images, expected[name])


def test_lists_of_classes():
    assert (len(dermnet.TRAIN), len(dermnet.ADDITIONAL)) == (30, 120)
    assert len(dermnet.TEST) == 53


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
