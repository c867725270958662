"""The estimate of memory: against a count by hand, and what it refuses."""

import jax
import pytest

import mlti_jax
from mlti_jax._internal import memory
from mlti_jax.api._fit import choose_config
from mlti_jax.errors import InputError
from mlti_jax.training import build
from mlti_jax.training._experiment import _check_size
from tests.support.api_cases import SMALL, class_splits


def small_experiment(**fields):
    splits = class_splits()
    given = {"learner.name": "protonet", "strategy.name": "vanilla", "task.ways": 2}
    overrides = {**SMALL, "task.shots": 3, "task.queries": 4, **fields}
    return build(choose_config(splits, given, overrides), splits=splits)


def test_bytes_of_a_step_by_hand(monkeypatch):
    found = {}
    monkeypatch.setattr(
        "mlti_jax.training._experiment.check_memory",
        lambda needed, devices: found.update(needed=needed, devices=devices),
    )
    experiment = small_experiment()
    _check_size(experiment)
    # Kernels 6 -> 8 -> 8, and scale and offset of two normalizations.
    parameters = 6 * 8 + 8 * 8 + 2 * 2 * 8
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(experiment.init_state()))
    samples = 2 * (3 + 4) * 6 * 4  # bytes of one task
    activations = 2 * (3 + 4) * 2 * (8 + 8) * 4
    tasks = SMALL["train.meta_batch_size"]
    by_hand = state + parameters * 4 + tasks * (samples + activations)
    assert found == {"needed": by_hand, "devices": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"train.meta_batch_size": 2 * 10**9},
        {"backbone.mlp.hidden": (10**9, 8)},
        {"backbone.mlp.hidden": (10**5, 10**5)},
    ],
)
def test_what_the_machine_cannot_hold_is_refused_at_once(fields):
    with pytest.raises(InputError, match=r"needs at least .* GB of memory, and this"):
        small_experiment(**fields)


def test_the_limits_of_the_machine(tmp_path, monkeypatch):
    physical = memory.device_memory(1)
    assert physical > 10**8
    assert memory.device_memory(2) == physical // 2
    (tmp_path / "max").write_text("123456\n")
    (tmp_path / "none").write_text("max\n")
    limits = (str(tmp_path / "none"), str(tmp_path / "max"), str(tmp_path / "absent"))
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", limits)
    assert memory.device_memory(1) == 123456


@pytest.mark.slow
def test_layers_of_a_shallow_network_are_chosen_to_exist(capsys):
    learner = mlti_jax.fit(
        class_splits(), steps=2, overrides={**SMALL, "backbone.mlp.hidden": (16,)}
    )
    assert learner.config.interpolation.layers == (0,)
