"""Says what a dataset holds, and makes a picture of it.

    python -m mlti_jax.data.describe --dataset=nci

prints the counts per split, domain and class, and saves a sheet of samples (of vectors:
how many features a sample has) beside the prepared records, or as `--picture` says.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags, logging

from mlti_jax import data
from mlti_jax._internal import command_line
from mlti_jax.data import DATASETS, default_data_dir
from mlti_jax.data._description import describe
from mlti_jax.data._readers import images as pictures
from mlti_jax.errors import InputError

flags.declare_key_flag("data_dir")
DATASET = flags.DEFINE_string("dataset", None, "Name of the dataset.")
PICTURE = flags.DEFINE_string("picture", None, "The picture's file, a PNG.")


def chosen_dataset() -> str:
    """The dataset that the command line names."""
    if DATASET.value is None:
        raise InputError(
            f"--dataset is missing; choose one of: {', '.join(sorted(DATASETS))}"
        )
    return DATASET.value


def main() -> None:
    """Prints the counts and saves the picture."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    name = chosen_dataset()
    data_dir = command_line.DATA_DIR.value
    print(describe(name, data_dir))
    folder = pathlib.Path(data_dir or default_data_dir()).expanduser()
    path = pathlib.Path(PICTURE.value or folder / name / f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.sheet(data.load(name, data_dir=data_dir), path)
    print(f"picture: {path}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
