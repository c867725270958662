r"""Tabular Murris: 5-way 1- or 5-shot, types of cells from gene expression (E.1).

Accuracy in % with 1 and 5 shots, from the paper:

                 vanilla           MLTI
    MAML       79.08  88.55    81.73  91.08
    ProtoNet   80.03  89.20    81.89  90.12

Training takes about 1 minute on two CPU cores:

    python -m mlti_jax.data.prepare --dataset=tabula_muris --raw=DIR
    python -m experiments.run --workdir=/tmp/cells_maml_mlti \
        --config=experiments/configs/tabula_muris.py:learner=maml,strategy=mlti,shots=1

The released code trains 5,000 steps with 1 shot and 2,000 with 5, interpolates after
the first block only, and uses Beta(2, 2) also for ProtoNet.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import METRIC_BASED, parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="maml", strategy="mlti", shots=1)
    config = base_config()

    config.dataset = {
        "name": "tabula_muris",
        "train_classes": placeholder(int),  # training cell types; None: all
        "pool": "auto",  # device | host | stream: where the samples are
        "workers": 0,  # processes that read a stream; 0: threads
    }
    config.task.ways = 5
    config.task.shots = choice.shots
    config.task.queries = 15

    config.backbone.name = "mlp"
    config.backbone.mlp = {"hidden": (64, 64), "slope": 0.0, "dropout": 0.2}
    config.learner.name = choice.learner

    config.strategy.name = choice.strategy
    config.interpolation.method = "mixup"
    config.interpolation.layers = (0, 1)
    set_alpha(config, 0.5 if choice.learner in METRIC_BASED else 2.0)

    config.train.steps = 10_000
    config.train.meta_batch_size = 4
    config.train.learning_rate = 1e-3

    config.eval.queries = 15
    config.eval.num_tasks = 600
    config.lock()
    return config
