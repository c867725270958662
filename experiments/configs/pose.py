"""Pose: 15-shot regression of an object's angle, each task one object (D.1).

Paper, MSE (50 training objects): MAML 2.383 vanilla, 1.976 MLTI.

    python -m mlti_jax.data.prepare --dataset=pose --raw=DIR
    python -m experiments.run --workdir=/tmp/pose_maml_mlti \
        --config=experiments/configs/pose.py:learner=maml,strategy=mlti

There are no validation objects: the last checkpoint is reported. The network is Yin
et al.'s; interpolation at the input or after any layer that is not adapted.
"""

from ml_collections.config_dict import placeholder

from experiments.config import paper_config
from mlti_jax.backbones._pose import ADAPTED_LAYERS


def get_config(arg: str = ""):
    config, _ = paper_config(arg, shots=15, gradient_alpha=0.1)
    config.dataset = {
        "name": "pose",
        "train_classes": placeholder(int),  # training objects; None: all
    }
    config.strategy.mlti.alpha_intra = 0.5
    for name in ("intra", "metamix", "maxup"):
        config.strategy[name].alpha = 0.5
    config.strategy.metaaug.period = 10.0  # targets are ten times the share of a turn
    config.strategy.taml.measure = "theil"  # entropy needs classes
    config.backbone.name = "pose"
    for learner in ("maml", "metasgd", "meta_curvature"):
        config.learner[learner].adapted_layers = ADAPTED_LAYERS
    config.interpolation = {"method": "mixup", "layers": (0, 1, 2, 3, 4)}
    config.task.ways = 1
    config.task.queries = 15
    config.train.steps = 10_000
    config.train.meta_batch_size = 10
    config.eval.queries = 15
    config.lock()
    return config
