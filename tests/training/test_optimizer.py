"""Optimizers, schedules, moving averages and early stopping of a config."""

import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlti_jax._internal.storage import write_json
from mlti_jax.errors import InputError
from mlti_jax.training import _loop as loop
from mlti_jax.training import _metrics as metrics
from mlti_jax.training import _workdir as workdir
from mlti_jax.training import base_config, build, train_and_evaluate
from mlti_jax.training._config import restore_config
from mlti_jax.training._optimizer import (
    arguments_of,
    make_optimizer,
    make_schedule,
    optimizers,
)
from mlti_jax.training._step import update_average
from tests.support.api_cases import class_splits, domain_splits, fit_small

PARAMS = {"kernel": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "bias": jnp.array([4.0])}
GRADS = {"kernel": jnp.array([[0.1, 0.2], [-0.3, 0.4]]), "bias": jnp.array([-0.5])}


def train_section(**fields):
    config = base_config()
    config.update_from_flattened_dict({f"train.{k}": v for k, v in fields.items()})
    return config.train


def after(optimizer, steps=3):
    """The parameters after some steps, whose gradients vary."""
    params, state = PARAMS, optimizer.init(PARAMS)
    for step in range(steps):
        grads = jax.tree.map(lambda g, s=step: g * (1 + s), GRADS)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params


# -------------------------------------------------------------------- optimizers


def test_default_is_adam_with_the_state_of_earlier_checkpoints():
    ours, adam = make_optimizer(base_config().train), optax.adam(1e-3)
    chex.assert_trees_all_equal(after(ours), after(adam))
    chex.assert_trees_all_equal_structs(ours.init(PARAMS), adam.init(PARAMS))


def test_all_optimizers_of_optax_by_name():
    assert {"adam", "adamw", "sgd", "lion", "lamb", "rmsprop"} <= set(optimizers())
    for name in optimizers():
        fields = {"optimizer.name": name, "learning_rate": 0.02}
        if name == "noisy_sgd":
            fields["optimizer.seed"] = 3
        arguments = {"seed": 3} if name == "noisy_sgd" else {}
        expected = getattr(optax, name)(0.02, **arguments)
        chex.assert_trees_all_equal(
            after(make_optimizer(train_section(**fields))), after(expected)
        )


def test_arguments_are_passed_on():
    fields = {"optimizer.name": "sgd", "optimizer.momentum": 0.9}
    fields |= {"optimizer.nesterov": True, "learning_rate": 0.1}
    found = after(make_optimizer(train_section(**fields)), steps=2)
    # By hand: m1 = g, m2 = 2g + 0.9 m1; a step is g + 0.9 m.
    change = 0.1 * ((1 + 0.9 * 1) + (2 + 0.9 * 2.9))
    expected = jax.tree.map(lambda p, g: p - change * g, PARAMS, GRADS)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)


def test_every_argument_is_a_field_of_its_type():
    section = base_config().train.optimizer
    for name in optimizers():
        for argument, kind in arguments_of(name).items():
            section[argument] = kind(1)


def test_weight_decay_is_that_of_adamw():
    found = after(make_optimizer(train_section(weight_decay=0.3, learning_rate=0.1)))
    expected = after(optax.adamw(0.1, weight_decay=0.3))
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
    fields = {"optimizer.name": "adamw", "weight_decay": 0.3, "learning_rate": 0.1}
    chex.assert_trees_all_equal(
        after(make_optimizer(train_section(**fields))), expected
    )


def test_weight_decay_follows_the_schedule():
    fields = {"optimizer.name": "sgd", "weight_decay": 0.5, "learning_rate": 0.2}
    fields |= {"schedule.name": "cosine", "schedule.decay_steps": 2}
    found = after(make_optimizer(train_section(**fields)))
    expected = {name: np.array(leaf, np.float64) for name, leaf in PARAMS.items()}
    for step, rate in enumerate([0.2, 0.1, 0.0]):
        for name, leaf in expected.items():
            expected[name] = leaf - rate * ((1 + step) * GRADS[name] + 0.5 * leaf)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)


def test_clipping_by_hand():
    fields = {"optimizer.name": "sgd", "clip_norm": 0.25, "learning_rate": 1.0}
    found = after(make_optimizer(train_section(**fields)), steps=1)
    norm = math.sqrt(0.01 + 0.04 + 0.09 + 0.16 + 0.25)
    expected = jax.tree.map(lambda p, g: p - g * 0.25 / norm, PARAMS, GRADS)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)


def rate(step, steps=100, **fields):
    schedule = make_schedule(
        train_section(steps=steps, learning_rate=0.4)
        if not fields
        else train_section(
            steps=steps,
            learning_rate=0.4,
            **{f"schedule.{name}": value for name, value in fields.items()},
        )
    )
    return float(schedule(step)) if callable(schedule) else schedule


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {0: 0.4, 100: 0.4}),
        (
            {"name": "cosine"},
            {0: 0.4, 25: 0.2 * (1 + math.cos(math.pi / 4)), 50: 0.2, 100: 0.0},
        ),
        ({"name": "cosine", "decay_steps": 50, "alpha": 0.5}, {25: 0.3, 80: 0.2}),
        ({"name": "warmup_cosine"}, {0: 0.0, 5: 0.2, 10: 0.4, 55: 0.2, 100: 0.0}),
        (
            {"name": "warmup_cosine", "warmup_steps": 20, "alpha": 0.1},
            {10: 0.2, 20: 0.4, 60: 0.22, 100: 0.04},
        ),
        ({"name": "exponential"}, {0: 0.4, 50: 0.4 * 0.1**0.5, 100: 0.04}),
        (
            {
                "name": "exponential",
                "transition_steps": 10,
                "decay_rate": 0.5,
                "staircase": True,
            },
            {9: 0.4, 10: 0.2, 29: 0.1},
        ),
    ],
)
def test_schedules_by_hand(fields, expected):
    found = {step: rate(step, **fields) for step in expected}
    assert found == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer.name": "adamm"}, "unknown train.optimizer.name 'adamm'"),
        ({"optimizer.name": "lbfgs"}, "unknown train.optimizer.name 'lbfgs'"),
        ({"optimizer.momentum": 0.9}, "optimizer.momentum is set, but adam has no"),
        ({"schedule.name": "linear"}, "unknown train.schedule.name 'linear'"),
        ({"schedule.decay_rate": 0.5}, "decay_rate is set, but constant has no"),
        (
            {"schedule.name": "warmup_cosine", "schedule.warmup_steps": 10**6},
            "warmup_steps is 1000000; expected fewer",
        ),
        ({"schedule.name": "cosine", "schedule.alpha": 2.0}, "alpha is 2.0"),
        ({"schedule.name": "cosine", "schedule.decay_steps": 0}, "decay_steps is 0"),
        ({"schedule.name": "exponential", "schedule.decay_rate": 0.0}, "decay_rate is"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0; expected a positive"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; expected a positive"),
        ({"ema": 1.0}, "ema is 1.0; expected a decay from 0"),
        ({"ema": -0.1}, "ema is -0.1; expected a decay from 0"),
        ({"patience": 0}, "patience is 0; expected an integer from 1"),
        ({"patience": 3}, "patience is 3, but toy_domains has no validation tasks"),
        ({"optimizer.name": "custom"}, "an optimizer of your own"),
    ],
)
def test_errors_before_training(fields, message):
    overrides = {f"train.{name}": value for name, value in fields.items()}
    with pytest.raises(InputError, match=message):
        fit_small(domain_splits(), **overrides)


def test_an_unknown_argument_has_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'train.schedule.name'"):
        fit_small(domain_splits(), **{"train.schedul.name": "cosine"})
    with pytest.raises(InputError, match="a section with the fields train.schedule.a"):
        fit_small(domain_splits(), **{"train.schedule": "cosine"})


# ------------------------------------------------------------ the user's own optimizer


def test_an_optimizer_object_trains():
    given = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05, momentum=0.9))
    by_name = fit_small(
        domain_splits(),
        **{
            "train.optimizer.name": "sgd",
            "train.optimizer.momentum": 0.9,
            "train.learning_rate": 0.05,
            "train.clip_norm": 1.0,
        },
    )
    own = fit_small(domain_splits(), optimizer=given)
    assert own.config.train.optimizer.name == "custom"
    assert own.result["per_task"] == by_name.result["per_task"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "adam"}, "optimizer is of type str; expected one of optax"),
        (
            {"optimizer": optax.adam(1e-3), "train.clip_norm": 1.0},
            "train.clip_norm is set too",
        ),
        (
            {"optimizer": optax.adam(1e-3), "train.schedule.name": "cosine"},
            "train.schedule is set too",
        ),
        (
            {"optimizer": optax.adam(1e-3), "train.optimizer.name": "sgd"},
            "train.optimizer is set too",
        ),
    ],
)
def test_wrong_optimizer_objects(arguments, message):
    with pytest.raises(InputError, match=message):
        fit_small(domain_splits(), **arguments)


def test_an_optimizer_that_uses_the_loss():
    fitted = fit_small(domain_splits(), optimizer=optax.polyak_sgd(0.1))
    assert np.isfinite(fitted.result["mean"])


# -------------------------------------------------------------------- moving averages


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99, 0.9999])
def test_average_equals_the_weighted_sum(decay):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(7, 3))
    average = {"p": jnp.full(3, 100.0), "n": jnp.int32(0)}
    for count, value in enumerate(values, 1):
        new = {"p": jnp.asarray(value, jnp.float32), "n": jnp.int32(count)}
        average = jax.jit(update_average, static_argnums=3)(average, new, count, decay)
    weights = decay ** np.arange(6, -1, -1.0)
    expected = (weights[:, None] * values).sum(axis=0) / weights.sum()
    np.testing.assert_allclose(average["p"], expected, rtol=2e-5, atol=1e-5)
    assert average["n"] == 7  # counters are not averaged


def experiment(splits, **fields):
    config = fit_small(splits, **fields).config
    return build(config, splits=splits)


def test_average_is_tested_and_training_does_not_depend_on_it(tmp_path):
    with_average = experiment(domain_splits(), steps=6, **{"train.ema": 0.9})
    without = experiment(domain_splits(), steps=6, **{"train.ema": 0.0})
    train_and_evaluate(with_average, tmp_path / "with")
    train_and_evaluate(without, tmp_path / "without")
    last = loop.Checkpoints(tmp_path / "with" / "checkpoints" / "last", None)
    _, state = last.restore(with_average.init_state(), 6)
    last.close()
    plain, _ = workdir.tested_variables(without, tmp_path / "without")
    averaged, _ = workdir.tested_variables(with_average, tmp_path / "with")
    chex.assert_trees_all_close(state.variables, plain, rtol=1e-6, atol=1e-7)
    chex.assert_trees_all_equal(state.ema[0], averaged)
    differs = [
        bool((a != b).any())
        for a, b in zip(
            jax.tree.leaves(averaged), jax.tree.leaves(state.variables), strict=True
        )
    ]
    assert all(differs)  # running averages of batch-norm too


# ---------------------------------------------------- early stopping and resuming

RECIPE = {
    "train.optimizer.name": "adamw",
    "train.weight_decay": 0.01,
    "train.schedule.name": "warmup_cosine",
    "train.clip_norm": 0.5,
    "train.ema": 0.9,
    "train.patience": 2,
    "train.checkpoint_every": 3,
    "train.log_every": 4,
    "eval.every": 5,
    "train.learning_rate": 0.05,
}


def lines(folder):
    return [
        {name: value for name, value in line.items() if name != "steps_per_second"}
        for line in metrics.read(folder / "metrics.jsonl")
    ]


def test_patience_ends_training_and_a_resumed_run_is_the_same(tmp_path, monkeypatch):
    splits = class_splits(spread=3.0)  # hard: validation soon stops improving
    made = experiment(splits, ways=3, steps=400, **RECIPE)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    result = train_and_evaluate(made, whole)
    validations = [
        line["accuracy"] for line in lines(whole) if line["split"] == "validation"
    ]
    # By hand: the first two validations in a row that do not exceed the best so far.
    best, since, stop = -1.0, 0, None
    for number, value in enumerate(np.float32(validations), 1):
        best, since = (value, 0) if value > best else (best, since + 1)
        if since == 2:
            stop = 5 * number
            break
    assert stop is not None
    assert result["train_steps"] == stop < 400
    assert result["step"] == stop - 10

    # Interrupted in the middle of a period between logs, checkpoints and validations.
    calls = iter([0] * 7 + [15])
    monkeypatch.setattr(loop, "stop_signal", lambda: _Stop(calls))
    with pytest.raises(loop.Interrupted):
        train_and_evaluate(made, broken)
    monkeypatch.undo()
    assert train_and_evaluate(made, broken) == result
    assert lines(broken) == lines(whole)


class _Stop:
    """A context like `stop_signal` that receives a signal at some call."""

    def __init__(self, calls):
        self.calls = calls

    def __enter__(self):
        return lambda: next(self.calls, 0)

    def __exit__(self, *error):
        return False


def test_a_run_of_a_version_without_these_fields_is_resumed(tmp_path):
    made = experiment(domain_splits(), **{"train.ema": 0.0})
    result = train_and_evaluate(made, tmp_path)
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text())
    del saved["sha256"]
    for name in ("schedule", "clip_norm", "weight_decay", "ema"):
        del saved["train"][name]
    # Another version of optax has other arguments.
    saved["train"]["optimizer"] = {"name": "adam", "argument_of_another_version": None}
    write_json(path, saved, seal=True)
    assert train_and_evaluate(made, tmp_path) == result
    changed = made.config.copy_and_resolve_references()
    changed.train.ema = 0.5
    with pytest.raises(InputError, match="train.ema: 0.0 -> 0.5"):
        train_and_evaluate(build(changed, splits=domain_splits()), tmp_path)


def test_saved_configs_keep_all_fields():
    config = base_config()
    config.update_from_flattened_dict(RECIPE)
    saved = json.loads(config.to_json_best_effort())
    restored = restore_config(saved)
    assert restored.train.to_dict() == config.train.to_dict()
    saved["train"]["optimizer"]["argument_of_another_version"] = None
    assert restore_config(saved).train.to_dict() == config.train.to_dict()
    saved["train"]["optimizer"]["argument_of_another_version"] = 1.0
    with pytest.raises(InputError, match="unknown config field"):
        restore_config(saved)
