"""NCI: 2-way 5-shot, whether a molecule is active; each task in one assay (D.1).

Paper, accuracy in % (6 training assays): MAML 77.09 vanilla, 79.14 MLTI; ProtoNet
74.84 vanilla, 76.90 MLTI.

    python -m mlti_jax.data.prepare --dataset=nci --raw=DIR
    python -m experiments.run --workdir=/tmp/nci_maml_mlti \
        --config=experiments/configs/nci.py:learner=maml,strategy=mlti

A third to two fifths of the test molecules also stand in the paper's training sets;
`:split=disjoint` trains without them, on the same test tasks. There are no validation
tasks: the last checkpoint is reported. The released code trains 50,000 steps and uses
all molecules of the test assays.
"""

from experiments.config import molecule_config


def get_config(arg: str = ""):
    config = molecule_config("nci", arg, gradient_alpha=2.0, metric_alpha=0.5)
    config.lock()
    return config
