"""miniImagenet-S: 5-way 1- or 5-shot, 12 of the 64 training classes (E.1).

Paper, accuracy in %, 1 and 5 shots: MAML 38.27 and 52.14 vanilla, 41.58 and 55.22 MLTI;
ProtoNet 36.26 and 50.72 vanilla, 41.36 and 55.34 MLTI.

    python -m mlti_jax.data.prepare --dataset=mini_imagenet --raw=DIR
    python -m experiments.run --workdir=/tmp/mini_maml_mlti \
        --config=experiments/configs/mini_imagenet.py:learner=maml,strategy=mlti,shots=1

`--config.dataset.train_classes=64` is full miniImagenet, 8 the extremely limited one,
others follow the paper's sequence. `:test_on=dermnet` tests on DermNet-S
(cross-domain). The released code trains 50,000 steps with 1 shot, 20,000 with 5.
"""

from experiments.config import image_config


def get_config(arg: str = ""):
    config = image_config("mini_imagenet", arg, ways=5, train_classes=12)
    config.lock()
    return config
