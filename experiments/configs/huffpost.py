"""Huffpost: 5-way 1- or 5-shot, the category of a headline (E.8).

Paper (with ALBERT), accuracy in %, 1 and 5 shots: MAML 39.51 and 50.68 vanilla, 41.06
and 52.53 MLTI; ProtoNet 41.85 and 58.98 vanilla, 42.74 and 61.09 MLTI.

    python -m mlti_jax.data.prepare --dataset=huffpost --raw=DIR
    python -m experiments.run --workdir=/tmp/huffpost_maml_mlti \
        --config=experiments/configs/huffpost.py:learner=maml,strategy=mlti,shots=1

A headline is the set of its words, of the 2,000 commonest in training, and the network
fully connected: a stand-in for ALBERT, with the learning rate of the other vector data.
One task a step, as in the paper; MLTI then draws a second one as its partner.
"""

from experiments.config import paper_config


def get_config(arg: str = ""):
    config, _ = paper_config(arg, shots=1)
    config.dataset = {
        "name": "huffpost",
        "train_classes": 25,
        "features": "bag_of_words",
        "vocabulary": 2000,
    }
    config.backbone = {"name": "mlp", "hidden": (500, 500), "slope": 0.01}
    config.interpolation = {"method": "mixup", "layers": (0, 1)}
    config.task.queries = 5
    config.train.steps = 10_000
    config.train.meta_batch_size = 1
    config.eval.queries = 5
    config.lock()
    return config
