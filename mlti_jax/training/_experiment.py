"""The parts of a run, built from a config: data, network, learner, strategy."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlti_jax import backbones, data, learners, strategies
from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax._internal.distributed import number_of_processes
from mlti_jax._internal.precision import check_precision
from mlti_jax.backbones import Stack
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.data import ClassPool, RegressionPool, Splits
from mlti_jax.data._placement import kind_of
from mlti_jax.data._pools import (
    Pool,
    check_episode,
    shapes_of,
    take_inputs,
    task_inputs,
)
from mlti_jax.data._records import Records
from mlti_jax.data._task_source import read_tasks
from mlti_jax.errors import InputError
from mlti_jax.interpolation import cutmix
from mlti_jax.learners import Learner
from mlti_jax.learners._objectives import regression_objective
from mlti_jax.learners._registry import FAMILIES, LEARNERS
from mlti_jax.parallel import Plan, plan_for
from mlti_jax.strategies import Strategy
from mlti_jax.strategies._objective import check_layers, tasks_per_step
from mlti_jax.strategies._registry import check_applicable, parse
from mlti_jax.training._config import base_config, fill_in, with_fields
from mlti_jax.training._evaluation import Evaluator
from mlti_jax.training._memory import check_memory, step_bytes
from mlti_jax.training._optimizer import (
    CUSTOM,
    check_no_optimizer_fields,
    make_optimizer,
)
from mlti_jax.training._step import Episode, TrainState, init_state
from mlti_jax.types import Array, PyTree, Task

# Seeds are the largest integers of a config.
_LARGEST = 2**32 - 1
# Purposes of randomness; each is folded into its own key.
INIT, TRAIN = 0, 1
VALIDATION, TEST = 0, 1
# Without `jit`, its loop would be compiled at each call.
_sample_task = jax.jit(data.sample_task, static_argnames=("ways", "shots", "queries"))


def _init_state(
    learner: Learner,
    strategy: Strategy,
    optimiser: optax.GradientTransformation,
    episode: Episode,
    ema: tuple[float, ...],
    source: Pool | Task,
    key: Array,
) -> TrainState:
    if isinstance(source, Task):
        task = source
    else:
        task = data.sample_task(source, jax.random.key(0), **episode._asdict())
    return init_state(learner, strategy, optimiser, key, task.support.x, ema)


@functools.cache
def _compiled_init_state() -> Callable[..., TrainState]:
    """Return `_init_state` as one program.

    Executed operation by operation, it would be about a hundred programs, most of them
    for outputs of layers, which a single program does not compute at all. The program
    runs once, so LLVM need not optimize it: on a CPU that takes longer than the rest.
    """
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(
        _init_state,
        static_argnums=(0, 1, 2, 3, 4),
        compiler_options={"xla_backend_optimization_level": 0} if on_cpu else None,
    )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The parts of a run, see `build`.

    Attributes:
      config: the config, with open fields chosen from the data.
      splits: the data.
      learner, strategy, optimiser: the method.
      episode: size of the training tasks.
      evaluator: evaluates validation and test tasks.
      plan: how the tasks of a meta-batch are distributed over devices and time.
      notes: notes for the user, printed before the run.
    """

    config: Any
    splits: Splits
    learner: Learner
    strategy: Strategy
    optimiser: optax.GradientTransformation
    episode: Episode
    evaluator: Evaluator
    plan: Plan
    notes: tuple[str, ...]

    @property
    def adapted(self) -> tuple[str, ...] | None:
        """Names of the parameters that are adapted; None if whole layers are."""
        return getattr(self.learner, "adapted", None)

    def key(self, purpose: int) -> Array:
        """Return the key for `INIT` or `TRAIN`."""
        return jax.random.fold_in(jax.random.key(self.config.seed), purpose)

    def eval_key(self, purpose: int) -> Array:
        """Return the key of the `VALIDATION` or `TEST` tasks; independent of `seed`."""
        return jax.random.fold_in(jax.random.key(self.config.eval.seed), purpose)

    @property
    def ema(self) -> tuple[float, ...]:
        """The decay of the moving average of the variables; empty without one."""
        return (self.config.train.ema,) if self.config.train.ema else ()

    def init_state(self) -> TrainState:
        """Return the state before the first step."""
        key = self.key(INIT)
        # Inside of another program, options of the compiler are not allowed.
        traced = isinstance(key, jax.core.Tracer)
        function = _init_state if traced else _compiled_init_state()
        return function(
            self.learner,
            self.strategy,
            self.optimiser,
            self.episode,
            self.ema,
            self.splits.train if self._on_device else self.sample_task(),
            key,
        )

    @property
    def _on_device(self) -> bool:
        return kind_of(self.splits.train) == "device"

    def sample_task(self) -> Task:
        """Return a training task, always the same one."""
        pool, sizes = self.splits.train, self.episode._asdict()
        if self._on_device:
            return _sample_task(pool, jax.random.key(0), **sizes)
        with jax.ensure_compile_time_eval():  # also while only shapes are computed
            tasks = task_inputs(read_tasks(pool, jax.random.key(0)[None], **sizes))
            return jax.tree.map(lambda leaf: leaf[0], tasks)

    def on_this_process(self) -> Experiment:
        """Return this experiment for the devices of this process alone."""
        if not self.plan.spans_processes:
            return self
        own = tuple(d for d in self.plan.devices if d in jax.local_devices())
        plan = dataclasses.replace(self.plan, devices=own)
        evaluator = dataclasses.replace(self.evaluator, plan=plan)
        return dataclasses.replace(self, plan=plan, evaluator=evaluator)

    def data_facts(self) -> dict[str, Any]:
        """Return what distinguishes this data from other data of the same name."""
        pools = {
            name: pool
            for name in ("train", "validation", "test")
            if (pool := getattr(self.splits, name)) is not None
        }
        inputs = self.splits.inputs
        facts = {}
        if inputs is not None and inputs.targets.scale:
            # Targets in other units can have the same standardized values.
            facts["targets"] = inputs.targets._asdict()
        if self.splits.part is not None:
            facts["part"] = self.splits.part
        return {
            **facts,
            "source": self.splits.source,
            "eval_queries": self.evaluator.episode.queries,
            "checksums": {name: checksum(pool) for name, pool in pools.items()},
        }

    def description(self) -> dict[str, Any]:
        """Return the fields of a result that are known before the run."""
        config = self.config
        pool = self.splits.train
        groups = pool.classes if isinstance(pool, ClassPool) else pool.domains
        part = self.splits.part
        return {
            "dataset": self.splits.name,
            "split": "test",
            "learner": config.learner.name,
            "strategy": config.strategy.name,
            "backbone": config.backbone.name,
            "ways": self.episode.ways,
            "shots": self.episode.shots,
            "queries": self.evaluator.episode.queries,
            "train_classes": len(groups),
            "seed": config.seed,
            "metric": self.learner.objective.metric_name,
            "norm_policy": self.learner.norm,
            "source": self.splits.source,
            **({} if part is None else {"part": part}),
        }


class OwnParts(NamedTuple):
    """Parts of a run that a config cannot describe: objects of the user.

    Attributes:
      network: the network without a head, in place of `backbone.name`.
      adapted: the parameters that a gradient-based learner adapts, in place of
        `adapted_layers`; see `learners.maml`.
      optimizer: in place of `train.optimizer` and the fields beside it.
      example: shapes and dtypes of a network's input, for a predicate `adapted`.
    """

    network: Stack | None = None
    adapted: Any = None
    optimizer: optax.GradientTransformation | None = None
    example: PyTree = None


def build(
    config: Any,
    data_dir: str | None = None,
    splits: Splits | None = None,
    *,
    network: Any = None,
    adapted: Any = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Experiment:
    """Build the parts of a run and check that they fit together.

    Args:
      config: a `ConfigDict` with the fields of `base_config`.
      data_dir: directory of prepared data; None for the default.
      splits: the data; None to load the dataset `config.dataset`.
      network: a `Stack`, or anything that `backbones.wrap` accepts, in place of
        `backbone.name`.
      adapted: the parameters that a gradient-based learner adapts, in place of
        `adapted_layers`; see `learners.maml`.
      optimizer: in place of `train.optimizer` and the fields beside it.

    Raises:
      InputError: if a name is unknown, a value is invalid, or the data does not suit
        the config.
    """
    own = own_parts(network, adapted, optimizer)
    config = _mark_own_parts(config, own)
    _check_config(config)
    optimiser = make_optimizer(config.train) if optimizer is None else optimizer
    # Names are checked before the data is loaded, which takes longer.
    parse(config.strategy.name)
    for kind, name, known in (
        ("learner", config.learner.name, LEARNERS),
        # With an empty name, the network is chosen from the data.
        ("backbone", config.backbone.name, {"", CUSTOM, *BACKBONES}),
    ):
        if name not in known:
            raise unknown_name(kind, name, filter(None, known))
    if splits is None:
        options = {"pool": "auto", **_options(config.dataset)}
        splits = data.load(options.pop("name"), data_dir=data_dir, **options)
    if splits.test is None:
        raise InputError(
            f"{splits.name} has no test tasks; name some, or a fraction such as "
            "test=0.2 (on the command line --config.dataset.test=0.2)"
        )
    if config.train.patience is not None and splits.validation is None:
        raise InputError(
            f"config.train.patience is {config.train.patience}, but {splits.name} has "
            "no validation tasks; hold some out, or set it to None"
        )
    example = jax.eval_shape(take_inputs, shapes_of(splits.train.x), jnp.arange(2))
    own = own._replace(example=example)
    config, chosen = fill_in(config, splits, partial(_deepest_layer, own=own))
    notes = [splits.summary if splits.details else splits.note, *chosen]
    if splits.placement:
        notes.append(splits.placement)
    episode = Episode(config.task.ways, config.task.shots, config.task.queries)
    eval_episode = episode._replace(queries=config.eval.queries)
    if splits.source == "builtin":
        eval_episode, note = _fit_to_builtin(eval_episode, splits)
        notes += note
    for pool, size in (
        (splits.train, episode),
        (splits.validation, eval_episode),
        (splits.test, eval_episode),
    ):
        if pool is not None:
            check_episode(pool, **size._asdict())
    learner, strategy = make_method(config, MethodFacts.of(splits, episode.ways), own)
    plan = plan_for(
        splits.train.x,
        config.train.meta_batch_size,
        config.train.devices,
        config.train.tasks_per_pass,
    )
    evaluator = Evaluator(
        learner,
        strategy,
        eval_episode,
        config.eval.tasks_per_pass,
        plan,
        config.train.precision,
    )
    experiment = Experiment(
        config=config,
        splits=splits,
        learner=learner,
        strategy=strategy,
        optimiser=optimiser,
        episode=episode,
        evaluator=evaluator,
        plan=plan,
        notes=tuple(notes),
    )
    _check_size(experiment)
    return experiment


def own_parts(
    network: Any,
    adapted: Any = None,
    optimizer: optax.GradientTransformation | None = None,
) -> OwnParts:
    """Check the user's parts; `network` may be anything that `wrap` accepts."""
    if network is not None and not isinstance(network, Stack):
        network = backbones.wrap(network)
    if optimizer is not None and not isinstance(
        optimizer, optax.GradientTransformation | optax.GradientTransformationExtraArgs
    ):
        raise InputError(
            f"optimizer is of type {type(optimizer).__name__}; expected one of optax, "
            "such as optax.adamw(1e-3)"
        )
    return OwnParts(network, adapted, optimizer)


def _mark_own_parts(config: Any, own: OwnParts) -> Any:
    """Return a config that says which parts are the user's."""
    fields = {}
    if own.network is not None:
        if config.backbone.name not in ("", CUSTOM):
            raise InputError(
                f"a network is given, and backbone.name={config.backbone.name!r} is "
                "set too; give one of them"
            )
        fields["backbone.name"] = CUSTOM
    elif config.backbone.name == CUSTOM:
        raise InputError(
            "this config is of a run with a network of your own (backbone.name="
            f"{CUSTOM}); pass it again, as in fit(..., network=)"
        )
    if own.optimizer is not None:
        check_no_optimizer_fields(config.train, base_config().train)
        fields["train.optimizer.name"] = CUSTOM
    return with_fields(config, fields) if fields else config


def _check_size(experiment: Experiment) -> None:
    """Raise `InputError` here for what cannot be initialized or run.

    Nothing is computed, and no work directory exists yet.
    """
    state = jax.eval_shape(experiment.init_state)
    tasks = tasks_per_step(experiment.strategy, experiment.config.train.meta_batch_size)
    devices = max(1, len(experiment.plan.devices))
    share = -(-tasks // devices)
    at_once = min(share, experiment.plan.tasks_per_pass or share)
    task = jax.eval_shape(experiment.sample_task)
    sets = (task.support.x, task.query.x)
    interpolates = experiment.strategy.transform is not None
    if interpolates and experiment.config.interpolation.method == "cutmix":
        jax.eval_shape(cutmix, jax.random.key(0), 0.5, task.support.x)
    if experiment.strategy.augment is not None:
        jax.eval_shape(experiment.strategy.augment, jax.random.key(0), task)
    needed = step_bytes(
        experiment.learner,
        state,
        state.variables,
        sets,
        share,
        at_once,
        interpolates,
    )
    check_memory(needed, max(1, devices // number_of_processes()))


class MethodFacts(NamedTuple):
    """Properties of the data that define a learner and a strategy.

    Attributes:
      setting: `label_sharing`, `non_label_sharing` or `regression`.
      outputs: number of classes per task, or length of a regression target.
      base_groups, base_classes: numbers of groups and classes in the training pool, for
        learners with a head for each of them.
      target_scale: what regression targets were divided by, one number per output;
        empty if they are not standardized.
    """

    setting: str
    outputs: int
    base_groups: int
    base_classes: int
    target_scale: tuple[float, ...] = ()

    @classmethod
    def of(cls, splits: Splits, ways: int) -> MethodFacts:
        """Return the facts of a dataset, for tasks of `ways` classes."""
        pool = splits.train
        groups = int(np.size(pool.count))
        if isinstance(pool, RegressionPool):
            scale = () if splits.inputs is None else splits.inputs.targets.scale
            return cls(splits.setting, pool.y.shape[-1], groups, 0, scale)
        return cls(splits.setting, ways, groups, len(pool.classes))


def make_learner(
    config: Any, facts: MethodFacts, own: OwnParts = OwnParts()
) -> Learner:
    """Build the learner of a config, without data."""
    name, network = config.learner.name, own.network
    if network is None:
        chosen = config.backbone.name
        network = backbones.make(chosen, **_options(config.backbone.get(chosen, {})))
    options = _options(config.learner.get(name, {}))
    if own.adapted is not None:
        options["adapted"] = own.adapted
        if own.example is not None and name in FAMILIES["gradient"]:
            paths = learners.adapted_paths(network, own.example, own.adapted)
            options["adapted"] = paths
    objective = learners.CLASSIFICATION
    if facts.setting == "regression":
        objective = regression_objective(facts.target_scale)
    return learners.make(
        name,
        network.with_compute_dtype(config.train.compute_dtype),
        facts.outputs,
        objective=objective,
        facts={"base_groups": facts.base_groups, "base_classes": facts.base_classes},
        **options,
    )


def _deepest_layer(config: Any, splits: Splits, own: OwnParts) -> int:
    """Return the deepest layer at which a config's learner can interpolate tasks."""
    learner = make_learner(config, MethodFacts.of(splits, config.task.ways), own)
    return learner.deepest_mixing_layer


def make_method(
    config: Any, facts: MethodFacts, own: OwnParts = OwnParts()
) -> tuple[Learner, Strategy]:
    """Build the learner and the strategy of a config, without data."""
    learner = make_learner(config, facts, own)
    names = parse(config.strategy.name)
    check_applicable(config.strategy.name, config.learner.name)
    strategy = strategies.make(
        config.strategy.name,
        setting=strategies.effective_setting(facts.setting, learner),
        interpolation=_options(config.interpolation),
        options={name: _options(config.strategy.get(name, {})) for name in names},
    )
    check_layers(learner, strategy)
    tasks_per_step(strategy, config.train.meta_batch_size)
    return learner, strategy


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config section as keyword arguments, without fields that are None."""
    return {name: value for name, value in section.items() if value is not None}


def checksum(pool: Pool) -> int:
    """Return the CRC-32 of all arrays of a pool.

    Records are not read, since they may be large: what identifies them takes the place
    of their content.
    """
    value = 0
    for leaf in jax.tree.leaves(pool):
        content = leaf.identity() if isinstance(leaf, Records) else leaf
        value = zlib.crc32(np.ascontiguousarray(content), value)  # type: ignore[arg-type]
    return value


def _fit_to_builtin(episode: Episode, splits: Splits) -> tuple[Episode, list[str]]:
    """Lower the test queries to the number of built-in images."""
    if splits.images_per_class is None or episode.queries is None:
        return episode, []
    left = splits.images_per_class - episode.shots
    if left < 1 or episode.queries <= left:
        return episode, []
    note = (
        f"eval.queries lowered from {episode.queries} to {left}: the built-in images "
        f"have {splits.images_per_class} per class"
    )
    return episode._replace(queries=left), [note]


def _check_numbers(section: Any, path: str) -> None:
    """Raise `InputError` if a number in any field is not finite, or out of range."""
    for name, value in section.items():
        field = f"{path}.{name}"
        if hasattr(value, "items"):
            _check_numbers(value, field)
            continue
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise InputError(f"{field} must be finite, got {number}")
            if isinstance(number, int) and not -_LARGEST <= number <= _LARGEST:
                raise InputError(f"{field} must be at most {_LARGEST}, got {number}")


def _check_config(config: Any) -> None:
    _check_numbers(config, "config")
    check_precision(config.train.precision)
    positive = {
        "train.steps": config.train.steps,
        "train.meta_batch_size": config.train.meta_batch_size,
        "train.learning_rate": config.train.learning_rate,
        "train.log_every": config.train.log_every,
        "train.checkpoint_every": config.train.checkpoint_every,
        "eval.every": config.eval.every,
        "eval.tasks_per_pass": config.eval.tasks_per_pass,
    }
    for name, value in positive.items():
        if not value > 0:
            raise InputError(f"config.{name} must be positive, got {value}")
    if not 0 <= config.train.ema < 1:
        raise InputError(
            f"config.train.ema is {config.train.ema}; expected a decay from 0 (no "
            "average) to below 1, such as 0.999"
        )
    if config.train.patience is not None:
        check_range("config.train.patience", config.train.patience, 10**7)
    for name in ("num_tasks", "validation_tasks"):
        # At least 2, for an interval.
        check_range(f"config.eval.{name}", config.eval[name], 10**7, smallest=2)
    for name, seed in (("seed", config.seed), ("eval.seed", config.eval.seed)):
        if not 0 <= seed < 2**32:
            raise InputError(f"config.{name} must be from 0 to 2^32 - 1, got {seed}")
