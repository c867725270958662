"""TFDS builders of the paper's datasets, one file each; importing this tells TFDS."""

import importlib

from mlti_jax.data import DATASETS

for _module in DATASETS.values():
    importlib.import_module(_module)
