"""The optimizer of a config: any of optax's, with schedule, clipping, weight decay."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from mlti_jax._internal.checks import check_range, did_you_mean, unknown_name
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

# The name of an optimizer or a network that is an object of the user.
CUSTOM = "custom"
# Arguments that a config sets elsewhere.
_LEARNING_RATE, _WEIGHT_DECAY = "learning_rate", "weight_decay"
# Types of arguments whose default is None. Others, such as masks, are no config values.
_TYPES_OF_NONE: dict[str, type] = {
    **dict.fromkeys(("momentum", "weight_decay_rate", "optimism"), float),
    **dict.fromkeys(("mu_dtype", "accumulator_dtype"), str),
    "seed": int,
}
# Its line search evaluates the loss of a fixed batch several times per step.
_EXCLUDED = ("lbfgs",)
_LARGEST = 2**31 - 1


@functools.cache
def optimizers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Return the optimizers of `optax` by name: its functions of a learning rate."""
    found: dict[str, Callable[..., optax.GradientTransformation]] = {}
    for name, function in vars(optax).items():
        if not isinstance(function, types.FunctionType | functools.partial):
            continue
        if name.startswith(("_", "scale_by_")):
            continue
        parameters = inspect.signature(function).parameters
        if next(iter(parameters), "") == _LEARNING_RATE and name not in _EXCLUDED:
            found[name] = function
    return found


def arguments_of(name: str) -> dict[str, type]:
    """Return the arguments of an optimizer that a config can set, with their types.

    `learning_rate` and `weight_decay` are `train.learning_rate` and
    `train.weight_decay`, and are not among them.
    """
    arguments = {}
    for parameter in inspect.signature(optimizers()[name]).parameters.values():
        key, default = parameter.name, parameter.default
        if key in (_LEARNING_RATE, _WEIGHT_DECAY) or key.endswith("mask"):
            continue
        if default is None and key in _TYPES_OF_NONE:
            arguments[key] = _TYPES_OF_NONE[key]
        elif isinstance(default, bool | int | float):
            arguments[key] = type(default)
    return arguments


def optimizer_fields() -> dict[str, Any]:
    """Return the config section `train.optimizer`.

    It has the arguments of all optimizers; None leaves an argument at optax's default.
    """
    kinds: dict[str, type] = {}
    for name in optimizers():
        kinds |= arguments_of(name)
    fields = {name: placeholder(kind) for name, kind in sorted(kinds.items())}
    return {"name": "adam", **fields}


def schedule_fields() -> dict[str, Any]:
    """Return the config section `train.schedule`; None leaves a default, see below."""
    kinds = {
        name: kind for known in _SCHEDULES.values() for name, kind in known.items()
    }
    fields = {name: placeholder(kind) for name, kind in kinds.items()}
    return {"name": "constant", **fields}


# The arguments of each schedule.
_SCHEDULES: dict[str, dict[str, type]] = {
    "constant": {},
    "cosine": {"decay_steps": int, "alpha": float},
    "warmup_cosine": {"warmup_steps": int, "decay_steps": int, "alpha": float},
    "exponential": {"transition_steps": int, "decay_rate": float, "staircase": bool},
}


def make_schedule(train: ConfigDict | Mapping[str, Any]) -> float | optax.Schedule:
    r"""Return the learning rate of the config section `train`, by step.

    With $\gamma$ = `train.learning_rate` and step t, `train.schedule.name` is

    * `constant`: $\gamma$;
    * `cosine`: from $\gamma$ to $\alpha \gamma$ (`alpha`, 0) along half a cosine, in
      `decay_steps` (all steps of the run);
    * `warmup_cosine`: first linearly from 0 to $\gamma$ in `warmup_steps` (a tenth of
      `decay_steps`), which are part of the `decay_steps`;
    * `exponential`: $\gamma\, r^{t / T}$ with r = `decay_rate` (0.1) and T =
      `transition_steps` (all steps of the run), t / T rounded down if `staircase`.

    Raises:
      InputError: if the name is unknown, or an argument is invalid or of another
        schedule.
    """
    section = dict(train["schedule"].items())
    name = section.pop("name")
    if name not in _SCHEDULES:
        raise unknown_name("train.schedule.name", name, _SCHEDULES)
    given = {key: value for key, value in section.items() if value is not None}
    _check_known("train.schedule", name, given, _SCHEDULES[name])
    for key in ("decay_steps", "transition_steps"):
        if key in given:
            check_range(f"config.train.schedule.{key}", given[key], _LARGEST)
    rate, steps = train["learning_rate"], given.get("decay_steps", train["steps"])
    alpha = given.get("alpha", 0.0)
    if not 0 <= alpha <= 1:
        raise InputError(
            f"config.train.schedule.alpha is {alpha}; expected a fraction of "
            "train.learning_rate, from 0 to 1"
        )
    if name == "constant":
        return rate
    if name == "cosine":
        return optax.cosine_decay_schedule(rate, steps, alpha)
    if name == "warmup_cosine":
        warmup = given.get("warmup_steps", steps // 10)
        if not 0 <= warmup < steps:
            raise InputError(
                f"config.train.schedule.warmup_steps is {warmup}; expected fewer than "
                f"the {steps} steps of the whole schedule (decay_steps)"
            )
        return optax.warmup_cosine_decay_schedule(
            0.0, rate, warmup, steps, end_value=alpha * rate
        )
    decay_rate = given.get("decay_rate", 0.1)
    if not decay_rate > 0:
        raise InputError(
            f"config.train.schedule.decay_rate is {decay_rate}; expected a positive "
            "factor"
        )
    return optax.exponential_decay(
        rate,
        given.get("transition_steps", train["steps"]),
        decay_rate,
        staircase=given.get("staircase", False),
    )


def make_optimizer(
    train: ConfigDict | Mapping[str, Any],
) -> optax.GradientTransformation:
    """Return the optimizer of the config section `train`; by default Adam.

    Gradients are clipped to the global norm `train.clip_norm` first.
    `train.weight_decay` is the optimizer's own argument `weight_decay`, if it has one;
    otherwise it is decoupled from the gradient as in AdamW.

    Raises:
      InputError: if a name is unknown, or a value is invalid.
    """
    section = dict(train["optimizer"].items())
    name = section.pop("name")
    if name == CUSTOM:
        raise InputError(
            "this run was configured with an optimizer of your own "
            "(train.optimizer.name=custom); pass it again, as in fit(..., optimizer=)"
        )
    if name not in optimizers():
        raise unknown_name("train.optimizer.name", name, optimizers())
    given = {key: value for key, value in section.items() if value is not None}
    _check_known("train.optimizer", name, given, arguments_of(name))
    schedule, decay = make_schedule(train), train["weight_decay"]
    function, clip_norm = optimizers()[name], train["clip_norm"]
    for field, value in (("weight_decay", decay), ("clip_norm", clip_norm)):
        if value is not None and (value < 0 or (value == 0 and field == "clip_norm")):
            raise InputError(
                f"config.train.{field} is {value}; expected a positive number, or None "
                "for the default"
            )
    decays = _WEIGHT_DECAY in inspect.signature(function).parameters
    if decays and decay is not None:
        given[_WEIGHT_DECAY] = decay
    try:
        optimizer = function(schedule, **given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"optax.{name} does not accept {given} ({error}); change train.optimizer"
        ) from error
    if decay and not decays:
        optimizer = optax.chain(optimizer, _decoupled_decay(decay, schedule))
    if clip_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)
    return optimizer


def check_no_optimizer_fields(train: ConfigDict, default: ConfigDict) -> None:
    """Raise `InputError` for fields that an optimizer of the user's own replaces.

    Args:
      train: the section `train` of a config.
      default: the same section with default values.
    """
    fields = ("learning_rate", "clip_norm", "weight_decay", "optimizer", "schedule")
    for field in fields:
        found, expected = train[field], default[field]
        if isinstance(found, ConfigDict):
            found, expected = found.to_dict(), expected.to_dict()
            found["name"] = (
                expected["name"] if found["name"] == CUSTOM else found["name"]
            )
        if found != expected:
            raise InputError(
                f"an optimizer object is given, and train.{field} is set too; put the "
                "learning rate, its schedule, clipping and weight decay into the "
                "optimizer, for example with optax.chain"
            )


def _check_known(
    section: str, name: str, given: Mapping[str, Any], known: Mapping[str, type]
) -> None:
    for key in given:
        if key not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError(
                f"{section}.{key} is set, but {name} has no such argument"
                f"{did_you_mean(key, known)}; its arguments: {listed}"
            )


def _decoupled_decay(
    decay: float, learning_rate: float | optax.Schedule
) -> optax.GradientTransformation:
    r"""Add $-\gamma_t \lambda \theta$ to the update of step t."""

    def init(params: PyTree) -> Array:
        del params
        return jnp.int32(0)

    def update(
        updates: PyTree, count: Array, params: PyTree | None = None
    ) -> tuple[PyTree, Array]:
        rate = learning_rate(count) if callable(learning_rate) else learning_rate
        change = jax.tree.map(lambda u, p: u - rate * decay * p, updates, params)
        return change, count + 1

    return optax.GradientTransformation(init, update)
