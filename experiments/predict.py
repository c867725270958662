"""Predict labels of a new task: `python -m experiments.predict --model=DIR ...`.

Adapts a learner to the labeled samples of a new task (the support set) and predicts the
labels of other samples (the queries). Examples:

  Tables, with the columns used in training (features, or molecules as SMILES):
    python -m experiments.predict --model=model --support=support.csv --label=active \\
      --query=query.csv --output=predictions.csv

  Images; the support set is a folder with one subfolder per class:
    python -m experiments.predict --model=model --support=support --query=images \\
      --output=predictions.csv

  Arrays, `x` and `y` in support.npz and `x` in query.npz (numpy.savez):
    python -m experiments.predict --model=model --support=support.npz \\
      --query=query.npz --output=predictions.csv

--model is the directory of a saved learner (`learner.save`), or the work directory of a
finished run of `experiments.run`, whose data must still be available. The output has a
row per query: the columns of the query table that are not features, the prediction, and
the probability of each class.
"""

from __future__ import annotations

import csv
import io
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import finished_run
from mlti_jax._internal import command_line
from mlti_jax._internal.command_line import DATA_DIR
from mlti_jax._internal.storage import write_text
from mlti_jax.api import AdaptedModel, FittedLearner, load
from mlti_jax.api._fit import describe_calibration, from_experiment
from mlti_jax.api._serialization import MANIFEST
from mlti_jax.data import Inputs
from mlti_jax.data._own.files import Table, read_npz
from mlti_jax.data._own.image_files import list_folder
from mlti_jax.data._own.inputs import ARRAYS, IMAGES
from mlti_jax.errors import InputError
from mlti_jax.training._workdir import read_result

flags.declare_key_flag("data_dir")
MODEL = flags.DEFINE_string(
    "model", None, "Directory of a saved learner or finished run."
)
SUPPORT = flags.DEFINE_string("support", None, "Labeled samples of a new task.")
QUERY = flags.DEFINE_string("query", None, "Samples to predict.")
OUTPUT = flags.DEFINE_string("output", None, "File of predictions, .csv.")
LABEL = flags.DEFINE_string(
    "label", "label", "Column of labels in a table; several targets with commas."
)

Columns = dict[str, Sequence[Any]]  # columns of a table, by name


def main() -> None:
    """Adapt the learner, predict and write the predictions."""
    model_dir, support, query = map(_required, (MODEL, SUPPORT, QUERY))
    output = pathlib.Path(_required(OUTPUT))
    command_line.check_output(output)
    learner = load_model(model_dir, DATA_DIR.value)
    model = learner.adapt(*read_support(learner.inputs, support, LABEL.value))
    queries, other_columns = read_query(learner.inputs, query, LABEL.value)
    predictions = prediction_columns(model, queries)
    for name in predictions:
        if name in other_columns:
            raise InputError(
                f"the query table has a column {name!r}, which is also a column of the "
                "predictions; rename it"
            )
    write_columns(output, {**other_columns, **predictions})
    count = len(next(iter(predictions.values())))
    print(f"{count} predictions in {output}")
    print(describe_calibration(learner))


def _required(flag: flags.FlagHolder[str | None]) -> str:
    if not flag.value:
        raise InputError(f"--{flag.name} is missing; see --help")
    return flag.value


def load_model(path: str, data_dir: str | None = None) -> FittedLearner:
    """Load a saved learner, or that of a finished run."""
    folder = pathlib.Path(path)
    if (folder / "results.json").is_file() and not (folder / MANIFEST).is_file():
        experiment, variables, _ = finished_run.load(folder, data_dir)
        return from_experiment(experiment, variables, read_result(folder))
    return load(folder)


# ------------------------------------------------------------------------- reading


def read_support(inputs: Inputs, path: str, label: str) -> tuple[Any, np.ndarray]:
    """Read the samples of a support set, as `inputs` takes them, and their labels.

    Args:
      inputs: how samples were prepared in training.
      path: a table, a folder with one subfolder of images per class, or an .npz file.
      label: the column of labels of a table, or several of targets with commas.
    """
    source = _existing("support", path)
    if inputs.kind == IMAGES:
        files: list[pathlib.Path] = []
        labels: list[str] = []
        for folder in _entries("support", source):
            if not folder.is_dir():
                raise InputError(
                    f"{folder} is not a folder; --support expects one folder of images "
                    "per class"
                )
            files += _entries("support", folder)
            labels += [folder.name] * (len(files) - len(labels))
        return files, np.array(labels)
    if source.suffix == ".npz":
        arrays = read_npz(source, ("x", "y"))
        return arrays["x"], arrays["y"]
    table = Table(source)
    names = [name.strip() for name in label.split(",")]
    columns = [table.values(name) for name in names]
    y = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    return _samples(inputs, table, names), y


def read_query(inputs: Inputs, path: str, label: str) -> tuple[Any, Columns]:
    """Read the queries as `inputs` takes them, and columns that identify them."""
    source = _existing("query", path)
    if inputs.kind == IMAGES:
        files = _entries("query", source)
        for file in files:
            if file.is_dir():
                raise InputError(f"{file} is a folder; --query expects only images")
        return files, {"file": [file.name for file in files]}
    if source.suffix == ".npz":
        x = read_npz(source, ("x",))["x"]
        return x, {"row": range(len(x))}
    table = Table(source)
    names = [name.strip() for name in label.split(",")]
    features: Sequence[str] = inputs.columns
    if inputs.kind == ARRAYS:
        features, _ = table.numeric_columns(names)
    other_columns: Columns = {
        str(name): table.frame[name].tolist()
        for name in table.frame.columns
        if str(name) not in features
    }
    return _samples(inputs, table, names), other_columns or {"row": range(len(table))}


def _samples(inputs: Inputs, table: Table, without: list[str]) -> Any:
    """Return the samples of a table as `inputs` takes them."""
    if inputs.kind != ARRAYS:
        return table.frame
    columns, _ = table.numeric_columns(without)
    if not columns:
        raise InputError(f"{table.name} has no numeric column besides the label")
    return table.matrix(columns)


def _existing(flag: str, path: str) -> pathlib.Path:
    source = pathlib.Path(path).expanduser()
    if not source.exists():
        raise InputError(f"--{flag}={path}: no such file or folder")
    return source


def _entries(flag: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """List a folder of images, or of folders of images; see `list_folder`."""
    if not folder.is_dir():
        raise InputError(
            f"--{flag}: {folder} is not a folder; the learner was trained on images"
        )
    return list_folder(folder)


# ------------------------------------------------------------------------- writing


def prediction_columns(model: AdaptedModel, x: Any) -> Columns:
    """Return predictions, and for classification probabilities, as columns."""
    if model.classes is None:
        values = model.predict(x)
        if values.ndim == 1:
            return {"prediction": values.tolist()}
        targets = enumerate(values.T.tolist())
        return {f"prediction_{number}": column for number, column in targets}
    probabilities = model.predict_proba(x)
    by_class = zip(model.classes.tolist(), probabilities.T.tolist(), strict=True)
    return {
        "prediction": model.classes[probabilities.argmax(axis=1)].tolist(),
        **{f"probability_{name}": column for name, column in by_class},
    }


def write_columns(path: pathlib.Path, columns: Columns) -> None:
    """Write columns to a .csv file, completely or not at all."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_text(path, text.getvalue())


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
