"""The training steps that the benchmark times, by name.

A name is `learner_network_strategy`, as in `maml_conv4_28_1q_mlti`. The network part
includes the image size and the task size: `1q` and `15q` are queries per class, `1s`
and `5s` shots.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from mlti_jax import backbones, learners, strategies
from mlti_jax._internal.checks import unknown_name
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies._objective import check_layers
from mlti_jax.strategies._registry import check_applicable


@dataclass(frozen=True)
class Case:
    """A training step, for our implementation and for PyTorch's.

    Attributes:
      learner: name of the learner.
      backbone: name of the network.
      setting: label_sharing, non_label_sharing or regression.
      image_shape: shape of one input, `(height, width, channels)`, `(features,)`, or
        `(tokens,)` for text.
      pool: shape of the pool to draw from: `(domains, classes, samples)` if labels are
        shared, else `(groups, samples)`, where a group is a class or, for regression,
        an object.
      ways, shots, queries: size of a task.
      interpolation: method of strategies that mix samples; None for vanilla.
      strategy: name of the strategy.
      layers: that the interpolation layer is drawn from; 0 is the input.
      first_adapted: first layer of the inner loop (ANIL adapts the head only).
      filters: of `conv4`.
      hidden, slope, dropout: of `mlp`.
      block_filters: of `resnet12`, one per block.
      width: of `pose`.
      albert: sizes of `albert`, as pairs of name and value; others have their defaults.
      tasks: per meta-batch.
      inner_steps, inner_lr: of the inner loop.
      outer_lr: learning rate of Adam.
      alpha: of the Beta distribution of lambda.
      remat: whether the inner loop recomputes intermediates to save memory.
      compute_dtype: dtype in which the network computes.
    """

    learner: str
    backbone: str
    setting: str
    image_shape: tuple[int, ...]
    pool: tuple[int, ...]
    ways: int
    shots: int
    queries: int
    interpolation: str | None
    strategy: str = "mlti"
    layers: tuple[int, ...] = (0,)
    first_adapted: int = 3
    filters: int = 32
    hidden: tuple[int, ...] = (500, 500)
    slope: float = 0.01
    dropout: float = 0.0
    block_filters: tuple[int, ...] = (64, 160, 320, 640)
    width: float = 1.0
    albert: tuple[tuple[str, int], ...] = ()
    tasks: int = 4
    inner_steps: int = 5
    inner_lr: float = 0.01
    outer_lr: float = 1e-3
    alpha: float = 2.0
    remat: bool = False
    compute_dtype: str = "float32"

    @property
    def adapts(self) -> bool:
        """Whether the learner has an inner loop."""
        return self.learner in FAMILIES["gradient"]

    @property
    def is_text(self) -> bool:
        """Whether samples are sequences of tokens."""
        return self.backbone in ("albert", "word_mean")


# Pools have the size of the paper's training sets; the cells' pool a fifth of it.
RAINBOW = Case(
    "maml",
    "conv4",
    "label_sharing",
    (28, 28, 3),
    pool=(16, 10, 20),
    ways=10,
    shots=1,
    queries=1,
    interpolation="cutmix",
)
MINI = replace(
    RAINBOW,
    setting="non_label_sharing",
    image_shape=(84, 84, 3),
    pool=(12, 600),
    ways=5,
    queries=15,
)
BIO = Case(
    "maml",
    "mlp",
    "label_sharing",
    (1024,),
    pool=(6, 2, 500),
    ways=2,
    shots=5,
    queries=10,
    interpolation="mixup",
    layers=(0, 1),
    first_adapted=1,
)
CELL = replace(
    BIO,
    setting="non_label_sharing",
    image_shape=(2866,),
    pool=(57, 200),
    ways=5,
    shots=1,
    queries=15,
    hidden=(64, 64),
    slope=0.0,
    dropout=0.2,
)
POSE = Case(
    "maml",
    "pose",
    "regression",
    (128, 128, 1),
    pool=(50, 100),
    ways=1,
    shots=15,
    queries=15,
    interpolation="mixup",
    layers=(0, 1, 2, 3, 4),
    first_adapted=4,
    tasks=10,
    alpha=0.1,
)
# Without a side in PyTorch; compiled for accelerators only, see `tpu`.
TEXT = Case(
    "maml",
    "word_mean",
    "non_label_sharing",
    (32,),
    pool=(25, 900),
    ways=5,
    shots=1,
    queries=5,
    interpolation="mixup",
    layers=(1,),
    hidden=(256,),
    first_adapted=1,
)
ALBERT = replace(TEXT, backbone="albert", first_adapted=14)
NETWORKS = {
    "conv4_28_1q": RAINBOW,
    "conv4_28_15q": replace(RAINBOW, queries=15),
    "conv4_84_1s": MINI,
    "conv4_84_5s": replace(MINI, shots=5),
    "bio": BIO,
    "cell": CELL,
    "resnet12_28_1q": replace(RAINBOW, backbone="resnet12"),
    "pose": POSE,
}
TWO_NETWORKS = ("conv4_28_1q", "bio")
LEARNERS = {
    "maml": tuple(NETWORKS),
    "protonet": tuple(name for name in NETWORKS if name != "pose"),
    "anil": TWO_NETWORKS,
    "metasgd": TWO_NETWORKS,
    "meta_curvature": TWO_NETWORKS,
    "matchingnet": TWO_NETWORKS,
}


def vanilla(case: Case) -> Case:
    """The same step without interpolation."""
    return replace(case, interpolation=None, layers=(0,))


def _all_cases() -> dict[str, Case]:
    cases = {}
    for learner, networks in LEARNERS.items():
        for network in networks:
            case = replace(NETWORKS[network], learner=learner)
            cases[f"{learner}_{network}_vanilla"] = vanilla(case)
            cases[f"{learner}_{network}_mlti"] = case
    return cases


ALL_CASES = _all_cases()
QUICK = (
    "maml_conv4_28_1q_mlti",
    "maml_conv4_84_1s_mlti",
    "maml_bio_mlti",
    "protonet_conv4_28_1q_mlti",
    "protonet_conv4_28_15q_mlti",
    "protonet_conv4_84_1s_mlti",
    "protonet_bio_mlti",
    "protonet_cell_mlti",
)


def find(name: str) -> Case:
    """Look up a case by name; raise `InputError` if it is unknown."""
    if name not in ALL_CASES:
        raise unknown_name("case", name, ALL_CASES)
    return ALL_CASES[name]


@functools.lru_cache(maxsize=1)  # all sides of a case share the pool
def make_pool(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Generate random samples with the size of the real data.

    Returns:
      `x [M, ...]`, float32 for cells and uint8 otherwise, and the `index` of the rows
      of each group, of shape `case.pool`.
    """
    rng = np.random.default_rng(seed)
    index = np.arange(np.prod(case.pool)).reshape(case.pool)
    shape = (index.size, *case.image_shape)
    if case.backbone == "mlp" and case.setting == "non_label_sharing":
        return rng.random(shape, np.float32), index
    return rng.integers(0, 256, shape, dtype=np.uint8), index


def make_learner(case: Case) -> learners.Learner:
    """Build our learner of a case."""
    metric = case.learner in FAMILIES["metric"]
    size = {
        "conv4": {"filters": case.filters},
        "mlp": {"hidden": case.hidden, "slope": case.slope, "dropout": case.dropout},
        "resnet12": {"filters": case.block_filters},
        "pose": {"width": case.width},
        # As in the config of Huffpost.
        "word_mean": {"hidden": case.hidden, "norm": not metric},
        "albert": dict(case.albert),
    }[case.backbone]
    network = backbones.make(case.backbone, **size)
    network = network.with_compute_dtype(case.compute_dtype)
    options = {}
    if case.setting == "regression":
        options["objective"] = learners.REGRESSION
    if case.adapts:
        options["inner_learning_rate"] = case.inner_lr
        options["steps"] = case.inner_steps
        options["remat"] = case.remat
        if case.learner != "anil":  # ANIL adapts the head only
            options["adapted_layers"] = range(case.first_adapted, len(network) + 1)
    groups = math.prod(case.pool[:-1])
    shared = case.setting == "label_sharing"
    facts = {"base_groups": groups, "base_classes": case.ways if shared else groups}
    return learners.make(case.learner, network, case.ways, facts=facts, **options)


def make_strategy(case: Case, learner: learners.Learner) -> strategies.Strategy:
    """Build our strategy of a case.

    Raises:
      InputError: if the strategy does not apply to the learner.
    """
    name = case.strategy if case.interpolation else "vanilla"
    check_applicable(name, case.learner)
    mixing = ("mlti", "intra", "cross", "metamix", "maxup")
    options = {name: {"alpha": case.alpha} for name in mixing}
    if case.setting == "regression":  # TAML's default measure needs classes.
        options["taml"] = {"measure": "theil"}
    strategy = strategies.make(
        name,
        setting=strategies.effective_setting(case.setting, learner),
        interpolation={"method": case.interpolation, "layers": case.layers},
        options=options,
    )
    check_layers(learner, strategy)
    return strategy
