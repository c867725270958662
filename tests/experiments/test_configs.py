"""Configs of the paper's experiments: their values, and short runs of them."""

import dataclasses
import importlib

import pytest

from mlti_jax import data
from mlti_jax.data import _registry
from mlti_jax.data._registry import DATASETS
from mlti_jax.errors import InputError
from mlti_jax.training import build, train_and_evaluate
from tests.support.raw_files import prepare
from tests.support.releases import (
    cell_counts,
    cell_table,
    write_cells,
    write_dermnet,
    write_mini_lists,
    write_tiered_imagenet,
)

# Tables 6 and 7 of the paper: alpha of MAML and of ProtoNet, tasks per step, training
# queries, training steps; from its text: ways, shots, queries at test. Learning rates
# are 0.01 and 0.001 and inner steps 5 in all of them.
TABLE = {
    "pose": (0.1, None, 10, 15, 10_000, 1, 15, 15),
    "rainbow_mnist": (2.0, 2.0, 4, 1, 30_000, 10, 1, 15),
    "nci": (2.0, 0.5, 4, 10, 10_000, 2, 5, 10),
    "metabolism": (0.5, 0.5, 4, 10, 10_000, 2, 5, 10),
    "mini_imagenet": (2.0, 2.0, 4, 15, 50_000, 5, 1, 15),
    "isic": (2.0, 2.0, 4, 15, 50_000, 2, 1, None),
    "dermnet": (2.0, 0.5, 4, 15, 50_000, 5, 1, None),
    "tabula_muris": (2.0, 0.5, 4, 15, 10_000, 5, 1, 15),
    "tiered_imagenet": (2.0, 2.0, 4, 15, 50_000, 5, 1, 15),
    "huffpost": (2.0, 2.0, 1, 5, 10_000, 5, 1, 5),
}
LAYERS = {"pose": (0, 1, 2, 3, 4), "huffpost": (1,)}
IMAGES = ("mini_imagenet", "tiered_imagenet", "isic", "dermnet")


def get_config(name, argument=""):
    return importlib.import_module(f"experiments.configs.{name}").get_config(argument)


def test_every_dataset_has_a_config():
    assert set(TABLE) | {"fsmol", "own_data"} == set(DATASETS)
    for name in DATASETS:
        assert get_config(name).dataset.name == name


@pytest.mark.parametrize("name", TABLE)
def test_values_are_the_papers(name):
    maml, protonet, tasks, queries, steps, ways, shots, test_queries = TABLE[name]
    for learner, alpha in (("maml", maml), ("protonet", protonet)):
        if alpha is None:
            continue
        config = get_config(name, f"learner={learner}")
        assert config.learner.name == learner
        assert config.strategy.mlti.alpha == alpha
        assert config.strategy.cross.alpha == alpha
        assert config.train.meta_batch_size == tasks
        assert config.task.queries == queries
        assert config.train.steps == steps
        assert (config.task.ways, config.task.shots) == (ways, shots)
        assert config.eval.queries == test_queries
        assert config.train.learning_rate == 0.001
        assert config.learner.maml.inner_learning_rate == 0.01
        assert config.learner.maml.steps == 5
        assert config.eval.num_tasks == 600
        assert get_config(name, "shots=5").task.shots == 5


@pytest.mark.parametrize("name", TABLE)
def test_fields_can_be_set_as_the_command_line_does(name):
    config = get_config(name)
    for section, field in (
        ("eval", "queries"),
        ("task", "queries"),
        ("dataset", "train_classes"),
    ):
        assert config[section].get_type(field) is int
        config[section][field] = 3
        assert config[section][field] == 3


def test_interpolation_is_the_papers():
    for name in TABLE:
        config = get_config(name)
        cutmix = name in (*IMAGES, "rainbow_mnist")
        assert config.interpolation.method == ("cutmix" if cutmix else "mixup")
        layers = (0,) if cutmix else LAYERS.get(name, (0, 1))
        assert config.interpolation.layers == layers
        sets = "query" if name in IMAGES else "both"
        assert config.strategy.mlti.within == sets
    pose = get_config("pose")
    assert (pose.strategy.mlti.alpha_intra, pose.strategy.intra.alpha) == (0.5, 0.5)
    cells = get_config("tabula_muris").backbone.mlp
    assert (cells.hidden, cells.slope, cells.dropout) == ((64, 64), 0.0, 0.2)


def test_encoders_of_huffpost():
    albert = get_config("huffpost", "encoder=albert")
    assert albert.train.learning_rate == 2e-5
    assert albert.backbone.albert.get_type("pretrained") is str
    assert albert.interpolation.layers[-1] == 13  # after the last of 12 layers
    assert get_config("huffpost", "encoder=bag_of_words").backbone.name == "mlp"
    for learner in ("maml", "protonet", "matchingnet"):
        light = get_config("huffpost", f"learner={learner}").backbone
        assert (light.name, light.word_mean.norm) == ("word_mean", learner == "maml")
    with pytest.raises(InputError, match="unknown encoder 'bert'"):
        get_config("huffpost", "encoder=bert")


def test_fsmol_keeps_assays_that_are_large_enough_for_a_task():
    config = get_config("fsmol", "learner=protonet,shots=16")
    assert config.task.ways == 2
    assert config.dataset.min_per_class == config.task.shots + config.task.queries
    assert get_config("fsmol").dataset.min_per_class == 16
    assert config.strategy.mlti.alpha == 0.5
    assert get_config("fsmol", "learner=maml").strategy.mlti.alpha == 2.0
    config.dataset.train_classes = 64


def write_tabula_muris(folder):
    table = cell_table()
    write_cells(folder, cell_counts(table), table)


SMALL_RELEASES = {
    "mini_imagenet": write_mini_lists,
    "tiered_imagenet": write_tiered_imagenet,
    "dermnet": write_dermnet,
    "tabula_muris": write_tabula_muris,
}


@pytest.fixture(scope="module")
def prepared_dir(tmp_path_factory):
    """A function that prepares small releases once and returns the data directory."""
    data_dir = tmp_path_factory.mktemp("prepared")

    def prepare_once(*names):
        for name in names:
            if not (data_dir / name).exists():
                raw = tmp_path_factory.mktemp(name)
                SMALL_RELEASES[name](raw)
                prepare(name, raw, data_dir)
        return data_dir

    return prepare_once


def shrink(config):
    """Returns the config at a size for tests, with two images per class."""
    with config.unlocked():
        config.train.update({"steps": 2, "meta_batch_size": 2})
        config.task.queries = 1
        if "min_images" in config.dataset:
            config.dataset.min_images = 1
        config.eval.update(
            {"num_tasks": 2, "validation_tasks": 2, "every": 2, "tasks_per_pass": 2}
        )
        if config.eval.queries is not None:
            config.eval.queries = 1
        config.learner.maml.steps = config.learner.maml.eval_steps = 1
        config.backbone.conv4.filters = 4
    return config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "learner"),
    [
        ("mini_imagenet", "maml"),
        ("tiered_imagenet", "protonet"),
        ("dermnet", "protonet"),
        ("tabula_muris", "maml"),
    ],
)
def test_configs_train_and_evaluate(prepared_dir, tmp_path, name, learner):
    data_dir = prepared_dir(name)
    config = shrink(get_config(name, f"learner={learner},strategy=mlti"))
    if name == "tabula_muris":
        config.task.ways = 2  # the small file has as many test types
    result = train_and_evaluate(build(config, data_dir), tmp_path)
    assert result["dataset"] == name
    assert result["checkpoint"] == ("last" if name == "dermnet" else "best")
    assert len(result["per_task"]) == 2


@pytest.mark.slow
def test_cross_domain(prepared_dir, tmp_path):
    both = prepared_dir("mini_imagenet", "dermnet")
    argument = "learner=protonet,strategy=mlti,test_on=dermnet"
    experiment = build(shrink(get_config("mini_imagenet", argument)), both)
    dermnet = data.load("dermnet", data_dir=both)
    mini = data.load("mini_imagenet", data_dir=both)
    assert experiment.splits.train.classes == mini.train.classes
    assert experiment.splits.validation.classes == mini.validation.classes
    assert experiment.splits.test.classes == dermnet.test.classes
    assert (experiment.splits.test.x == dermnet.test.x).all()
    crossed = get_config("dermnet", "test_on=mini_imagenet")
    assert crossed.eval.queries == 15
    result = train_and_evaluate(experiment, tmp_path / "run")
    assert result["dataset"] == "mini_imagenet->dermnet"


def test_datasets_that_cannot_be_crossed():
    splits = data.load("rainbow_mnist", source="builtin")
    with pytest.raises(InputError, match="trained on rainbow_mnist .* can't be tested"):
        _registry._with_test_of(splits, splits)
    other = dataclasses.replace(splits, setting="non_label_sharing")
    assert _registry._with_test_of(other, other).name == "rainbow_mnist->rainbow_mnist"


def test_a_class_with_too_few_images_is_named(prepared_dir):
    config = get_config("mini_imagenet", "shots=5")
    message = "class 'n03017168' has 2 samples, but shots=5 and queries=15 take 20"
    with pytest.raises(InputError, match=message):
        build(config, prepared_dir("mini_imagenet"))
