"""Public figures: their data, and what they raise."""

import json
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

from mlti_jax import plotting
from mlti_jax.errors import InputError
from mlti_jax.training import build
from tests.support.figure_cases import (
    small_config,
    use_data,
    vector_config,
    vectors,
)
from tests.support.tasks import ROOT


def write_metrics(workdir, lines):
    workdir.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text)
    return workdir


def test_learning_curves_show_the_metrics_of_each_run(tmp_path):
    first = write_metrics(
        tmp_path / "a",
        [
            {"step": 5, "split": "train", "accuracy": 0.5},
            {"step": 10, "split": "train", "accuracy": 0.6},
            {"step": 10, "split": "validation", "accuracy": 0.4, "ci95": 0.1},
            {"step": 20, "split": "validation", "accuracy": 0.3, "ci95": 0.2},
        ],
    )
    second = write_metrics(
        tmp_path / "b", [{"step": 5, "split": "train", "accuracy": 0.25}]
    )
    fig = plotting.learning_curves({"one": first, "two": str(second)})
    (axis,) = fig.axes
    lines = {line.get_label(): line for line in axis.get_lines()}
    assert list(lines) == ["one, train", "one, validation", "two, train"]
    np.testing.assert_allclose(lines["one, train"].get_data(), [[5, 10], [50, 60]])
    np.testing.assert_allclose(
        lines["one, validation"].get_data(), [[10, 20], [40, 30]]
    )
    (band,) = axis.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert {round(value, 6) for value in heights} == {30, 50, 10}
    assert lines["one, train"].get_color() != lines["two, train"].get_color()
    assert axis.get_ylabel() == "accuracy, %"


def test_learning_curves_of_a_regression(tmp_path):
    run = write_metrics(tmp_path / "a", [{"step": 5, "split": "train", "mse": 2.5}])
    plotting.learning_curves({"one": run}, tmp_path / "curves.png")
    fig = plotting.learning_curves({"one": run})
    assert fig.axes[0].get_ylabel() == "mse"
    assert fig.axes[0].get_lines()[0].get_ydata() == pytest.approx([2.5])
    assert matplotlib.image.imread(tmp_path / "curves.png")[..., :3].std() > 0.05


def test_learning_curves_raise_without_metrics(tmp_path):
    with pytest.raises(InputError, match="runs is empty"):
        plotting.learning_curves({})
    with pytest.raises(InputError, match="run 'one' has no metrics in .*metrics.jsonl"):
        plotting.learning_curves({"one": tmp_path})


@pytest.mark.slow
def test_interpolated_tasks_are_cut_from_the_tasks_beside_them(tmp_path):
    path = tmp_path / "tasks.png"
    fig = plotting.interpolated_tasks(build(small_config()), path, rows=3)
    images = [axis.get_images()[0].get_array() for axis in fig.axes]
    tasks, mixed = images[::2], images[1::2]
    assert len(tasks) == len(mixed) == 3
    for task, mixture in zip(tasks, mixed, strict=True):
        assert task.shape == mixture.shape == (28, 10 * 30 - 2, 3)
        kept = (np.abs(task - mixture) < 1e-6).all(axis=-1).mean()
        assert kept > 0.1  # CutMix keeps what is outside of the box
    assert any(np.abs(a - b).max() > 0.1 for a, b in zip(tasks, mixed, strict=True))
    assert [axis.get_title() for axis in fig.axes[:2]] == [
        "tasks of a meta-batch",
        "interpolated (mlti)",
    ]
    assert matplotlib.image.imread(path)[..., :3].std() > 0.05


def test_interpolated_tasks_raise_without_interpolation_or_images(monkeypatch):
    with pytest.raises(InputError, match="'vanilla' leaves tasks as they are drawn"):
        plotting.interpolated_tasks(build(small_config(strategy="vanilla")))
    use_data(monkeypatch, vectors())
    with pytest.raises(InputError, match="expected images"):
        plotting.interpolated_tasks(build(vector_config()))


def test_import_loads_neither_matplotlib_nor_experiments():
    code = (
        "import sys, mlti_jax.plotting;"
        "print({'matplotlib', 'experiments'} & {name.split('.')[0] for name in"
        " sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "set()\n", done.stderr
