"""Users' own data: files, automatic config values, the command, and real runs."""

import csv
import inspect
import json
import pathlib
import zipfile

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from experiments.configs import own_data, rainbow_mnist
from mlti_jax import data
from mlti_jax.data._own.dataset import load
from mlti_jax.errors import InputError
from mlti_jax.training import base_config, build, train_and_evaluate
from mlti_jax.training._config import (
    choose_backbone,
    choose_interpolation,
    choose_ways,
    fill_in,
)
from tests.support.cli import run_command

RNG = np.random.default_rng(0)
CONFIG = "--config=experiments/configs/own_data.py"


def classes(shape, number=6, dtype=np.float32, size=4):
    return data.from_arrays(
        {
            f"c{i}": RNG.integers(0, 9, (size, *shape)).astype(dtype)
            for i in range(number)
        },
        test=["c0", "c1"],
    )


def shared(shape, y=(0, 1, 2), number=4):
    size = 2 * len(y)
    return data.from_arrays(
        {
            f"t{i}": (RNG.normal(size=(size, *shape)), np.tile(y, 2))
            for i in range(number)
        }
    )


# ----------------------------------------------------------------------------- loading


def test_arrays_in_a_file(tmp_path):
    path = tmp_path / "wards.npz"
    x, y = RNG.normal(size=(24, 3)), np.tile(["cold", "ill"], 12)
    task = np.repeat([1, 2, 3], 8)
    np.savez(path, x=x, y=y, task=task)
    splits = data.load("own_data", path=str(path), test="2")
    assert splits.setting == "label_sharing"
    assert splits.test.domains == ("2",)
    assert splits.source == "wards.npz"
    np.testing.assert_array_equal(splits.test.x, x[8:16].astype(np.float32))
    scaled = data.load("own_data", path=path, standardise=True)
    np.testing.assert_allclose(scaled.train.x.mean(axis=0), 0, atol=1e-5)
    np.savez(path, x=x, y=np.arange(24) % 6)
    splits = data.load("own_data", path=path, test="0,5")
    assert splits.setting == "non_label_sharing"
    assert splits.test.classes == ("0", "5")


def test_path_determines_the_loader(tmp_path):
    table = tmp_path / "wards.csv"
    rows = [f"{i % 3},{i % 2},{i}.5" for i in range(12)]
    table.write_text("\n".join(["ward,ill,age", *rows]))
    splits = data.load("own_data", path=table, label="ill", task="ward")
    assert splits.setting == "label_sharing"
    for name in "abcd":
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(2):
            pixels = RNG.integers(0, 256, (9, 9, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    splits = data.load("own_data", path=tmp_path / "images", size=5)
    assert splits.train.x.shape == (4, 5, 5, 3)


def test_unusable_files(tmp_path):
    def message(error, **options):
        with pytest.raises(InputError, match=error):
            data.load("own_data", **options)

    message(r"own_data needs the path of your data \(dataset.path\)")
    message("nowhere does not exist", path="nowhere")
    (tmp_path / "data.txt").write_text("")
    message("data.txt ends in '.txt'; expected a folder", path=tmp_path / "data.txt")
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    message("label is missing; set it to the column of", path=tmp_path / "data.csv")
    message(
        "size is set, but .*csv file and has no", path=tmp_path / "data.csv", size=8
    )
    message("label is set, but .* is a folder", path=tmp_path, label="a")
    message("unknown option of dataset own_data 'color'", path=tmp_path, color=1)
    path = tmp_path / "data.npz"
    path.write_bytes(b"PK no archive")
    message("data.npz can't be read", path=path)
    x = np.ones((4, 2))
    np.savez(path, x=x, y=np.array([None] * 4, object))
    message(
        "array 'y' of .*data.npz has dtype object; expected numbers or text", path=path
    )
    np.savez(path, x=x)
    message("has no array 'y'", path=path)
    np.savez(path, x=x, y=[1, 2, 1])
    message(r"y of data.npz has shape \[3\], but x has 4", path=path)
    np.savez(path, x=x, y=[1, 2, 1, 2], task=np.ones((4, 2)))
    message(r"task of data.npz has shape \[4, 2\]", path=path)
    np.savez(path, x=x[:, 0], y=[1, 2, 1, 2])
    message(r"x of data.npz has shape \[4\]", path=path)


# ----------------------------------------------------------------------------- choices


def test_choices_depend_on_the_data():
    vectors, images = classes((3,)), classes((20, 16, 3), dtype=np.uint8)
    assert choose_backbone(vectors) == ("mlp", {})
    assert choose_backbone(images) == ("conv4", {})
    assert choose_backbone(classes((8, 9, 1))) == ("conv4", {"blocks": 3})
    assert choose_interpolation(vectors) == {"method": "mixup", "layers": (0, 1)}
    assert choose_interpolation(images) == {"method": "cutmix", "layers": (0,)}
    targets = shared((8, 8, 1), y=(0.1, 0.2, 0.3))
    assert choose_interpolation(targets) == {"method": "mixup", "layers": (0,)}
    text = {f"c{i}": {"ids": RNG.integers(0, 9, (4, 3))} for i in range(5)}
    for topic in text.values():
        topic["mask"] = topic["ids"] > 0
    assert choose_interpolation(data.from_arrays(text))["layers"] == (1,)
    assert choose_ways(targets) == 1
    assert choose_ways(shared((3,))) == 3
    assert choose_ways(vectors) == 2  # the number of test classes
    assert (
        choose_ways(data.from_arrays({str(i): np.ones((2, 2)) for i in range(99)})) == 5
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((28, 28), r"cannot choose a network for samples \[28, 28\].*x\[..., None\]"),
        ((3, 28, 28), r"channels first.*x.transpose\(0, 2, 3, 1\)"),
        ((1, 9, 3), "too small for a convolution"),
    ],
)
def test_shapes_without_a_network(shape, message):
    with pytest.raises(InputError, match=message):
        choose_backbone(classes(shape))


def test_fill_in_sets_only_empty_fields():
    splits = classes((8, 8, 1))

    def deepest_layer(config, splits):
        return 3

    config, words = fill_in(own_data.get_config(), splits, deepest_layer)
    assert config.task.ways == 2
    assert config.backbone.name == "conv4"
    assert config.backbone.conv4.blocks == 3
    assert (config.interpolation.method, config.interpolation.layers) == (
        "cutmix",
        (0,),
    )
    assert words == [
        "chosen from the data: task.ways=2, backbone.name=conv4, "
        "backbone.conv4.blocks=3, interpolation.method=cutmix, "
        "interpolation.layers=(0,)"
    ]
    given = own_data.get_config()
    given.task.ways = 3
    given.backbone.conv4.blocks = 2
    given.interpolation.update({"method": "mixup", "layers": (0, 1)})
    config, _ = fill_in(given, splits, deepest_layer)
    assert (config.task.ways, config.backbone.conv4.blocks) == (3, 2)
    assert (config.interpolation.method, config.interpolation.layers) == (
        "mixup",
        (0, 1),
    )
    assert given.backbone.name == ""  # the argument is not changed
    full = rainbow_mnist.get_config()
    assert fill_in(full, splits, deepest_layer) == (full, [])
    assert fill_in(full, splits, deepest_layer)[0] is full


def test_a_run_needs_test_tasks():
    splits = data.from_arrays({"a": np.zeros((9, 3)), "b": np.ones((9, 3))}, test=None)
    with pytest.raises(InputError, match="has no test tasks"):
        build(own_data.get_config("learner=protonet"), splits=splits)


def test_every_option_of_the_dataset_is_a_config_field():
    config = own_data.get_config()
    options = set(inspect.signature(load).parameters) - {"data_dir"}
    assert set(config.dataset) == options | {"name", "pool"}
    assert set(config) == set(base_config())
    for field, kind in (("validation", str), ("size", int), ("standardise", bool)):
        assert config.dataset.get_type(field) is kind
    assert config.task.get_type("ways") is int


# ------------------------------------------------------------------------ the command


SMALL = [
    *("--config.train.steps=2", "--config.train.meta_batch_size=2"),
    *("--config.task.shots=1", "--config.task.queries=1", "--config.eval.queries=1"),
    *("--config.eval.num_tasks=2", "--config.eval.validation_tasks=2"),
    *("--config.eval.tasks_per_pass=2", "--config.compilation_cache=off"),
    *("--config.backbone.mlp.hidden=(4,4)", "--config.backbone.conv4.filters=4"),
]


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    return run_command(monkeypatch, capsys, tmp_path)


@pytest.mark.slow
def test_the_command_on_a_table(cli, tmp_path):
    table = tmp_path / "wards.csv"
    rows = [
        f"ward {i % 5},{'ill' if i % 2 else 'well'},{i}.5,{i**3}" for i in range(40)
    ]
    table.write_text("\n".join(["ward,state,age,cells", *rows]))
    work = tmp_path / "run"
    arguments = [
        *(f"{CONFIG}:learner=protonet,strategy=mlti", f"--config.dataset.path={table}"),
        *("--config.dataset.label=state", "--config.dataset.task=ward"),
        *("--config.dataset.validation=ward 1", "--config.dataset.test=ward 0,ward 3"),
        *SMALL,
    ]
    code, printed = cli(*arguments, workdir=work)
    assert code == 0, printed.err
    assert "split by task: 2 train, 1 validation, 2 test" in printed.err
    assert "chosen from the data: task.ways=2, backbone.name=mlp" in printed.err
    result = json.loads((work / "results.json").read_text())
    assert (result["dataset"], result["source"]) == ("own_data", "wards.csv")
    assert (result["ways"], result["backbone"]) == (2, "mlp")
    assert (result["train_classes"], result["checkpoint"]) == (2, "best")
    saved = json.loads((work / "config.json").read_text())
    assert saved["backbone"]["name"] == "mlp"
    code, printed = cli(*arguments, workdir=work)
    assert code == 0
    assert "holds a finished run of this config" in printed.err
    code, printed = cli(*arguments, "--config.dataset.label=stat", workdir=work)
    assert code == 2
    assert "wards.csv has no column 'stat' (did you mean 'state'?)" in printed.err


def test_the_command_without_a_path(cli):
    code, printed = cli(CONFIG)
    assert code == 2
    assert "own_data needs the path of your data" in printed.err
    assert "Traceback" not in printed.err


# ------------------------------------------------------------------- real data, learned


def trained(splits, workdir, argument, steps, **fields):
    """The result of a run on these pools with the config `own_data`."""
    config = own_data.get_config(argument)
    config.train.update({"steps": steps, "log_every": steps})
    config.eval.update({"every": steps, "num_tasks": 50, "validation_tasks": 20})
    config.update_from_flattened_dict(fields)
    return train_and_evaluate(build(config, splits=splits), workdir)


@pytest.mark.slow
def test_digits_at_angles_are_learned(tmp_path):
    """Digits rotated by quarter turns; the last angle is the test task."""
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8)[..., None], digits.target
    tasks = {
        f"angle_{90 * turns}": (np.rot90(images, turns, (1, 2)), labels)
        for turns in range(4)
    }
    result = trained(
        data.from_arrays(tasks, test=["angle_270"]),
        tmp_path,
        "learner=protonet,strategy=mlti",
        steps=150,
        **{
            "backbone.conv4.filters": 16,
            "learner.protonet.norm": "batch",
            "task.queries": 5,
        },
    )
    assert (result["ways"], result["backbone"]) == (10, "conv4")
    assert result["mean"] > 0.7  # 0.6 after one step


@pytest.mark.slow
def test_waves_are_learned(tmp_path):
    """Sine waves of random phase: better than predicting their mean, 0."""
    tasks = {}
    for i in range(30):
        x = RNG.uniform(-3, 3, (40, 1))
        tasks[f"wave_{i}"] = x, np.sin(x[:, 0] + RNG.uniform(0, 2 * np.pi))
    splits = data.from_arrays(tasks, test=0.25)
    result = trained(
        splits,
        tmp_path,
        "learner=maml,strategy=vanilla,shots=10",
        steps=400,
        **{
            "backbone.mlp.hidden": (40, 40),
            "learner.maml.inner_learning_rate": 0.1,
            "learner.maml.adapted_layers": (0, 1, 2),
        },
    )
    assert (result["ways"], result["metric"]) == (1, "mse")
    variance = float(np.square(splits.test.y).mean())
    assert result["mean"] < 0.8 * variance  # twice the variance after one step


@pytest.fixture
def assays(raw_dir, tmp_path):
    """Rows of the Metabolism files in one table with a column of SMILES."""
    pytest.importorskip("rdkit")
    path = tmp_path / "assays.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["assay", "smiles", "active"])
        for name in ("cyp1a2_veith", "cyp2d6_veith", "cyp3a4_substrate_carbonmangels"):
            with open(raw_dir / "metabolism" / f"{name}.tab") as source:
                rows = list(csv.DictReader(source, delimiter="\t"))[:60]
            writer.writerows([name, row["Drug"], row["Y"]] for row in rows)
    return data.load(
        "own_data", path=path, label="active", task="assay", smiles="smiles"
    )


def test_metabolism_as_a_plain_table(assays):
    assert assays.setting == "label_sharing"
    assert len(assays.train.domains) == 2
    assert int(assays.train.count.sum() + assays.test.count.sum()) == 180
    assert 10 < np.asarray(assays.train.x).sum(axis=1).mean() < 100  # bits per molecule
    assert assays.inputs(["CC(=O)Oc1ccccc1C(=O)O"]).shape == (1, 1024)


@pytest.fixture
def lesions(raw_dir, tmp_path):
    """A few of ISIC's images of five kinds of lesions, in folders."""
    folder, root = raw_dir / "isic2018", tmp_path / "lesions"
    wanted = {name: [] for name in ("NV", "MEL", "BKL", "BCC", "DF")}
    with open(folder / "ISIC2018_Task3_Training_GroundTruth.csv") as file:
        for row in csv.DictReader(file):
            for name, found in wanted.items():
                if float(row[name]) == 1 and len(found) < 4:
                    found.append(row["image"])
    with zipfile.ZipFile(folder / "ISIC2018_Task3_Training_Input.zip") as archive:
        members = {
            pathlib.PurePath(member).stem: member for member in archive.namelist()
        }
        for name, images in wanted.items():
            (root / name).mkdir(parents=True)
            for image in images:
                content = archive.read(members[image])
                (root / name / f"{image}.jpg").write_bytes(content)
    return root


def test_isic_as_class_folders(lesions):
    splits = data.from_folder(lesions, test=["DF", "BCC"])
    assert splits.train.x.shape == (12, 84, 84, 3)
    assert splits.train.classes == ("BKL", "MEL", "NV")
    first = min((lesions / "BCC").iterdir())
    np.testing.assert_array_equal(splits.test.x[0], np.asarray(Image.open(first)))


@pytest.mark.slow
def test_real_files_train_and_evaluate(assays, lesions, tmp_path):
    argument = "learner=protonet,strategy=mlti,shots=1"
    small = {"task.queries": 2, "eval.queries": 2, "backbone.conv4.filters": 4}
    result = trained(assays, tmp_path / "assays", argument, 2, **small)
    assert (result["ways"], result["backbone"]) == (2, "mlp")
    splits = data.from_folder(lesions, size=16, test=["DF", "BCC"])
    result = trained(splits, tmp_path / "images", argument, 2, **small)
    assert (result["ways"], result["backbone"]) == (2, "conv4")
