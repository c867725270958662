"""Prepares a dataset from its publisher's files, once.

    python -m mlti_jax.data.prepare --dataset=nci --raw=DIR

DIR holds the files as they were downloaded; without `--raw` it says which these are.
The records go to `--data_dir` (else MLTI_DATA_DIR, else ~/.cache/mlti_jax), where
`python -m experiments.run` finds them, and `tfds.builder` too. What is prepared already
is left as it is, and a preparation that was interrupted leaves nothing behind that
could be taken for a dataset: run the same command again.
"""

from __future__ import annotations

import sys

from absl import flags, logging

from mlti_jax._internal import command_line
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._description import describe
from mlti_jax.data._preparation import prepare
from mlti_jax.data._readers import raw
from mlti_jax.data.describe import chosen_dataset
from mlti_jax.errors import InputError

flags.declare_key_flag("dataset")
flags.declare_key_flag("data_dir")
RAW = flags.DEFINE_string("raw", None, "The folder with the publisher's files.")
PROCESSES = flags.DEFINE_integer(
    "processes", None, "Processes that read the files; as many as cores if not given."
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Prepare again what is prepared already."
)


def main() -> None:
    """Prepares, and says what came of it."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    name = chosen_dataset()
    data_dir = command_line.DATA_DIR.value
    if RAW.value is None:
        instructions = prepared.builder(name, data_dir).INSTRUCTIONS
        raise InputError(f"--raw=DIR is missing. {instructions}")
    processes = PROCESSES.value
    prepare(
        name,
        RAW.value,
        data_dir,
        processes=raw.default_processes() if processes is None else processes,
        overwrite=OVERWRITE.value,
    )
    print(describe(name, data_dir))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
