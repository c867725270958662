r"""Pose: 15-shot regression of an object's angle, each task one object (D.1).

Mean squared error with 50 training objects, from the paper:

             vanilla    MLTI
    MAML       2.383   1.976

Training takes about 10 hours on two CPU cores:

    python -m mlti_jax.data.prepare --dataset=pose --raw=DIR
    python -m experiments.run --workdir=/tmp/pose_maml_mlti \
        --config=experiments/configs/pose.py:learner=maml,strategy=mlti

The dataset has no validation objects: the last checkpoint is tested. The network is
that of Yin et al. Tasks are interpolated at the input or after any layer that is not
adapted.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="maml", strategy="mlti", shots=15)
    config = base_config()

    config.dataset = {
        "name": "pose",
        "train_classes": placeholder(int),  # training objects; None: all
        "pool": "auto",  # device | host | stream: where the samples are
        "workers": 0,  # processes that read a stream; 0: threads
    }
    config.task.ways = 1
    config.task.shots = choice.shots
    config.task.queries = 15

    config.backbone.name = "pose"
    config.learner.name = choice.learner
    # The four adaptive blocks and the head
    for learner in ("maml", "metasgd", "meta_curvature"):
        config.learner[learner].adapted_layers = (-5, -4, -3, -2, -1)

    config.strategy.name = choice.strategy
    config.interpolation.method = "mixup"
    config.interpolation.layers = (0, 1, 2, 3, 4)
    # Beta(0.1, 0.1) between two tasks, Beta(0.5, 0.5) within one
    set_alpha(config, 0.1)
    config.strategy.mlti.alpha_intra = 0.5
    config.strategy.intra.alpha = 0.5
    config.strategy.metamix.alpha = 0.5
    config.strategy.maxup.alpha = 0.5
    config.strategy.metaaug.period = 10.0  # targets are 10 x the fraction of a turn
    config.strategy.taml.measure = "theil"  # entropy needs classes

    config.train.steps = 10_000
    config.train.meta_batch_size = 10
    config.train.learning_rate = 1e-3

    config.eval.queries = 15
    config.eval.num_tasks = 600
    config.lock()
    return config
