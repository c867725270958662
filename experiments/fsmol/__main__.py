"""FS-Mol's evaluation of a finished run: `python -m experiments.fsmol --workdir=RUN`.

From each of the 157 test assays, ten support sets are drawn per size, with the class
ratio of the assay; all other molecules are queries. The learner is adapted to each. The
score is delta-AUPRC, the average precision minus the share of actives among the
queries, beside accuracy. Example:

  python -m experiments.fsmol --workdir=/tmp/fsmol_protonet_mlti --data_dir=DATA \\
      --support=16,32,64,128 --baselines=FS-Mol/baselines \\
      --classical=random_forest,logistic_regression

Prints means over assays with 95 % intervals, and the differences to other methods on
the same assays: to the published results of FS-Mol's authors (`--baselines`), to
classifiers of scikit-learn on the same draws (`--classical`), and to other runs
(`--against`, files that this command wrote). Writes all values to `--output`, by
default `fsmol.json` in the work directory. An assay that is too small for a support
size is skipped, as in FS-Mol. Without `--workdir`, only `--classical` is evaluated, on
the fingerprints and descriptors of the default dataset.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from absl import flags, logging

from experiments import finished_run
from experiments.cli import use_compilation_cache
from experiments.fsmol import scores
from experiments.fsmol.baselines import read_baselines
from experiments.fsmol.classical import CLASSICAL, classical_method
from experiments.fsmol.draws import draw_all
from experiments.fsmol.evaluation import Method, method_of_run
from mlti_jax import data
from mlti_jax._internal import command_line
from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.progress import Progress
from mlti_jax._internal.storage import read_json, write_json
from mlti_jax.data import DomainPool
from mlti_jax.errors import InputError

_SIZES = "16,32,64,128"  # of FS-Mol's figures
_MAX_DRAWS = 1000

flags.declare_key_flag("data_dir")
# Other commands define flags with some of these names.
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Work directory of a finished run.", allow_override=True
)
SUPPORT = flags.DEFINE_string(
    "support",
    None,
    f"Numbers of support molecules; default {_SIZES}.",
    allow_override=True,
)
DRAWS = flags.DEFINE_integer("draws", 10, "Support sets per assay and size.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the draws.", allow_override=True)
BASELINES = flags.DEFINE_string(
    "baselines", None, "Folder with FS-Mol's published results per assay."
)
CLASSICAL_METHODS = flags.DEFINE_list(
    "classical", [], f"Methods on the same draws: {', '.join(CLASSICAL)}."
)
AGAINST = flags.DEFINE_list(
    "against", [], "Files of this command with other runs to compare with."
)
OUTPUT = flags.DEFINE_string(
    "output", None, "JSON file for all values.", allow_override=True
)

# delta-AUPRC by support size and assay, mean over the draws
ByAssay = dict[int, dict[str, float]]


def main() -> None:
    """Evaluate, print and write the results."""
    logging.set_verbosity(logging.ERROR)
    sizes, output = _sizes(), _output()
    check_range("--draws", DRAWS.value, _MAX_DRAWS)
    check_range("--seed", SEED.value, 2**32 - 1, smallest=0)
    for name in CLASSICAL_METHODS.value:
        if name not in CLASSICAL:
            raise unknown_name("classical method", name, CLASSICAL)
    # Before what takes long.
    others: dict[str, ByAssay] = {}
    if BASELINES.value:
        published = read_baselines(absolute(BASELINES.value), sizes)
        others |= {f"FS-Mol {name}": values for name, values in published.items()}
    for path in AGAINST.value:
        others |= _read_results(absolute(path), sizes)

    methods, pool, facts = _methods()
    results = {
        name: _evaluate(name, *method, sizes) for name, method in methods.items()
    }
    assays = list(pool.domains)
    skipped = {
        str(size): sorted(set(assays) - set(by_assay))
        for size, by_assay in next(iter(results.values()))["delta_auprc"].items()
    }
    write_json(
        output,
        {
            "dataset": "fsmol",
            "draws": DRAWS.value,
            "seed": SEED.value,
            "run": facts,
            "skipped": skipped,
            "methods": {
                name: {
                    metric: {
                        "summary": scores.summary(by_size),
                        "values": {str(size): v for size, v in by_size.items()},
                    }
                    for metric, by_size in by_metric.items()
                }
                for name, by_metric in results.items()
            },
        },
        seal=True,
    )
    print(report(results, others, sizes))
    print(f"\nvalues per assay and draw: {output}")


def _sizes() -> tuple[int, ...]:
    """Return the support sizes in increasing order."""
    text = SUPPORT.value or _SIZES
    try:
        sizes = tuple(sorted({int(size) for size in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 2:
        raise InputError(
            f"--support is {text!r}; expected numbers of molecules"
            f" of 2 or more, such as {_SIZES}"
        )
    return sizes


def _output() -> pathlib.Path:
    """Return the file to write, which can be written."""
    if OUTPUT.value:
        output = absolute(OUTPUT.value)
    elif WORKDIR.value:
        output = absolute(WORKDIR.value) / "fsmol.json"
        if not output.parent.is_dir():
            raise InputError(
                f"--workdir={WORKDIR.value} does not exist; give the work directory of"
                " a finished run"
            )
    elif CLASSICAL_METHODS.value:
        raise InputError("--output is missing, the file to write; see --help")
    else:
        raise InputError(
            "--workdir is missing, the work directory of a finished run of"
            " experiments.run with experiments/configs/fsmol.py"
        )
    command_line.check_output(output)
    return output


def _methods() -> tuple[dict[str, tuple[Method, DomainPool]], DomainPool, Any]:
    """Return the methods to evaluate by name, the test assays, and facts of the run."""
    methods: dict[str, tuple[Method, DomainPool]] = {}
    facts = None
    if WORKDIR.value:
        experiment, variables, step = finished_run.load(
            absolute(WORKDIR.value), DATA_DIR.value
        )
        use_compilation_cache(experiment.config.compilation_cache)
        splits = experiment.splits
        if splits.name != "fsmol":
            raise InputError(
                f"the run in {WORKDIR.value} was trained on {splits.name}; expected"
                " one of experiments/configs/fsmol.py"
            )
        name = f"{experiment.config.learner.name}, {experiment.config.strategy.name}"
        facts = {**experiment.description(), "step": step, "note": splits.note}
        method = method_of_run(experiment, variables, splits.test, SEED.value)
        methods[name] = (method, splits.test)
    else:
        splits = data.load("fsmol", data_dir=DATA_DIR.value)
    pool = splits.test
    assert isinstance(pool, DomainPool)
    for classical in CLASSICAL_METHODS.value:
        methods[classical] = (classical_method(classical, pool), pool)
    return methods, pool, facts


def _evaluate(
    name: str, method: Method, pool: DomainPool, sizes: tuple[int, ...]
) -> dict[str, scores.Values]:
    """Return the values of a method by metric."""
    drawn = {size: draw_all(pool, size, DRAWS.value, SEED.value) for size in sizes}
    bar = Progress(name, sum(map(len, drawn.values())), unit="draw")
    values: dict[str, scores.Values] = {metric: {} for metric in scores.METRICS}
    try:
        for size, draws in drawn.items():
            found: dict[tuple[int, int], dict[str, float]] = {}
            for draw, outputs in method(draws) if draws else ():
                found[draw.assay, draw.number] = scores.score(outputs, draw.query_y)
                bar.update(1)
            for metric, by_size in values.items():
                by_size[size] = dict(_by_assay(found, pool, metric))
    finally:
        bar.close()
    return values


def _by_assay(
    found: Mapping[tuple[int, int], Mapping[str, float]], pool: DomainPool, metric: str
) -> Iterator[tuple[str, list[float]]]:
    """Yield each assay with its values, in order of the draws."""
    for assay in sorted({assay for assay, _ in found}):
        numbers = sorted(number for other, number in found if other == assay)
        values = [round(found[assay, number][metric], 6) for number in numbers]
        yield pool.domains[assay], values


def _read_results(path: pathlib.Path, sizes: tuple[int, ...]) -> dict[str, ByAssay]:
    """Read the methods of a file that this command wrote."""
    content = read_json(path, "evaluate that run again with experiments.fsmol")
    same = ("draws", DRAWS.value), ("seed", SEED.value)
    for field, value in same:
        if content.get(field) != value:
            raise InputError(
                f"--against={path} has {field} {content.get(field)}, and this command"
                f" {value}; use the same draws for all runs"
            )
    return {
        f"{name} ({path.parent.name}/{path.name})": {
            size: scores.per_assay(method["delta_auprc"]["values"][str(size)])
            for size in sizes
            if str(size) in method["delta_auprc"]["values"]
        }
        for name, method in content["methods"].items()
    }


def report(
    results: Mapping[str, Mapping[str, scores.Values]],
    others: Mapping[str, ByAssay],
    sizes: tuple[int, ...],
) -> str:
    """Return tables of all methods, and of the differences from the first one.

    Args:
      results: values of the evaluated methods by metric, the first is compared.
      others: delta-AUPRC of other methods.
      sizes: support sizes.
    """
    tables = []
    for metric, heading in (("delta_auprc", "delta-AUPRC"), ("accuracy", "accuracy")):
        lines = {
            name: [
                scores.cell(line["mean"], line["ci95"])
                for line in scores.summary(values[metric]).values()
            ]
            for name, values in results.items()
        }
        if metric == "delta_auprc":
            lines |= {
                name: [
                    scores.cell(*scores.mean_and_interval(list(by_size[s].values())))
                    if by_size.get(s)
                    else "-"
                    for s in sizes
                ]
                for name, by_size in others.items()
            }
        tables.append(scores.table(heading, sizes, lines))
    (first, values), *rest = results.items()
    mine = {size: scores.per_assay(v) for size, v in values["delta_auprc"].items()}
    compared: dict[str, ByAssay] = {
        name: {size: scores.per_assay(v) for size, v in other["delta_auprc"].items()}
        for name, other in rest
    }
    compared |= others
    if compared:
        lines = {}
        for name, by_size in compared.items():
            found = [scores.difference(mine[s], by_size.get(s, {})) for s in sizes]
            numbers = sorted({number for _, _, number in found})
            common = " to ".join(map(str, numbers[:1] + numbers[1:][-1:]))
            lines[f"minus {name} ({common} assays)"] = [
                scores.cell(mean, half, signed=True) for mean, half, _ in found
            ]
        tables.append(scores.table(f"delta-AUPRC of {first}", sizes, lines))
    intervals = "± is half of a 95 % interval over assays; a value is a mean over draws"
    return "\n\n".join([*tables, intervals])


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
