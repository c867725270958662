r"""Vanilla and MLTI side by side, on real images that come with the install.

ProtoNet on RainbowMNIST, 10-way 1-shot: the paper's 16 training combinations of color,
size and angle, tested on 10 others, with 8 images per class and combination instead of
100. Takes about 4 minutes on two CPU cores:

    python -m experiments.run --config=experiments/configs/quickstart.py \
        --workdir=/tmp/quickstart
"""

from ml_collections import ConfigDict

from experiments.config import set_alpha
from mlti_jax.training import base_config


def get_config() -> ConfigDict:
    config = base_config()
    config.compare = ("vanilla", "mlti")  # instead of strategy.name

    config.dataset = {
        "name": "rainbow_mnist",
        "source": "builtin",
        "images_per_class": 20,  # 8 in the built-in images
        "train_classes": 16,
        "pool": "auto",  # device | host | stream: where the samples are
    }
    config.task.ways = 10
    config.task.shots = 1
    config.task.queries = 1

    config.backbone.name = "conv4"
    config.learner.name = "protonet"
    config.learner.protonet.norm = "batch"
    config.learner.matchingnet.norm = "batch"

    config.interpolation.method = "cutmix"
    config.interpolation.layers = (0,)
    set_alpha(config, 2.0)

    config.train.steps = 1500
    config.train.meta_batch_size = 4
    config.train.learning_rate = 1e-3

    config.eval.queries = 7
    config.eval.num_tasks = 600
    config.eval.every = 250
    config.lock()
    return config
