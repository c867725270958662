"""Datasets prepared from a part of their release: what is kept, said and refused."""

import io
import json
import pickle
import re

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.configs import mini_imagenet as mini_config
from experiments.paper import TABLES
from experiments.tables.status import unprepared_datasets
from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data import prepare as prepare_module
from mlti_jax.data.builders import _dermnet_classes, mini_imagenet
from mlti_jax.data.builders._tiered_imagenet_classes import TEST as TIERED_TEST
from mlti_jax.data.builders._tiered_imagenet_classes import TRAIN as TIERED_TRAIN
from mlti_jax.data.describe import describe
from mlti_jax.errors import InputError
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._workdir import check_config
from tests.support.raw_files import check_pool, noise, png, prepare, read
from tests.support.releases import (
    MINI_CLASSES,
    dermnet_path,
    write_mini_lists,
    write_tiered_imagenet,
)

ADDITIONAL = mini_imagenet._ADDITIONAL
SMALL = (*mini_imagenet._TRAIN, *mini_imagenet._VALIDATION, *mini_imagenet._TEST)


def remove(folder, classes):
    for name in classes:
        for path in (folder / "images").glob(f"{name}*"):
            path.unlink()


def stored(name, data_dir):
    return prepared.open_prepared(name, data_dir).info.metadata


# --------------------------------------------------------------------- miniImageNet


@pytest.fixture(scope="module")
def mini_part(tmp_path_factory):
    """The 48 classes of miniImagenet-S, validation and test, prepared."""
    folder = tmp_path_factory.mktemp("mini_part")
    (folder / "raw").mkdir()
    expected = write_mini_lists(folder / "raw")
    remove(folder / "raw", ADDITIONAL)
    prepare("mini_imagenet", folder / "raw", folder / "data")
    return folder, expected


def test_classes_whose_files_are_there_are_prepared(mini_part):
    folder, expected = mini_part
    splits = data.load("mini_imagenet", data_dir=folder / "data")
    check_pool(splits.train, mini_imagenet._TRAIN, expected)
    check_pool(splits.validation, mini_imagenet._VALIDATION, expected)
    check_pool(splits.test, mini_imagenet._TEST, expected)
    found = "48 of 100 classes, 96 of 60,000 images"
    assert splits.part == {"prepared": found, "left_out": {}}
    assert f"part of the release: {found}" in splits.note
    metadata = stored("mini_imagenet", folder / "data")
    assert metadata["missing"] == {"train": list(ADDITIONAL)}
    assert not metadata["incomplete"]


def test_description_lists_the_missing_classes(mini_part):
    text = describe("mini_imagenet", mini_part[0] / "data")
    assert "a part of the release: 48 of 100 classes, 96 of 60,000 images" in text
    assert f"missing: 52 of 64 train classes: {', '.join(ADDITIONAL)}\n" in text
    assert "train: 24 samples of 12 classes" in text


def test_runs_that_need_a_missing_class_are_refused(mini_part):
    folder = mini_part[0] / "data"
    with pytest.raises(InputError) as error:
        data.load("mini_imagenet", data_dir=folder, train_classes=64)
    message = str(error.value)
    assert f"lacks 52 of 64 train classes: {', '.join(ADDITIONAL)}. " in message
    assert "(--config.dataset.train_classes=12)" in message
    assert "--config.dataset.missing_classes=skip" in message
    assert f"prepare --dataset=mini_imagenet --raw=DIR --data_dir={folder}" in message
    with pytest.raises(InputError, match=f"lacks 1 of 13 .*: {ADDITIONAL[0]}. This"):
        data.load("mini_imagenet", data_dir=folder, train_classes=13)
    assert len(
        data.load("mini_imagenet", data_dir=folder, train_classes=8).train.classes
    )


def test_missing_classes_can_be_skipped(mini_part):
    folder, expected = mini_part
    splits = data.load(
        "mini_imagenet",
        data_dir=folder / "data",
        train_classes=14,
        missing_classes="skip",
    )
    check_pool(splits.train, mini_imagenet._TRAIN, expected)
    assert splits.part["left_out"] == {"train": list(ADDITIONAL[:2])}
    assert f"2 of 14 train classes are missing and left out: {ADDITIONAL[0]}" in (
        splits.note
    )
    with pytest.raises(InputError, match="unknown missing_classes 'ignore'; choose"):
        data.load("mini_imagenet", data_dir=folder / "data", missing_classes="ignore")


def test_tables_skip_runs_that_need_a_missing_class(mini_part):
    def unprepared(table):
        runs = [cell.run for cell in TABLES[table].cells() if cell.is_applicable]
        mini = [run for run in runs if run.config == "mini_imagenet"]
        assert mini
        return [unprepared_datasets(run, mini_part[0] / "data") for run in mini]

    for reasons in unprepared("full_size"):
        assert reasons == ["mini_imagenet with 64 training classes"]
    assert not any(unprepared("extremely_limited"))


def test_results_are_marked(mini_part, tmp_path):
    splits = data.load("mini_imagenet", data_dir=mini_part[0] / "data")
    config = mini_config.get_config("learner=protonet")
    with config.unlocked():
        config.train.update({"steps": 1, "meta_batch_size": 2})
        config.task.queries = config.eval.queries = 1
        config.eval.update({"num_tasks": 2, "validation_tasks": 2, "every": 1})
        config.backbone.conv4.filters = 2
    experiment = build(config, mini_part[0] / "data")
    part = {"prepared": "48 of 100 classes, 96 of 60,000 images", "left_out": {}}
    assert experiment.data_facts()["part"] == part == splits.part
    train_and_evaluate(experiment, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["part"] == part
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["data"]["part"] == part
    # Work directories of earlier versions lack these fields.
    old = json.loads(json.dumps(saved))
    del old["sha256"], old["data"]["part"]
    del old["dataset"]["missing_classes"], old["dataset"]["min_images"]
    (tmp_path / "config.json").write_text(json.dumps(old))
    check_config(tmp_path, {k: v for k, v in saved.items() if k != "sha256"})
    old["dataset"]["train_classes"] = 8
    (tmp_path / "config.json").write_text(json.dumps(old))
    with pytest.raises(InputError, match="dataset.train_classes: 8 -> 12"):
        check_config(tmp_path, {k: v for k, v in saved.items() if k != "sha256"})


@pytest.fixture
def mini_raw(tmp_path):
    """Two images for each class of miniImagenet-S and validation, and four others."""
    folder = tmp_path / "raw"
    folder.mkdir()
    expected = write_mini_lists(folder)
    remove(folder, ADDITIONAL[4:])
    return folder, expected


def test_incomplete_classes_are_refused_without_partial(mini_raw, tmp_path):
    folder, expected = mini_raw
    label = mini_imagenet._TEST[3]
    file = min((folder / "images").glob(f"{label}*"))
    file.unlink()
    message = (
        rf"line \d+ of .*test.csv lists {file.name}, .*{label} is incomplete: 1 of"
    )
    with pytest.raises(InputError, match=rf"{message} its 2 .* add --partial"):
        read("mini_imagenet", folder, tmp_path)

    prepare("mini_imagenet", folder, tmp_path / "data", partial=True)
    metadata = stored("mini_imagenet", tmp_path / "data")
    assert metadata["incomplete"] == {label: [1, 2]}
    assert metadata["skipped"] == {"missing or damaged, left out by --partial": 1}
    assert metadata["missing"] == {"train": list(ADDITIONAL[4:])}
    splits = data.load("mini_imagenet", data_dir=tmp_path / "data", train_classes=16)
    check_pool(splits.train, MINI_CLASSES["train"][:16], expected)
    # The second image is the one left: the first has the lower gray value.
    check_pool(
        splits.test, mini_imagenet._TEST, {**expected, label: expected[label][1:]}
    )
    text = describe("mini_imagenet", tmp_path / "data")
    assert f"incomplete: class {label}, 1 of 2 images" in text
    assert "skipped: 1 (missing or damaged, left out by --partial)" in text


def test_damaged_files_are_refused_without_partial(mini_raw, tmp_path):
    folder, expected = mini_raw
    kept, lost = mini_imagenet._VALIDATION[:2]
    damaged = [max((folder / "images").glob(f"{kept}*"))]
    damaged += (folder / "images").glob(f"{lost}*")
    for file in damaged:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=f"can't decode .*{kept}.* add --partial"):
        read("mini_imagenet", folder, tmp_path)

    prepare("mini_imagenet", folder, tmp_path / "data", partial=True)
    metadata = stored("mini_imagenet", tmp_path / "data")
    assert metadata["incomplete"] == {kept: [1, 2]}
    assert metadata["missing"]["validation"] == [lost]
    assert metadata["skipped"] == {"missing or damaged, left out by --partial": 3}
    with pytest.raises(InputError, match=f"1 of 16 validation classes: {lost}. This"):
        data.load("mini_imagenet", data_dir=tmp_path / "data")
    splits = data.load(
        "mini_imagenet", data_dir=tmp_path / "data", missing_classes="skip"
    )
    names = [name for name in mini_imagenet._VALIDATION if name != lost]
    check_pool(splits.validation, names, {**expected, kept: expected[kept][:1]})


def test_splits_without_files_are_missing(mini_raw, tmp_path):
    folder, expected = mini_raw
    remove(folder, mini_imagenet._VALIDATION)
    prepare("mini_imagenet", folder, tmp_path / "data")
    with pytest.raises(InputError, match="16 of 16 validation classes: .* whole rel"):
        data.load("mini_imagenet", data_dir=tmp_path / "data")
    splits = data.load(
        "mini_imagenet", data_dir=tmp_path / "data", missing_classes="skip"
    )
    assert splits.validation is None
    remove(folder, mini_imagenet._TEST)
    prepare("mini_imagenet", folder, tmp_path / "data", overwrite=True)
    with pytest.raises(InputError, match="has no test class with 1 or more images"):
        data.load("mini_imagenet", data_dir=tmp_path / "data", missing_classes="skip")
    for file in (folder / "images").iterdir():
        file.unlink()
    with pytest.raises(InputError, match="has none of the files that train.csv, val"):
        read("mini_imagenet", folder, tmp_path)


def test_small_classes_can_be_left_out(mini_raw, tmp_path):
    folder, expected = mini_raw
    label = mini_imagenet._TRAIN[5]
    min((folder / "images").glob(f"{label}*")).unlink()
    prepare("mini_imagenet", folder, tmp_path / "data", partial=True)
    splits = data.load("mini_imagenet", data_dir=tmp_path / "data", min_images=2)
    names = [name for name in mini_imagenet._TRAIN if name != label]
    # The classes after the small one have their own images.
    check_pool(splits.train, names, expected)
    assert splits.part["left_out"] == {"train": [label]}
    assert f"12 train classes are smaller than 2 images and left out: {label}" in (
        splits.note
    )
    with pytest.raises(InputError, match="no train class with 3 or more images"):
        data.load("mini_imagenet", data_dir=tmp_path / "data", min_images=3)


def test_partial_is_refused_where_all_files_are_needed(tmp_path):
    with pytest.raises(InputError, match="--partial applies to datasets of images; po"):
        prepare("pose", tmp_path, tmp_path / "out", partial=True)


def test_the_command_says_what_is_missing(mini_raw, tmp_path, capsys):
    folder, _ = mini_raw
    flags.FLAGS.mark_as_parsed()
    out = tmp_path / "data"
    with flagsaver.flagsaver(
        dataset="mini_imagenet", raw=str(folder), data_dir=str(out), processes=1
    ):
        prepare_module.main()
    shown = capsys.readouterr()
    assert "a part of the release: 52 of 100 classes, 104 of 60,000" in shown.err
    assert "missing: 48 of 64 train classes: " in shown.err
    assert "missing: 48 of 64 train classes: " in shown.out


# -------------------------------------------------------------------------- DermNet


def write_atlas(folder, names, images=2):
    """Writes images for some classes; returns those of each class in order."""
    rng = np.random.default_rng(0)
    expected = {}
    for name in names:
        (folder / name).mkdir(parents=True)
        expected[name] = noise(rng, images)
        for number, image in enumerate(expected[name]):
            (folder / name / f"{number}.png").write_bytes(png(image))
    return expected


def test_images_of_several_classes_are_left_out(tmp_path):
    train, added, test = (
        getattr(_dermnet_classes, name)[:4] for name in ("TRAIN", "ADDITIONAL", "TEST")
    )
    folder = tmp_path / "raw"
    expected = write_atlas(folder, [*train, *added, *test])
    # In a class of DermNet-S and a test class; in a further one and a test class, and
    # twice in the latter; in two training classes; twice in one class.
    for source, copies in {
        train[0]: [f"{test[0]}/a"],
        added[1]: [f"{test[1]}/a", f"{test[1]}/b"],
        train[2]: [f"{added[2]}/a"],
        train[3]: [f"{train[3]}/a"],
    }.items():
        content = (folder / source / "0.png").read_bytes()
        for copy in copies:
            (folder / f"{copy}.png").write_bytes(content)
    prepare("dermnet", folder, tmp_path / "data")
    for source in (train[0], added[1], train[2]):
        expected[source] = expected[source][1:]
    metadata = stored("dermnet", tmp_path / "data")
    assert metadata["skipped"] == {
        "the same image occurs in other classes": 2 + 3 + 2,
        "duplicate of another image of its class": 1,
    }
    text = describe("dermnet", tmp_path / "data")
    assert (
        "3 images occur in two or more classes and are left out; 2 of them in a"
        " training and a test class (1 for the 30 training classes of DermNet-S)"
    ) in text
    assert "note: 12 classes have fewer images than the 30 of the paper's" in text
    splits = data.load("dermnet", data_dir=tmp_path / "data", train_classes=34)
    check_pool(splits.train, [*train, *added], expected)
    check_pool(splits.test, test, expected)
    assert splits.part["prepared"] == "12 of 203 classes"
    lacking = {split: len(names) for split, names in splits.part["left_out"].items()}
    assert lacking == {"train": 34 - 8, "test": 53 - 4}
    with pytest.raises(InputError, match="lacks 26 of 30 train .*; 49 of 53 test clas"):
        data.load("dermnet", data_dir=tmp_path / "data", missing_classes="refuse")


def test_damaged_files_of_dermnet(tmp_path):
    names = (*_dermnet_classes.TRAIN[:2], *_dermnet_classes.TEST[:2])
    expected = write_atlas(tmp_path / "raw", names)
    bad = dermnet_path(tmp_path / "raw", names[1], 0).with_name("9.png")
    bad.write_bytes(b"not an image")
    with pytest.raises(
        InputError, match=f"decode the image {re.escape(str(bad))}.*--p"
    ):
        read("dermnet", tmp_path / "raw", tmp_path)
    prepare("dermnet", tmp_path / "raw", tmp_path / "data", partial=True)
    splits = data.load("dermnet", data_dir=tmp_path / "data")
    check_pool(splits.train, names[:2], expected)
    assert stored("dermnet", tmp_path / "data")["skipped"] == {
        "missing or damaged, left out by --partial": 1
    }


def test_parts_of_two_datasets(mini_part, tmp_path):
    names = (*_dermnet_classes.TRAIN[:2], *_dermnet_classes.TEST[:6])
    write_atlas(tmp_path / "raw", names)
    (tmp_path / "raw" / names[-1] / "0.png").unlink()
    folder = mini_part[0] / "data"
    prepare("dermnet", tmp_path / "raw", folder)
    crossed = data.load(
        "mini_imagenet", data_dir=folder, test_on="dermnet", min_images=2
    )
    assert crossed.test.classes == names[2:-1]
    assert crossed.part["prepared"] == (
        "mini_imagenet 48 of 100 classes, 96 of 60,000 images; dermnet 8 of 203 classes"
    )
    assert {k: len(v) for k, v in crossed.part["left_out"].items()} == {"test": 53 - 5}


# ------------------------------------------------------------- tieredImageNet, ISIC


def test_part_of_tiered_imagenet(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    expected = write_tiered_imagenet(folder)
    for file in ("val_labels.pkl", "val_images_png.pkl"):
        (folder / file).unlink()
    # The first test class and the 36th training class have no images.
    for split, lost in (("test", TIERED_TEST[0]), ("train", TIERED_TRAIN[35])):
        paths = [folder / f"{split}_{kind}.pkl" for kind in ("labels", "images_png")]
        labels, images = (pickle.loads(path.read_bytes()) for path in paths)
        number = [name.endswith(lost) for name in labels["label_specific_str"]].index(1)
        kept = np.flatnonzero(labels["label_specific"] != number)
        labels["label_specific"] = labels["label_specific"][kept]
        images = [images[row] for row in kept]
        if split == "train":
            first = [n.endswith(TIERED_TRAIN[0]) for n in labels["label_specific_str"]]
            row = list(labels["label_specific"]).index(first.index(1))
            images[row] = images[row][: len(images[row]) // 2]
        for path, content in zip(paths, (labels, images), strict=True):
            path.write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=r"can't decode the image \d+ of .*--partial"):
        prepare("tiered_imagenet", folder, tmp_path / "data")
    prepare("tiered_imagenet", folder, tmp_path / "data", partial=True)
    metadata = stored("tiered_imagenet", tmp_path / "data")
    assert {split: len(names) for split, names in metadata["missing"].items()} == {
        "train": 1,
        "validation": 97,
        "test": 1,
    }
    before = len(expected[TIERED_TRAIN[0]])
    assert metadata["incomplete"] == {TIERED_TRAIN[0]: [before - 1, before]}
    with pytest.raises(InputError, match="97 of 97 validation .*; 1 of 160 test class"):
        data.load("tiered_imagenet", data_dir=tmp_path / "data")
    splits = data.load(
        "tiered_imagenet", data_dir=tmp_path / "data", missing_classes="skip"
    )
    expected[TIERED_TRAIN[0]] = expected[TIERED_TRAIN[0]][1:]
    check_pool(splits.train, TIERED_TRAIN[:35], expected)
    check_pool(splits.test, TIERED_TEST[1:], expected)
    assert splits.validation is None


def test_part_of_isic(tmp_path):
    from PIL import Image

    classes = ("NV", "MEL", "BKL", "BCC", "DF", "AKIEC", "VASC")
    images = tmp_path / "raw" / "ISIC2018_Task3_Training_Input"
    images.mkdir(parents=True)
    rows = ["image," + ",".join(classes)]
    for number in range(14):
        marks = ["1.0" if number % 7 == column else "0.0" for column in range(7)]
        rows.append(",".join([f"ISIC_{number}", *marks]))
        buffer = io.BytesIO()
        Image.new("RGB", (84, 84), (number,) * 3).save(buffer, "JPEG", quality=100)
        (images / f"ISIC_{number}.jpg").write_bytes(buffer.getvalue())
    table = tmp_path / "raw" / "ISIC2018_Task3_Training_GroundTruth.csv"
    table.write_text("\n".join(rows) + "\n")
    (images / "ISIC_0.jpg").unlink()  # NV
    (images / "ISIC_11.jpg").write_bytes(b"damaged")  # DF
    with pytest.raises(InputError, match="no image ISIC_0.jpg, .* add --partial"):
        read("isic", tmp_path / "raw", tmp_path)
    prepare("isic", tmp_path / "raw", tmp_path / "data", partial=True)
    splits = data.load("isic", data_dir=tmp_path / "data")
    assert splits.train.count.tolist() == [1, 2, 2, 2]
    assert splits.test.count.tolist() == [1, 2, 2]
    assert [int(row[0, 0, 0]) for row in np.asarray(splits.test.x)] == [4, 5, 12, 6, 13]
    assert splits.part == {"prepared": "12 of 10,015 images", "left_out": {}}
    incomplete = stored("isic", tmp_path / "data")["incomplete"]
    assert incomplete == {"NV": [1, 2], "DF": [1, 2]}
