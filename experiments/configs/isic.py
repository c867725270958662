"""ISIC: 2-way 1- or 5-shot, skin lesions, 4 training and 3 test classes (E.1).

Paper, accuracy in %, 1 and 5 shots: MAML 57.59 and 65.24 vanilla, 61.79 and 70.69 MLTI;
ProtoNet 58.56 and 66.25 vanilla, 62.82 and 71.52 MLTI.

    python -m mlti_jax.data.prepare --dataset=isic --raw=DIR
    python -m experiments.run --workdir=/tmp/isic_maml_mlti \
        --config=experiments/configs/isic.py:learner=maml,strategy=mlti,shots=1

There are no validation classes: the last checkpoint is reported. At test all images
that are left are queries, as in the released code, which trains 30,000 steps with 1
shot, 15,000 with 5.
"""

from experiments.config import image_config


def get_config(arg: str = ""):
    config = image_config("isic", arg, ways=2, train_classes=4, eval_queries=None)
    config.lock()
    return config
