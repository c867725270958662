"""Predicts: `python -m experiments.predict --model=DIR --support=... --query=...`.

Adapts a learner to the labelled samples of a new task, the support set, and predicts
the labels of others, the queries. Examples:

  Tables, with the columns of training (features, or molecules as SMILES):
    python -m experiments.predict --model=model --support=support.csv --label=active \\
      --query=query.csv --output=predictions.csv

  Pictures, the support set in a folder with one folder a class:
    python -m experiments.predict --model=model --support=support --query=pictures \\
      --output=predictions.csv

  Arrays, `x` and `y` in support.npz and `x` in query.npz (numpy.savez):
    python -m experiments.predict --model=model --support=support.npz \\
      --query=query.npz --output=predictions.csv

--model is a directory that a learner was saved in (`learner.save`), or the work
directory of a finished run of `experiments.run`, whose data must still be there. The
output has a row for each query: the columns of the query's table that are no features,
the prediction, and the probability of each class.
"""

from __future__ import annotations

import csv
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import finished_run, prediction_files
from mlti_jax._internal import command_line
from mlti_jax._internal.command_line import DATA_DIR
from mlti_jax.api import AdaptedModel, FittedLearner, load
from mlti_jax.api._fit import describe_calibration, from_experiment
from mlti_jax.api._serialization import MANIFEST
from mlti_jax.errors import InputError
from mlti_jax.training._workdir import read_json

flags.declare_key_flag("data_dir")
MODEL = flags.DEFINE_string("model", None, "A saved learner, or a finished run.")
SUPPORT = flags.DEFINE_string("support", None, "The labelled samples of a new task.")
QUERY = flags.DEFINE_string("query", None, "The samples to predict.")
OUTPUT = flags.DEFINE_string("output", None, "The file of predictions, .csv.")
LABEL = flags.DEFINE_string(
    "label", "label", "The column of labels in a table; several targets with commas."
)


def main() -> None:
    """Adapts, predicts and writes."""
    for flag in (MODEL, SUPPORT, QUERY, OUTPUT):
        if flag.value is None:
            raise InputError(f"--{flag.name} is missing; see --help")
    output = pathlib.Path(OUTPUT.value)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InputError(f"--output={output} is no file in a directory that exists")
    learner = load_model(MODEL.value, DATA_DIR.value)
    x, y = prediction_files.read_support(learner.inputs, SUPPORT.value, LABEL.value)
    model = learner.adapt(x, y)
    x, known = prediction_files.read_query(learner.inputs, QUERY.value, LABEL.value)
    columns = predicted_columns(model, x)
    write_columns(output, {**known, **_without_clash(known, columns)})
    print(f"{len(next(iter(columns.values())))} predictions in {output}")
    print(describe_calibration(learner))


def load_model(path: str, data_dir: str | None = None) -> FittedLearner:
    """A saved learner, or that of a finished run."""
    folder = pathlib.Path(path)
    if (folder / "results.json").is_file() and not (folder / MANIFEST).is_file():
        experiment, variables, _ = finished_run.load(folder, data_dir)
        result = read_json(folder / "results.json")
        return from_experiment(experiment, variables, result)
    return load(folder)


def predicted_columns(model: AdaptedModel, x: Any) -> dict[str, Sequence]:
    """The columns of predictions, by their names."""
    labels, probabilities = model.predict(x)
    if probabilities is None:
        if labels.ndim == 1:
            return {"prediction": labels.tolist()}
        targets = enumerate(labels.T.tolist())
        return {f"prediction_{number}": column for number, column in targets}
    shares = zip(model.classes.tolist(), probabilities.T.tolist(), strict=True)
    return {
        "prediction": labels.tolist(),
        **{f"probability_{name}": column for name, column in shares},
    }


def _without_clash(known: dict, columns: dict[str, Sequence]) -> dict[str, Sequence]:
    for name in columns:
        if name in known:
            raise InputError(
                f"the query has a column {name!r}, as the predictions have; rename it"
            )
    return columns


def write_columns(path: pathlib.Path, columns: dict[str, Sequence]) -> None:
    """Writes columns as a .csv file, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
