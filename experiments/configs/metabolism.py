"""Metabolism: 2-way 5-shot, CYP enzymes and drugs; each task in one data set (D.1).

Paper, accuracy in % (5 training sets): MAML 57.22 vanilla, 60.28 MLTI; ProtoNet 61.06
vanilla, 63.47 MLTI.

    python -m mlti_jax.data.prepare --dataset=metabolism --raw=DIR
    python -m experiments.run --workdir=/tmp/metabolism_maml_mlti \
        --config=experiments/configs/metabolism.py:learner=maml,strategy=mlti

A fifth to three quarters of the test molecules also stand in the paper's training
sets; `:split=disjoint` trains without them, on the same test tasks (and on three
training sets, since next to nothing is left of the two of substrates). There are no
validation tasks: the last checkpoint is reported. The released code trains 20,000
steps.
"""

from experiments.config import molecule_config


def get_config(arg: str = ""):
    config = molecule_config("metabolism", arg, gradient_alpha=0.5, metric_alpha=0.5)
    config.lock()
    return config
