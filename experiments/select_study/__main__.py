"""Does `mlti_jax.select` raise false alarms? `python -m experiments.select_study`.

Two parts, each with and without a candidate that is better than the reference:

  simulated   scores from a model with effects of tasks, candidates and episodes,
              thousands of selections;
  trained     small networks on tasks of two normal classes, hundreds of selections.

Prints false-alarm rates (the share of selections that call a candidate clearly better
which is not), power, and the bias of the estimates for new tasks; writes them into
DIR/select_study.json. Takes about a quarter of an hour on one CPU core.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from absl import flags

from experiments.select_study import simulated, trained
from mlti_jax._internal import command_line
from mlti_jax._internal.progress import say
from mlti_jax._internal.storage import check_target, write_json

OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Directory for the results.",
    allow_override=True,  # Other commands define a flag with this name.
)
PART = flags.DEFINE_enum("part", "all", ["all", "simulated", "trained"], "What to run.")
REPETITIONS = flags.DEFINE_integer(
    "repetitions", 200, "Selections with trained networks.", lower_bound=2
)
FILE = "select_study.json"
_SIMULATIONS = 2000
_GAPS = (0.0, 0.02, 0.05, 0.1)


def simulate_all() -> list[dict[str, Any]]:
    """Simulate few and many candidates, without and with a better one."""
    rows = []
    for tasks in (5, 6, 8):
        for number in (2, 4, 8):
            for gap in _GAPS:
                model = simulated.Model([0.7] * (number - 1) + [0.7 + gap], tasks)
                nested = number == 4
                row = simulated.study(
                    model, _SIMULATIONS if not nested else 1000, 0, nested=nested
                )
                if gap == 0:
                    row["percentile_false_alarms"] = simulated.percentile_false_alarms(
                        model, 1000, 1
                    )
                row |= {"candidates": number, "gap": gap}
                rows.append(row)
                say(json.dumps(row))
    return rows


def main() -> None:
    """Run the study."""
    folder = command_line.output_folder(OUTPUT.value)
    check_target(folder / FILE)
    found: dict[str, Any] = {}
    if PART.value != "trained":
        found["simulated"] = simulate_all()
    if PART.value != "simulated":
        found["trained"] = {
            kind: trained.study(kind, REPETITIONS.value, 0)
            for kind in ("null", "one better")
        }
        print(json.dumps(found["trained"], indent=2))
    write_json(folder / FILE, found)
    print(f"results: {folder / FILE}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
