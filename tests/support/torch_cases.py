"""Small cases for tests of the benchmark's PyTorch sides."""

from dataclasses import replace

import numpy as np

from experiments.benchmark.cases import BIO, POSE, RAINBOW
from experiments.benchmark.torch.case import IMPLEMENTED

SMALL = {
    "filters": 4,
    "hidden": (8, 7),
    "block_filters": (3, 4, 4, 5),
    "width": 0.06,
    "tasks": 3,
    "inner_steps": 2,
    "inner_lr": 0.1,
}
IMAGES = replace(RAINBOW, image_shape=(16, 16, 3), ways=4, **SMALL)
BASES = {
    "conv4": IMAGES,
    "mlp": replace(BIO, image_shape=(9,), **SMALL),
    "resnet12": replace(IMAGES, backbone="resnet12"),
    "pose": replace(POSE, image_shape=(32, 32, 1), shots=4, queries=5, **SMALL),
}
NAMES = [
    *((learner, net) for net in ("conv4", "mlp") for learner in IMPLEMENTED["learner"]),
    *(("maml", "resnet12"), ("protonet", "resnet12"), ("maml", "pose")),
]


def make_case(learner, backbone, **changes):
    """A small case."""
    return replace(BASES[backbone], learner=learner, **changes)


def pool_of(case):
    """Random samples, and the rows of each group."""
    shared = case.setting == "label_sharing"
    groups = (5, case.ways, 20) if shared else (6, 20)
    index = np.arange(np.prod(groups)).reshape(groups)
    shape = (index.size, *case.image_shape)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), index
