"""DermNet: a small tree of folders, prepared and loaded."""

import pathlib
import re

import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers.images import read_images
from mlti_jax.data.builders import dermnet
from mlti_jax.data.builders._dermnet_classes import (
    ADDITIONAL,
    OTHER_NAMES,
    TEST,
    TRAIN,
)
from mlti_jax.errors import InputError
from tests.support.raw_files import (
    check_pool,
    check_task,
    linked_copy,
    prepare,
    read,
)
from tests.support.releases import DERMNET_TRAIN, dermnet_path, write_dermnet


@pytest.fixture(scope="module")
def dermnet_raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dermnet")
    return folder, write_dermnet(folder)


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
    check_pool(splits.test, TEST, expected)
    assert splits.validation is None
    check_task(splits.train, ways=5)


def test_default_classes_and_counts_of_skipped_files(dermnet_prepared):
    data_dir = dermnet_prepared
    builder = prepared.open_prepared("dermnet", data_dir)
    assert data.load("dermnet", data_dir=data_dir).train.classes == TRAIN
    assert builder.info.metadata["skipped"] == {
        "not of a class of the paper": 2,
        "duplicate of another image of its class": 1,
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
        # The folder takes precedence; coarse folders are not classes.
        ("Warts/psoriasis-1.jpg", "Warts"),
        ("Vasculitis Photos/vasculitis-1.jpg", "Vasculitis"),
        ("Eczema Photos/07eczema.jpg", None),
    ],
)
def test_dermnet_class_of_a_file(path, name):
    assert dermnet._class_of(pathlib.Path(path), dermnet._known_names()) == name


def test_folder_without_images_of_the_classes(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="Eczema Hand and 198 more. Put the images"):
        read("dermnet", tmp_path / "empty", tmp_path)


def test_dermnet_bad_files(dermnet_raw, tmp_path):
    folder = linked_copy(dermnet_raw[0], tmp_path / "raw")
    bad = folder / TRAIN[0] / "9.jpg"
    bad.write_bytes(b"not an image")
    with pytest.raises(InputError, match=f"can't decode the image {bad}"):
        read("dermnet", folder, tmp_path)
    bad.unlink()
    bad.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=f"{bad} is a link to a file that"):
        read("dermnet", folder, tmp_path)


def test_reading_in_processes_gives_the_same_images(dermnet_raw, tmp_path):
    folder, expected = dermnet_raw
    name = TRAIN[0]
    files = {name: sorted(dermnet_path(folder, name, style) for style in (0, 1))}
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"not an image")
    files[name].insert(1, bad)
    errors = []
    read_all = read_images(files, 84, processes=2, on_damage=errors.append)
    images = [e["image"] for e in read_all]
    assert [type(error) for error in errors] == [InputError]
    assert f"can't decode the image {bad}" in str(errors[0])
    np.testing.assert_array_equal(images, expected[name])


def test_number_of_classes():
    assert (len(TRAIN), len(ADDITIONAL)) == (30, 120)
    assert len(TEST) == 53


def test_names_of_classes_are_unambiguous():
    everything = DERMNET_TRAIN + TEST
    known = dermnet._known_names()
    assert len(set(everything)) == 203
    for name in everything:
        without_parentheses = re.sub(r"\(.*\)", "", name)
        assert known[dermnet._normalize(name)] == name
        assert known[dermnet._normalize(without_parentheses)] == name
    for other, name in OTHER_NAMES.items():
        assert known[dermnet._normalize(other)] == name
    assert set(known.values()) == set(everything)
