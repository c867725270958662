"""tieredImageNet-S: 5-way 1- or 5-shot, 35 of the 351 training classes (E.8).

Paper, accuracy in %, 1 and 5 shots: MAML 42.20 and 58.23 vanilla, 44.32 and 62.22 MLTI;
ProtoNet 43.35 and 59.98 vanilla, 45.47 and 62.35 MLTI.

    python -m mlti_jax.data.prepare --dataset=tiered_imagenet --raw=DIR
    python -m experiments.run --workdir=/tmp/tiered_maml_mlti \
        --config=experiments/configs/tiered_imagenet.py:learner=maml,strategy=mlti

The paper does not name its 35 classes; these are the first of Ren et al.'s list. All
else is as for miniImagenet-S.
"""

from experiments.config import image_config


def get_config(arg: str = ""):
    config = image_config("tiered_imagenet", arg, ways=5, train_classes=35)
    config.lock()
    return config
