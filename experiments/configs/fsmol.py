r"""FS-Mol: 2-way, whether a molecule is active; each task in one of many assays.

Not an experiment of the paper: a benchmark of Stanley et al. (2021) whose number of
training tasks ranges from few to thousands. `--config.dataset.train_classes=16` trains
on 16 assays; without it, on all that are large enough. Commands:

    python -m mlti_jax.data.prepare --dataset=fsmol --raw=DIR
    python -m experiments.run --workdir=/tmp/fsmol_protonet_mlti \
        --config=experiments/configs/fsmol.py:learner=protonet,strategy=mlti
    python -m experiments.fsmol --workdir=/tmp/fsmol_protonet_mlti \
        --support=16,32,64,128 --baselines=FS-Mol/baselines

The second command trains, and tests accuracy on tasks with equally many active and
inactive molecules. The third one evaluates as FS-Mol does: delta-AUPRC on stratified
support sets from all 157 test assays, compared with the published results. Models are
chosen on the validation assays. `--config.learner.protonet.distance=mahalanobis` is
similar to the distance of FS-Mol's own prototypical network.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import METRIC_BASED, parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="protonet", strategy="mlti", shots=8)
    config = base_config()

    config.task.ways = 2
    config.task.shots = choice.shots  # per class: support sets of 16 molecules
    config.task.queries = 8

    config.dataset = {
        "name": "fsmol",
        "train_classes": placeholder(int),  # training assays; None: all
        "features": "both",  # fingerprints | descriptors | both
        "fingerprint": "bits",  # or counts
        # Training assays with fewer molecules of a class are left out
        "min_per_class": choice.shots + 8,
        "seed": 0,  # of the order of the training assays
        "pool": "auto",  # device | host: where the samples are
    }

    config.backbone.name = "mlp"
    config.backbone.mlp.hidden = (500, 500)
    config.learner.name = choice.learner

    config.strategy.name = choice.strategy
    config.interpolation.method = "mixup"
    config.interpolation.layers = (0, 1)
    set_alpha(config, 0.5 if choice.learner in METRIC_BASED else 2.0)

    config.train.steps = 10_000
    config.train.meta_batch_size = 16
    config.train.learning_rate = 1e-3

    config.eval.queries = 16
    config.eval.num_tasks = 600
    config.lock()
    return config
