r"""ISIC: 2-way 1- or 5-shot, skin lesions, 4 training and 3 test classes (E.1).

Accuracy in % with 1 and 5 shots, from the paper:

                 vanilla           MLTI
    MAML       57.59  65.24    61.79  70.69
    ProtoNet   58.56  66.25    62.82  71.52

    python -m mlti_jax.data.prepare --dataset=isic --raw=DIR
    python -m experiments.run --workdir=/tmp/isic_maml_mlti \
        --config=experiments/configs/isic.py:learner=maml,strategy=mlti,shots=1

The dataset has no validation classes: the last checkpoint is tested. At test all
remaining images are queries, as in the released code, which trains 30,000 steps with 1
shot and 15,000 with 5.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="maml", strategy="mlti", shots=1, test_on="")
    config = base_config()

    config.dataset = {
        "name": "isic",
        "train_classes": 4,
        "test_on": placeholder(str),  # another dataset: cross-domain adaptation
        "missing_classes": "refuse",  # or "skip": use the classes that are there
        "min_images": 1,  # smaller classes are left out, also those of `test_on`
        "pool": "auto",  # device | host | stream: where the samples are
        "workers": 0,  # processes that read a stream; 0: threads
    }
    if choice.test_on:
        config.dataset.test_on = choice.test_on
    config.task.ways = 2
    config.task.shots = choice.shots
    config.task.queries = 15

    config.backbone.name = "conv4"
    config.backbone.conv4.filters = 32
    config.learner.name = choice.learner

    config.strategy.name = choice.strategy
    config.interpolation.method = "cutmix"
    config.interpolation.layers = (0,)
    # A task mixed with itself: its query set only
    config.strategy.mlti.within = "query"
    config.strategy.intra.within = "query"
    set_alpha(config, 2.0)

    config.train.steps = 50_000
    config.train.meta_batch_size = 4
    config.train.learning_rate = 1e-3

    # None: all remaining images; on another dataset these may be thousands
    config.eval.queries = 15 if choice.test_on else None
    config.eval.num_tasks = 600
    config.lock()
    return config
