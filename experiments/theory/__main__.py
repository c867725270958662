"""Numerical check of the paper's lemmas: `python -m experiments.theory --output=DIR`.

Prints tables, and writes into DIR:

  theory.png          remainders of second-order approximations of the interpolated loss
                      for small perturbations, with the correct constants and with those
                      that the paper prints (Lemmas 1, 2 and 4);
  total_variance.png  share of the variance of features between tasks (App. B.3): pixels
                      of RainbowMNIST (images of the install), and fingerprints of NCI
                      and Metabolism if prepared in `--data_dir`;
  theory.json         all numbers.

`tasks above` counts tasks with more variance than all tasks together in the direction
of their largest variance: there, partners from other tasks regularize less.

Takes half a minute on a CPU. See `mlti_jax/theory/` for the formulas.
"""

from __future__ import annotations

import sys

from absl import flags, logging

from experiments.theory import plots, remainders, variance
from mlti_jax._internal import command_line
from mlti_jax._internal.command_line import DATA_DIR
from mlti_jax._internal.storage import check_target, write_json

flags.declare_key_flag("data_dir")
OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Directory for the results.",
    allow_override=True,  # Other commands define a flag with this name.
)
FILES = ("theory.json", "theory.png", "total_variance.png")


def main() -> None:
    """Measure, print and plot everything."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing data.
    folder = command_line.output_folder(OUTPUT.value)
    numbers, *figures = (folder / name for name in FILES)
    for path in (numbers, *figures):  # before what takes long
        check_target(path)
    pools = variance.load_pools(DATA_DIR.value)
    lemmas = remainders.measure()
    print(remainders.table(lemmas), flush=True)
    datasets = [variance.measure(*item) for item in pools.items()]
    print(f"\n{variance.table(datasets)}")
    write_json(numbers, {"remainders": lemmas, "total_variance": datasets})
    plots.remainders(lemmas, figures[0])
    plots.total_variance(datasets, figures[1])
    print(f"\nresults: {folder}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
