"""Learning curves: what is recorded of a run, and the figure."""

import json

import numpy as np
import pytest

from experiments.figures import curves
from experiments.paper import TABLES
from experiments.tables.jobs import Paths, make_jobs
from experiments.tables.results import CURVE_POINTS, Results, record
from tests.support.figure_cases import assert_drawn
from tests.support.table_files import write_run

CELLS = TABLES["overall_nls"].cells()


def record_run(tmp_path, strategy, shots, train, validation=()):
    only = ("mini", "protonet", strategy, f"{shots}shot")
    (job,) = make_jobs(CELLS, seeds=1, steps=300, only=only)
    workdir = Paths(tmp_path / "runs").work(job)
    names = {"learner": "protonet", "strategy": strategy, "shots": shots}
    write_run(workdir, steps=300, **names)
    lines = [
        {"step": step, "split": split, "accuracy": value, "steps_per_second": 1.0}
        for split, points in (("train", train), ("validation", validation))
        for step, value in points
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text)
    return record(tmp_path / "results", job, workdir)


def test_short_curves_are_recorded_as_they_are(tmp_path):
    train, validation = [[100, 0.25], [200, 0.5], [300, 0.75]], [[300, 0.4]]
    found = record_run(tmp_path, "mlti", 1, train, validation)
    assert found["curves"] == {"train": train, "validation": validation}


def test_long_curves_are_means_of_neighbors(tmp_path):
    number = 2 * CURVE_POINTS + 1  # three neighbors each, the last group has two
    values = np.linspace(0, 1, number)
    points = [(step + 1, value) for step, value in enumerate(values)]
    found = record_run(tmp_path, "mlti", 1, points)["curves"]["train"]
    assert len(found) <= CURVE_POINTS
    assert found[0] == [3, pytest.approx(values[:3].mean(), abs=1e-4)]
    assert found[1] == [6, pytest.approx(values[3:6].mean(), abs=1e-4)]
    assert found[-1][0] == number
    rest = number % 3 or 3
    assert found[-1][1] == pytest.approx(values[-rest:].mean(), abs=1e-4)


def test_panels_and_figure(tmp_path):
    line = [(step, step / 400) for step in range(10, 301, 10)]
    runs = [("vanilla", 1), ("mlti", 1), ("vanilla", 5), ("metamix", 1)]
    for strategy, shots in runs:
        record_run(tmp_path, strategy, shots, line, [(150, 0.3), (300, 0.4)])
    results = Results(tmp_path / "results")
    found = curves.panels(results, "mini_imagenet")
    assert [panel.title for panel in found] == ["ProtoNet, 1-shot", "ProtoNet, 5-shot"]
    assert [list(runs) for runs in found.values()] == [["vanilla", "mlti"], ["vanilla"]]
    (path,) = curves.draw_all(results, tmp_path)
    assert path.name == "curves_mini_imagenet.png"
    assert_drawn(path)
