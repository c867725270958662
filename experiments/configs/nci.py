r"""NCI: 2-way 5-shot, whether a molecule is active; each task in one assay (D.1).

Accuracy in % with 6 training assays, from the paper:

             vanilla    MLTI
    MAML       77.09   79.14
    ProtoNet   74.84   76.90

Training takes about 1 minute on two CPU cores:

    python -m mlti_jax.data.prepare --dataset=nci --raw=DIR
    python -m experiments.run --workdir=/tmp/nci_maml_mlti \
        --config=experiments/configs/nci.py:learner=maml,strategy=mlti

A third to two fifths of the test molecules also occur in the paper's training sets;
`:split=disjoint` trains without them, on the same test tasks. The dataset has no
validation tasks: the last checkpoint is tested. The released code trains 50,000 steps,
with the first 500 molecules of each class, and tests on all molecules:
`--config.dataset.draw=first`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import METRIC_BASED, parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="maml", strategy="mlti", shots=5, split="paper")
    config = base_config()

    config.dataset = {
        "name": "nci",
        "split": choice.split,  # paper | disjoint: no test molecule in training
        "train_classes": placeholder(int),  # training assays; None: all
        "molecules_per_assay": 1000,
        "fingerprint": "morgan",  # or path
        "seed": 0,
        "draw": "random",  # or first: first 500 of each class; test on all molecules
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
    set_alpha(config, 0.5 if choice.learner in METRIC_BASED else 2.0)

    config.train.steps = 10_000
    config.train.meta_batch_size = 4
    config.train.learning_rate = 1e-3

    config.eval.queries = 10
    config.eval.num_tasks = 600
    config.lock()
    return config
