"""Tabular Murris: 5-way 1- or 5-shot, types of cells from the genes they express (E.1).

Paper, accuracy in %, 1 and 5 shots: MAML 79.08 and 88.55 vanilla, 81.73 and 91.08 MLTI;
ProtoNet 80.03 and 89.20 vanilla, 81.89 and 90.12 MLTI.

    python -m mlti_jax.data.prepare --dataset=tabula_muris --raw=DIR
    python -m experiments.run --workdir=/tmp/cells_maml_mlti \
        --config=experiments/configs/tabula_muris.py:learner=maml,strategy=mlti,shots=1

The released code trains 5,000 steps with 1 shot, 2,000 with 5, mixes after the first
block only, and uses Beta(2, 2) also for ProtoNet.
"""

from ml_collections.config_dict import placeholder

from experiments.config import paper_config


def get_config(arg: str = ""):
    config, _ = paper_config(arg, shots=1, metric_alpha=0.5)
    config.dataset = {
        "name": "tabula_muris",
        "train_classes": placeholder(int),  # training cell types; None: all
    }
    config.backbone.name = "mlp"
    config.backbone.mlp = {"hidden": (64, 64), "slope": 0.0, "dropout": 0.2}
    config.interpolation = {"method": "mixup", "layers": (0, 1)}
    config.train.steps = 10_000
    config.lock()
    return config
