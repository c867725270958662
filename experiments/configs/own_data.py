"""Your own data: a folder of pictures, a table, or an .npz file of arrays.

    python -m experiments.run --workdir=/tmp/assays \
        --config=experiments/configs/own_data.py:learner=protonet,strategy=mlti \
        --config.dataset.path=assays.csv --config.dataset.label=active \
        --config.dataset.task=assay --config.dataset.smiles=smiles

`mlti_jax/data/own_data.py` says how files must lie. A fifth of the tasks is kept for
the test, by name (`--config.dataset.test=assay_3,assay_7`) or by another share; none
for validation, so that the last checkpoint is reported, unless
`--config.dataset.validation` says otherwise. The network (mlp for vectors, conv4 for
pictures), how samples are mixed (Mixup or CutMix) and the classes of a task are chosen
by the data, and can be set: `backbone.name`, `interpolation.method` with
`interpolation.layers`, `task.ways`. Few tasks are soon learned by heart, hence 2,000
steps; on 1,200 molecules of six assays they took a minute on one CPU core.
"""

from ml_collections.config_dict import placeholder

from experiments.config import paper_config


def get_config(arg: str = ""):
    config, _ = paper_config(arg, shots=5)
    config.dataset = {
        "name": "own_data",
        "path": "",
        # Of tables: columns. features: with commas; None for all columns of numbers.
        "label": placeholder(str),
        "task": placeholder(str),  # None: every label is a class to draw from
        "features": placeholder(str),
        "smiles": placeholder(str),  # molecules instead of features
        "fingerprint": placeholder(str),  # morgan or path
        "standardise": placeholder(bool),  # None: tables yes, arrays no
        "size": placeholder(int),  # that pictures are scaled to
        "validation": placeholder(str),  # names with commas, or a share; None: none
        "test": "0.2",
        "seed": 0,  # of the shares
        "setting": placeholder(str),  # None: as labels or folders suggest
    }
    config.backbone.name = ""  # chosen by the data, as are the next two
    config.interpolation = {"method": "", "layers": ()}
    config.task = {"ways": placeholder(int), "shots": config.task.shots, "queries": 10}
    config.train.steps = 2_000
    config.eval.queries = 10
    config.eval.every = 200
    config.lock()
    return config
