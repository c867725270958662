r"""Your own data: a folder of images, a table, or an .npz file of arrays.

    python -m experiments.run --workdir=/tmp/assays \
        --config=experiments/configs/own_data.py:learner=protonet,strategy=mlti \
        --config.dataset.path=assays.csv --config.dataset.label=active \
        --config.dataset.task=assay --config.dataset.smiles=smiles

`docs/own_data.md` describes the formats. A fifth of the tasks is held out for the test;
name them (`--config.dataset.test=assay_3,assay_7`) or give another fraction. No tasks
are held out for validation, so the last checkpoint is tested, unless
`--config.dataset.validation` is set.

The network (mlp for vectors, conv4 for images), the interpolation (Mixup or CutMix) and
the number of classes per task are chosen from the data unless `backbone.name`,
`interpolation.method` with `interpolation.layers`, or `task.ways` are set. Few tasks
are soon memorized, hence 2,000 steps; with 1,200 molecules in six assays they took a
minute on one CPU core.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import parse_arg, set_alpha
from mlti_jax.training import base_config


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(arg, learner="maml", strategy="mlti", shots=5)
    config = base_config()

    config.dataset = {
        "name": "own_data",
        "path": "",
        # Columns of a table. features: separated by commas; None: all numeric columns
        "label": placeholder(str),
        "task": placeholder(str),  # None: every label is a class to draw from
        "features": placeholder(str),
        "smiles": placeholder(str),  # molecules instead of features
        "fingerprint": placeholder(str),  # morgan or path
        "standardise": placeholder(bool),  # None: tables yes, arrays no
        "standardise_targets": placeholder(bool),  # of regression; None: yes
        "size": placeholder(int),  # that images are scaled to
        "validation": placeholder(str),  # names with commas, or a fraction; None: none
        "test": "0.2",
        "seed": 0,  # of the held-out fractions
        "setting": placeholder(str),  # None: inferred from labels or folders
        "pool": "auto",  # device | host | stream: where the samples are
    }
    config.task = {
        "ways": placeholder(int),  # None: chosen from the data
        "shots": choice.shots,
        "queries": 10,
    }

    config.backbone.name = ""  # chosen from the data, as is the interpolation
    config.learner.name = choice.learner

    config.strategy.name = choice.strategy
    config.interpolation = {"method": "", "layers": ()}
    set_alpha(config, 2.0)

    config.train.steps = 2_000
    config.train.meta_batch_size = 4
    config.train.learning_rate = 1e-3
    config.train.ema = 0.995  # averages about a tenth of the steps

    config.eval.queries = 10
    config.eval.num_tasks = 600
    config.eval.every = 200
    config.lock()
    return config
