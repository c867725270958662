"""The paper's lemmas, checked by numbers: `python -m experiments.theory --output=DIR`.

Prints, and draws into DIR:

  theory.png          what second-order approximations of the interpolated loss leave
                      over as the perturbation shrinks, with the right constants and
                      with those that the paper prints (Lemmas 1, 2 and 4);
  total_variance.png  how much of the variance of features lies between tasks
                      (App. B.3): pixels of RainbowMNIST from the images that come with
                      the install, and the fingerprints of NCI and Metabolism if they
                      are prepared in `--data_dir`;
  theory.json         all numbers.

`tasks above` counts the tasks that alone vary more than all tasks together, in the
direction in which the task varies most: there, partners of other tasks regularise less.

Takes half a minute on a CPU. What the numbers mean: `mlti_jax/theory/`.
"""

from __future__ import annotations

import sys

from absl import flags, logging

from experiments.theory import plots as theory_pictures
from experiments.theory import remainders as theory_remainders
from experiments.theory import variance as theory_variance
from mlti_jax._internal import command_line
from mlti_jax._internal.command_line import DATA_DIR
from mlti_jax.training._workdir import write_json

flags.declare_key_flag("data_dir")
OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "A folder for numbers and pictures.",
    allow_override=True,  # Other tools have a flag of this name too.
)


def main() -> None:
    """Measures, prints and draws everything."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    folder = command_line.output_folder(OUTPUT.value)
    remainders = theory_remainders.measure()
    print(theory_remainders.table(remainders), flush=True)
    pools = theory_variance.load_pools(DATA_DIR.value)
    variance = [theory_variance.measure(*item) for item in pools.items()]
    print(f"\n{theory_variance.table(variance)}")
    write_json(
        folder / "theory.json", {"remainders": remainders, "total_variance": variance}
    )
    theory_pictures.remainders(remainders, folder / "theory.png")
    theory_pictures.total_variance(variance, folder / "total_variance.png")
    print(f"\nnumbers and pictures: {folder}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
