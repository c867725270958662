"""Fields of the base config, generated from the factories' signatures."""

import functools

import pytest

from mlti_jax._internal.options import options_of
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import LEARNERS
from mlti_jax.strategies._registry import STRATEGIES
from mlti_jax.training import base_config
from mlti_jax.training._config import flat_fields, restore_config, set_fields


def inner(
    name: str, *, layer: int, objective: str = "mse", rate: float = 0.5, name_: str = ""
):
    return name, layer, objective, rate, name_


def outer(width: int, *, depth: int = 3, share: float | None = None, **options):
    return width, depth, share, inner("a", **options)


def test_options_are_parameters_with_a_default():
    assert options_of(outer) == {"depth": (3, int), "share": (None, float)}
    assert options_of(outer, forwards_to=inner) == {
        "depth": (3, int),
        "share": (None, float),
        "rate": (0.5, float),
        "name_": ("", str),
    }
    bound = functools.partial(outer, depth=2)
    assert options_of(bound) == {"share": (None, float)}


def test_every_backbone_learner_and_strategy_with_options_has_a_section():
    config = base_config()
    for family, members in (
        ("backbone", BACKBONES),
        ("learner", LEARNERS),
        ("strategy", STRATEGIES),
    ):
        assert set(config[family]) == {"name", *members} - {"vanilla"}


def test_fields_of_the_sections():
    config = base_config()
    assert set(config.learner.maml) == set(config.learner.anil) | {"adapted_layers"}
    assert config.learner.maml.adapted_layers == (-2, -1)
    assert set(config.learner.anil) == {
        *("inner_learning_rate", "steps", "eval_steps", "second_order", "remat"),
        "norm",
    }
    assert set(config.learner.sl) == {"learning_rate", "steps", "norm"}
    assert set(config.strategy.mlti) == {"alpha", "alpha_intra", "boxes", "within"}
    assert set(config.strategy.intra) == {"alpha", "boxes", "within"}
    assert set(config.strategy.cross) == {"alpha", "boxes"}
    assert set(config.strategy.metaaug) == {"shifts", "period"}
    assert set(config.backbone.albert) == {"pretrained", "pool"}
    assert config.learner.maml.eval_steps == config.learner.maml.steps == 5


def test_options_without_a_default_value_have_a_type():
    config = base_config()
    for section, field, kind in (
        ("strategy.mlti", "alpha_intra", float),
        ("strategy.metaaug", "period", float),
        ("backbone.albert", "pretrained", str),
        ("train", "devices", int),
    ):
        place = config
        for part in section.split("."):
            place = place[part]
        assert place[field] is None
        assert place.get_type(field) is kind


def test_a_saved_config_is_restored():
    config = base_config()
    set_fields(config, {"train.steps": 7, "eval.queries": None, "seed": 3})
    config.dataset = {"name": "toy", "sizes": [1, 2]}
    saved = config.to_dict()
    saved["learner"]["maml"]["unroll"] = True
    restored = restore_config(saved)
    assert restored.is_locked
    expected = flat_fields(config) | {"dataset.sizes": (1, 2)}
    assert flat_fields(restored) == expected
    saved["learner"]["maml"]["momentum"] = 0.9
    with pytest.raises(InputError, match="unknown config field 'learner.maml.momentum"):
        restore_config(saved)
