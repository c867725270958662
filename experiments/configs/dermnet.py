"""DermNet-S: 5-way 1- or 5-shot, skin diseases, 30 training and 53 test classes (E.1).

Paper, accuracy in %, 1 and 5 shots: MAML 43.47 and 60.56 vanilla, 48.03 and 64.55 MLTI;
ProtoNet 44.21 and 60.33 vanilla, 49.38 and 65.19 MLTI.

    python -m mlti_jax.data.prepare --dataset=dermnet --raw=DIR
    python -m experiments.run --workdir=/tmp/dermnet_maml_mlti \
        --config=experiments/configs/dermnet.py:learner=maml,strategy=mlti,shots=1

`--config.dataset.train_classes=150` is full DermNet, 8 the extremely limited one,
others follow the paper's sequence. `:test_on=mini_imagenet` tests on miniImagenet
(cross-domain). There are no validation classes: the last checkpoint is reported. At
test all images that are left are queries, as in the released code, which trains 50,000
steps with 1 shot, 20,000 with 5, and with Beta(2, 2) also for ProtoNet.
"""

from experiments.config import image_config


def get_config(arg: str = ""):
    config = image_config(
        "dermnet",
        arg,
        ways=5,
        train_classes=30,
        eval_queries=None,
        metric_alpha=0.5,
    )
    config.lock()
    return config
