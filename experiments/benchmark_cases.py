"""The training steps that the benchmark times, and our side of them, compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax import backbones, learners, strategies
from mlti_jax.data import ClassPool, DomainPool, Pool, RegressionPool
from mlti_jax.training import Episode, adam, init_state, make_run_steps

# Hyper-parameters of a strategy by its name, where they are not to be its defaults.
STRATEGY_OPTIONS: dict[str, dict[str, object]] = {}


@dataclass(frozen=True)
class Case:
    """A training step; the names are those that `torch_steps` reads.

    Attributes:
      interpolation: the method of strategies that mix samples; None: vanilla.
      filters: of `conv4`.
      hidden: of `mlp`.
      block_filters: of `resnet12`, each block.
      width: of `pose`.
    """

    learner: str
    backbone: str
    setting: str
    image_shape: tuple[int, ...]
    ways: int
    shots: int
    queries: int
    interpolation: str | None
    strategy: str = "mlti"
    layers: tuple[int, ...] = (0,)
    first_adapted: int = 3
    filters: int = 32
    hidden: tuple[int, ...] = (500, 500)
    block_filters: tuple[int, ...] = (64, 160, 320, 640)
    width: float = 1.0
    tasks: int = 4
    inner_steps: int = 5
    inner_lr: float = 0.01
    outer_lr: float = 1e-3
    alpha: float = 2.0


RAINBOW = Case(
    "maml", "conv4", "label_sharing", (28, 28, 3), 10, 1, 1, interpolation="cutmix"
)
MINI = replace(
    RAINBOW, setting="non_label_sharing", image_shape=(84, 84, 3), ways=5, queries=15
)
BIO = Case(
    "maml",
    "mlp",
    "label_sharing",
    (1024,),
    ways=2,
    shots=5,
    queries=10,
    interpolation="mixup",
    layers=(0, 1),
    first_adapted=1,
)
POSE = Case(
    "maml",
    "pose",
    "regression",
    (128, 128, 1),
    ways=1,
    shots=15,
    queries=15,
    interpolation="mixup",
    layers=(0, 1, 2, 3, 4),
    first_adapted=4,
    tasks=10,
    alpha=0.1,
)
ALL_CASES = {
    "maml_28": RAINBOW,
    "maml_84": MINI,
    "maml_bio": BIO,
    "protonet_28": replace(RAINBOW, learner="protonet"),
    "protonet_28_15q": replace(RAINBOW, learner="protonet", queries=15),
    "protonet_84": replace(MINI, learner="protonet"),
    "protonet_bio": replace(BIO, learner="protonet"),
}


def make_pool(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random samples of the size of the real data, and the rows of each class.

    Returns:
      `x` uint8 `[M, ...]` and `index` `[16, C, 20]` (label-sharing), `[12, 600]`
      (non-label-sharing) or `[50, 100]` (regression: objects for classes).
    """
    groups = {
        "label_sharing": (16, case.ways, 20),
        "non_label_sharing": (12, 600),
        "regression": (50, 100),
    }[case.setting]
    rng = np.random.default_rng(seed)
    index = np.arange(np.prod(groups)).reshape(groups)
    x = rng.integers(0, 256, (index.size, *case.image_shape), dtype=np.uint8)
    return x, index


def make_learner(case: Case) -> learners.Learner:
    """Our learner of a case."""
    size = {
        "conv4": {"filters": case.filters},
        "mlp": {"hidden": case.hidden},
        "resnet12": {"filters": case.block_filters},
        "pose": {"width": case.width},
    }[case.backbone]
    network = backbones.make(case.backbone, **size)
    options = {}
    if case.setting == "regression":
        options["objective"] = learners.REGRESSION
    if case.learner not in learners.FAMILIES["metric"]:
        options["inner_learning_rate"] = case.inner_lr
        options["steps"] = case.inner_steps
        if case.learner != "anil":  # which adapts the head, by definition
            options["adapted_layers"] = range(case.first_adapted, len(network) + 1)
    return learners.make(case.learner, network, case.ways, **options)


def make_strategy(case: Case, learner: learners.Learner) -> strategies.Strategy:
    """Our strategy of a case; `InputError` if it does not go with the learner."""
    name = case.strategy if case.interpolation else "vanilla"
    strategies.check_applicable(strategies.parse(name), case.learner, learner.family)
    form, labels = strategies.form_and_labels(case.setting, learner)
    mixing = ("mlti", "intra", "cross", "metamix", "maxup")
    alphas = {name: {"alpha": case.alpha} for name in mixing}
    strategy = strategies.make(
        name,
        interpolation={
            "form": form,
            "method": case.interpolation,
            "layers": case.layers,
        },
        labels=labels,
        options={**alphas, **STRATEGY_OPTIONS},
    )
    strategies.check_layers(learner, strategy)
    return strategy


class Program(NamedTuple):
    """Our side of a case, compiled.

    Attributes:
      steps: runs so many training steps and waits for the last.
      compile_s: how long tracing and compiling took.
      memory: in bytes, see `memory_of`.
    """

    steps: Callable[[int], None]
    compile_s: float
    memory: dict[str, int]


def compile_case(case: Case) -> Program:
    """Builds our side of a case: one program, compiled once, for any number of steps.

    The compiled program itself is called, not the jitted function, which would compile
    it again.
    """
    pool = _on_device(case)
    learner = make_learner(case)
    strategy = make_strategy(case, learner)
    optimiser = adam(case.outer_lr)
    episode = Episode(case.ways, case.shots, case.queries)
    run = make_run_steps(learner, strategy, optimiser, episode, case.tasks)
    example = np.zeros((2, *case.image_shape), np.float32)
    state = init_state(learner, strategy, optimiser, jax.random.key(0), example)
    key = jax.random.key(1)
    start = time.perf_counter()
    compiled = run.lower(state, pool, key, 0).compile()
    compile_s = time.perf_counter() - start
    done = 0

    def steps(count: int) -> None:
        nonlocal state, done
        done += count
        state, bad_step = compiled(state, pool, key, done)
        if int(bad_step) >= 0:
            raise FloatingPointError(f"the loss is not finite at step {int(bad_step)}")

    return Program(steps, compile_s, memory_of(compiled))


def memory_of(compiled: jax.stages.Compiled) -> dict[str, int]:
    """What XLA says that a program needs at its peak, in bytes.

    Counted are the arguments (parameters, the optimiser's state and the whole pool),
    the outputs, unless they take the place of donated arguments, and all temporaries,
    whose buffers XLA lets share memory where they do not live at the same time. Not
    counted are the program's code, and what a library allocates inside one call: on CPU
    XLA hands matrix products to one together with what stands around them, and what is
    computed and used up within such a call is not seen here.

    Returns:
      `peak`, and of it `arguments` and `temporary`.
    """
    sizes = compiled.memory_analysis()
    arguments, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    new_outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return {
        "peak": arguments + temporary + new_outputs,
        "arguments": arguments,
        "temporary": temporary,
    }


def _on_device(case: Case) -> Pool:
    """The pool of a case as a learner takes it."""
    x, index = make_pool(case)
    arrays = {
        "x": jnp.asarray(x),
        "index": jnp.asarray(index, jnp.int32),
        "count": jnp.full(index.shape[:-1], index.shape[-1], jnp.int32),
    }
    names = tuple(map(str, range(max(index.shape))))
    if case.setting == "regression":
        y = np.random.default_rng(1).uniform(0, 10, (len(x), 1))
        y = jnp.asarray(y, jnp.float32)
        return RegressionPool(**arrays, y=y, domains=names[: len(index)])
    classes = names[: index.shape[-2]]
    if case.setting == "label_sharing":
        return DomainPool(**arrays, classes=classes, domains=names[: len(index)])
    return ClassPool(**arrays, classes=classes)
