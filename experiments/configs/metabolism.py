r"""Metabolism: 2-way 5-shot, CYP enzymes and drugs; each task in one data set (D.1).

Accuracy in % with 5 training sets, from the paper:

             vanilla    MLTI
    MAML       57.22   60.28
    ProtoNet   61.06   63.47

Training takes about 1 minute on two CPU cores:

    python -m mlti_jax.data.prepare --dataset=metabolism --raw=DIR
    python -m experiments.run --workdir=/tmp/metabolism_maml_mlti \
        --config=experiments/configs/metabolism.py:learner=maml,strategy=mlti

A fifth to three quarters of the test molecules also occur in the paper's training sets;
`:split=disjoint` trains without them, on the same test tasks (and on three training
sets, since almost nothing is left of the two of substrates). The dataset has no
validation tasks: the last checkpoint is tested. The released code trains 20,000 steps.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="maml", strategy="mlti", shots=5, split="paper")
    config = base_config()

    config.dataset = {
        "name": "metabolism",
        "split": choice.split,  # paper | disjoint: no test molecule in training
        "train_classes": placeholder(int),  # training sets; None: all
        "molecules_per_assay": 1000,
        "fingerprint": "morgan",  # or path
        "seed": 0,
        "pool": "auto",  # device | host | stream: where the samples are
    }
    config.task.ways = 2
    config.task.shots = choice.shots
    config.task.queries = 10

    config.backbone.name = "mlp"
    config.backbone.mlp.hidden = (500, 500)
    config.learner.name = choice.learner

    config.strategy.name = choice.strategy
    config.interpolation.method = "mixup"
    config.interpolation.layers = (0, 1)
    set_alpha(config, 0.5)

    config.train.steps = 10_000
    config.train.meta_batch_size = 4
    config.train.learning_rate = 1e-3

    config.eval.queries = 10
    config.eval.num_tasks = 600
    config.lock()
    return config
