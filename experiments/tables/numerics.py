"""Does the present code still compute what a recorded result was computed with?

A *probe* of a run is a short training of the same method on fixed synthetic data: the
config of the run with a small network and small tasks. It takes a few seconds. Its
numbers are stored with the result and compared with those of the present code, within a
tolerance: rounding differs between machines, and a hash of rounded numbers would differ
whenever a number is next to a boundary.

A probe covers everything between a pool and the metric of a task: sampling, strategy,
learner, network, optimizer, evaluation. It does not cover the data, whose checksums are
stored with each result, or the settings, which are stored and compared too. It always
runs on a CPU, so results of accelerators can be checked everywhere.
"""

from __future__ import annotations

import ast
import enum
import importlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.config import config_names
from mlti_jax._internal.progress import silence
from mlti_jax.data import ClassPool, DomainPool, RegressionPool, Splits
from mlti_jax.errors import InputError
from mlti_jax.training import build, make_run_steps
from mlti_jax.training._config import drop_without_effect, flat_fields
from mlti_jax.training._experiment import TEST, TRAIN, Experiment

FIELD = "numerics"  # of a recorded result
REVISION = "revision"  # the same, and of `results.json`
STEPS = 4
TEST_TASKS = 4
DIGITS = 7
MOST_LAYERS = 3  # to interpolate at
GROUPS, PER_GROUP = 6, 12  # domains, classes or objects; samples of each of them
# Largest values of config fields. Numbers of steps are those of inner loops.
LARGEST = {
    "task.ways": 3,
    "task.shots": 2,
    "task.queries": 2,
    "train.meta_batch_size": 4,
    "backbone.conv4.filters": 4,
    "backbone.pose.width": 0.1,
    **{
        f"learner.{learner}.{field}": 2
        for learner in ("maml", "anil", "metasgd", "meta_curvature")
        for field in ("steps", "eval_steps")
    },
    "learner.matchingnet.context_steps": 2,
    "learner.sl.steps": 5,
    "learner.mtl.steps": 5,
}
VALUES = {
    "seed": 0,
    "train.steps": STEPS,
    "train.devices": 1,
    "train.tasks_per_pass": None,
    "train.patience": None,
    "eval.seed": 0,
    "eval.queries": 2,
    "eval.num_tasks": TEST_TASKS,
    "eval.tasks_per_pass": TEST_TASKS,
    "compilation_cache": "off",
}
ALBERT = {
    "vocabulary": 50,
    "embedding": 6,
    "hidden": 8,
    "layers": 2,
    "heads": 2,
    "intermediate": 8,
    "positions": 8,
}


class State(enum.StrEnum):
    """Whether a result agrees with the present code."""

    CURRENT = "current"
    STALE = "stale"
    UNKNOWN = "unknown"


class Tolerance(NamedTuple):
    """How far a number may be from a stored one: `absolute + relative * size`."""

    relative: float
    absolute: float

    def admits(self, one: float, other: float) -> bool:
        """Whether two numbers are equal within the tolerance."""
        return abs(one - other) <= self.absolute + self.relative * abs(other)


# Adam moves a variable by about the learning rate even if its gradient is nothing but
# rounding, so distances of variables are less exact than losses. Accuracy changes by
# steps: two of the samples may change sides.
TOLERANCES = {
    "loss": Tolerance(2e-4, 2e-5),
    "output": Tolerance(2e-4, 2e-5),
    "moved": Tolerance(2e-2, 0.0),
    "state": Tolerance(2e-4, 2e-5),
    "accuracy": Tolerance(0.0, 2.5 / (TEST_TASKS * 3 * 2)),
    "mse": Tolerance(2e-4, 2e-5),
}
Probe = dict[str, list[float]]
_probes: dict[str, Probe] = {}  # of this process


def probe(config: ConfigDict) -> Probe:
    """Return the numbers of a short training of the method of a config.

    The same numbers for all configs that differ only in what `small_config` replaces;
    these are computed once per process.

    Raises:
      InputError: if the method needs something that is not installed.
    """
    small = small_config(config)
    name = json.dumps(_identity(small), sort_keys=True)
    if name not in _probes:
        with jax.default_device(jax.local_devices(backend="cpu")[0]), silence(True):
            _probes[name] = _measure(build(small, splits=_splits(small)))
    return _probes[name]


def small_config(config: ConfigDict) -> ConfigDict:
    """Return a copy of a config with a small network, small tasks and few steps."""
    small = ConfigDict(config.to_dict())
    fields = flat_fields(small)
    changed: dict[str, Any] = {
        field: min(fields[field], most)
        for field, most in LARGEST.items()
        if fields[field] is not None
    }
    changed |= VALUES
    for field in ("backbone.mlp.hidden", "backbone.word_mean.hidden"):
        changed[field] = (8,) * len(fields[field])
    changed["backbone.resnet12.filters"] = (2,) * len(
        fields["backbone.resnet12.filters"]
    )
    layers = fields["interpolation.layers"]
    if small.backbone.name == "albert":
        layers = sorted({min(layer, ALBERT["layers"] + 1) for layer in layers})
    if len(layers) > MOST_LAYERS:  # Each is a branch of the compiled step.
        layers = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
    changed["interpolation.layers"] = tuple(layers)
    with small.unlocked(), small.ignore_type():
        for field, value in changed.items():
            section, _, name = field.rpartition(".")
            place = small
            for part in section.split(".") if section else ():
                place = place[part]
            place[name] = value
        small.dataset = {"name": _kind(config)}
        if small.backbone.name == "albert":
            small.backbone.albert = {**ALBERT, "pool": small.backbone.albert.pool}
    small.lock()
    return small


def _identity(small: ConfigDict) -> dict[str, Any]:
    """Return the fields that a probe depends on."""
    plain = json.loads(small.to_json_best_effort())
    kept = {}
    for field, value in drop_without_effect(flat_fields(plain)).items():
        section, _, rest = field.partition(".")
        if section in ("backbone", "learner", "strategy"):
            chosen = ("name", *plain[section]["name"].split("+"))
            if rest.partition(".")[0] not in chosen:
                continue
        kept[field] = value
    return kept


def use_cpu() -> None:
    """Leave accelerators to other processes; JAX reads this on its first use."""
    jax.config.update("jax_platforms", "cpu")


def forget() -> None:
    """Forget all probes of this process."""
    _probes.clear()


def _measure(experiment: Experiment) -> Probe:
    """Train and test, and return the numbers of a probe."""
    config, splits = experiment.config, experiment.splits
    run_steps = make_run_steps(
        experiment.learner,
        experiment.strategy,
        experiment.optimiser,
        experiment.episode,
        config.train.meta_batch_size,
        experiment.plan,
        experiment.ema,
        config.train.precision,
    )
    state = experiment.init_state()
    start = jax.tree.map(np.array, state.variables.params)
    losses, total = [], 0.0
    for step in range(1, STEPS + 1):
        state, _ = run_steps(state, splits.train, experiment.key(TRAIN), step)
        losses.append(float(state.loss_sum) - total)
        total = float(state.loss_sum)
    variables, key = state.evaluated, experiment.eval_key(TEST)
    assert splits.test is not None
    evaluate = experiment.evaluator
    outputs = evaluate.outputs(variables, splits.test, key, TEST_TASKS).outputs
    metric = evaluate(variables, splits.test, key, TEST_TASKS)
    moved = jax.tree.map(lambda a, b: a - b, state.variables.params, start)
    numbers = {
        "loss": losses,
        "output": [np.abs(outputs).mean(), np.sqrt(np.square(outputs).mean())],
        "moved": [_norm(moved)],
        "state": [_norm(variables.state)],
        experiment.learner.objective.metric_name: [metric.mean()],
    }
    return {
        name: [float(f"{value:.{DIGITS}g}") for value in values]
        for name, values in numbers.items()
    }


def _norm(tree: Any) -> float:
    """Return the norm of all floating-point leaves of a tree."""
    leaves = map(np.asarray, jax.tree.leaves(tree))
    squares = (
        np.square(leaf, dtype=np.float64).sum()
        for leaf in leaves
        if leaf.dtype.kind == "f"
    )
    return math.sqrt(sum(squares))


# ------------------------------------------------------------------------- comparing


def difference(stored: Mapping[str, Any], present: Probe) -> str:
    """Describe the first number in which two probes differ; empty if they agree."""
    if set(stored) != set(present):
        return f"probes of {', '.join(sorted(stored))} and {', '.join(sorted(present))}"
    for name, values in present.items():
        if len(values) != len(stored[name]):
            return f"{name} has {len(values)} numbers, stored are {len(stored[name])}"
        for index, (new, old) in enumerate(zip(values, stored[name], strict=True)):
            if not TOLERANCES[name].admits(new, old):
                return f"{name}[{index}] was {old:.7g} and is now {new:.7g}"
    return ""


def state(result: Mapping[str, Any]) -> State:
    """Return whether a recorded result is of the present code."""
    stored = result.get(FIELD)
    if not stored:
        return State.UNKNOWN
    try:
        present = probe(config_of(result))
    except InputError:  # An optional library or the config is missing.
        return State.UNKNOWN
    return State.STALE if difference(stored, present) else State.CURRENT


def config_of(result: Mapping[str, Any]) -> ConfigDict:
    """Return the config of a recorded result, without its seed and steps.

    Raises:
      InputError: if the config no longer exists or lacks a field.
    """
    name = result["config"]
    if name not in config_names():
        raise InputError(f"experiments/configs has no {name}.py")
    module = importlib.import_module(f"experiments.configs.{name}")
    config = module.get_config(result["arguments"])
    for field, text in result["overrides"].items():
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            value = text
        try:
            config.update_from_flattened_dict({field: value})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{name}.py cannot set {field}={text}: {error}") from None
    return config


# ------------------------------------------------------------------- synthetic data


def _kind(config: ConfigDict) -> str:
    """Return the kind of data of a config, which is all that its probe knows of it."""
    name = config.dataset.name
    if name == "huffpost" and config.dataset.features == "bag_of_words":
        return "vector_classes"
    return {
        "rainbow_mnist": "image_domains",
        "nci": "vector_domains",
        "metabolism": "vector_domains",
        "fsmol": "vector_domains",
        "pose": "image_objects",
        "tabula_muris": "vector_classes",
        "huffpost": "text_classes",
    }.get(name, "image_classes")


def _splits(config: ConfigDict) -> Splits:
    kind, _, groups = config.dataset.name.rpartition("_")
    rng = np.random.default_rng(0)
    train, test = (_pool(config, kind, groups, rng) for _ in range(2))
    setting = {
        "domains": "label_sharing",
        "classes": "non_label_sharing",
        "objects": "regression",
    }[groups]
    return Splits("probe", setting, train, None, test, "synthetic")


def _pool(
    config: ConfigDict, kind: str, groups: str, rng: np.random.Generator
) -> DomainPool | ClassPool | RegressionPool:
    if groups == "domains":
        ways = config.task.ways
        label = np.tile(np.repeat(np.arange(ways), PER_GROUP), GROUPS)
        domain = np.repeat(np.arange(GROUPS), ways * PER_GROUP)
        x = _samples(kind, label + 0.5 * domain, rng)
        return DomainPool.from_arrays(x, domain, label)
    label = np.repeat(np.arange(GROUPS), PER_GROUP)
    x = _samples(kind, label.astype(float), rng)
    if groups == "classes":
        return ClassPool.from_arrays(x, label)
    y = label[:, None] + rng.uniform(0, 4, (len(label), 1))
    return RegressionPool.from_arrays(x, y, label)


def _samples(kind: str, mean: np.ndarray, rng: np.random.Generator) -> Any:
    """Return noise around a number per sample, in the format of a network's input."""
    size = len(mean)
    if kind == "text":
        ids = rng.integers(0, ALBERT["vocabulary"], (size, ALBERT["positions"]))
        ids[:, :3] = (ids[:, :3] % 5) + 5 * mean[:, None].astype(int)
        length = rng.integers(4, ALBERT["positions"] + 1, (size, 1))
        mask = np.arange(ALBERT["positions"]) < length
        return {"ids": ids.astype(np.int32), "mask": mask.astype(np.float32)}
    shape = {"image": (28, 28, 3), "vector": (24,)}[kind]
    x = rng.normal(size=(size, *shape)) + 0.3 * mean.reshape(-1, *[1] * len(shape))
    return x.astype(np.float32)
