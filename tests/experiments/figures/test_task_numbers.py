"""Figures over the number of training tasks: points, runs and plots."""

import math

import numpy as np
import pytest

from experiments.figures import task_numbers
from experiments.figures.task_numbers import SHOWN
from experiments.paper import TABLES
from experiments.tables.jobs import load_config, make_jobs
from experiments.tables.results import Results
from tests.support.figure_cases import (
    MAML,
    PROTONET,
    RAINBOW,
    assert_drawn,
    record_point,
)


def test_axes_begin_with_the_config_and_end_with_all_that_the_paper_lists():
    last = {"rainbow_mnist": 40, "mini_imagenet": 64, "dermnet": 150}
    shots = {2: 5, 4: 1, 5: 1}
    for figure in task_numbers.FIGURES:
        for panel in figure.panels:
            config = load_config(panel.run("vanilla", panel.numbers[0]))
            assert config.dataset.train_classes == panel.numbers[0]
            assert config.task.shots == shots[figure.number]
            assert panel.numbers[-1] == last[panel.config]
            assert list(panel.numbers) == sorted(set(panel.numbers))
            for number in panel.numbers:
                config = load_config(panel.run("mlti", number))
                assert config.dataset.train_classes == number
                assert config.learner.name == panel.learner


def test_points_share_their_runs_with_tables():
    in_tables = {
        cell.run
        for table in TABLES.values()
        for cell in table.cells()
        if cell.is_applicable
    }
    for figure in task_numbers.FIGURES:
        for panel in figure.panels:
            for strategy in SHOWN:
                assert panel.run(strategy, panel.numbers[0]) in in_tables
            if panel.config != "rainbow_mnist":
                for strategy in ("vanilla", "mlti"):
                    assert panel.run(strategy, panel.numbers[-1]) in in_tables


def test_all_points_are_planned_once():
    cells = [c for figure in task_numbers.FIGURES for c in figure.cells()]
    jobs = make_jobs(cells, seeds=2)
    assert len(jobs) == len({job.name for job in jobs}) == 2 * (40 + 32 + 40)
    few = make_jobs(cells, seeds=1, steps=7, only=["rainbow", "maml", "cross"])
    assert [job.name for job in few] == [
        "rainbow_mnist/maml-cross-steps7-seed0",
        "rainbow_mnist/maml-cross-train_classes24-steps7-seed0",
        "rainbow_mnist/maml-cross-train_classes32-steps7-seed0",
        "rainbow_mnist/maml-cross-train_classes40-steps7-seed0",
    ]


def test_points_and_intervals_by_hand(tmp_path):
    for seed, values in enumerate([(0.1, 0.3, 0.5), (0.3, 0.5, 0.7)]):
        record_point(tmp_path, MAML, "vanilla", 16, seed=seed, per_task=values)
    for seed, values in enumerate([(0.2, 0.4, 0.9), (0.4, 0.6, 1.0)]):
        record_point(tmp_path, MAML, "mlti", 16, seed=seed, per_task=values)
    record_point(tmp_path, MAML, "cross", 24, per_task=(0.5, 0.5, 0.8))
    record_point(tmp_path, PROTONET, "mlti", 40, per_task=(1.0, 1.0, 1.0))
    results = Results(tmp_path / "results")
    curves = task_numbers.points(MAML, results)
    assert list(curves) == ["vanilla", "cross", "mlti"]
    (vanilla,), (cross,), (mlti,) = curves.values()
    # Means over seeds: 0.2, 0.4, 0.6 and 0.3, 0.5, 0.95.
    assert (vanilla.number, vanilla.difference) == (16, None)
    assert vanilla.summary.mean == pytest.approx(0.4)
    assert vanilla.summary.ci95 == pytest.approx(1.96 * 0.2 / math.sqrt(3))
    assert mlti.summary.mean == pytest.approx(1.75 / 3)
    # Differences 0.1, 0.1, 0.35: mean 0.55 / 3, variance (2 / 3) * 0.25^2 / 2.
    spread = math.sqrt(0.25**2 / 3)
    expected = (0.55 / 3, 1.96 * spread / math.sqrt(3))
    assert mlti.difference == pytest.approx(expected)
    # Vanilla has no result at 24.
    assert (cross.number, cross.difference) == (24, None)
    assert cross.summary.mean == pytest.approx(0.6)
    text = task_numbers.table(MAML, curves).splitlines()
    assert text[0].split() == ["16", "24", "32", "40"]
    assert text[1].split() == ["Vanilla", "40.00", "±", "22.63", "-", "-", "-"]


def test_points_of_different_tests_are_neither_averaged_nor_compared(tmp_path, capsys):
    record_point(tmp_path, MAML, "vanilla", 16)
    record_point(tmp_path, MAML, "mlti", 16, test=8)
    for seed in (0, 1):
        record_point(tmp_path, MAML, "cross", 16, seed=seed, test=seed)
    curves = task_numbers.points(MAML, Results(tmp_path / "results"))
    assert list(curves) == ["vanilla", "mlti"]
    assert curves["mlti"][0].difference is None
    assert "maml-cross is not drawn: seeds with different" in capsys.readouterr().err


def test_one_panel_has_one_number_of_steps(tmp_path):
    folder = tmp_path / "results"
    assert task_numbers.shown_steps(MAML, Results(folder)) is None
    assert task_numbers.points(MAML, Results(folder)) == {}
    record_point(tmp_path, MAML, "vanilla", 16, steps=10)
    record_point(tmp_path, MAML, "vanilla", 24, steps=20)
    results = Results(folder)
    assert task_numbers.shown_steps(MAML, results) == 20
    assert [p.number for p in task_numbers.points(MAML, results)["vanilla"]] == [24]
    ten = task_numbers.points(MAML, results, steps=10)
    assert [p.number for p in ten["vanilla"]] == [16]
    assert task_numbers.points(MAML, results, steps=11) == {}
    # The paper's steps come first, even if others are more.
    record_point(tmp_path, MAML, "vanilla", 32, steps=30_000, source="builtin")
    record_point(tmp_path, MAML, "mlti", 32, steps=40_000)
    results = Results(folder)
    assert task_numbers.shown_steps(MAML, results) == 30_000
    notes = task_numbers.notes(MAML, results)
    assert notes == "30,000 steps, 1 seed, built-in images"
    assert task_numbers.notes(MAML, results, 20) == "20 of 30,000 steps, 1 seed"
    # A curve comes before single points, of however many steps.
    record_point(tmp_path, MAML, "mlti", 40, steps=10)
    assert task_numbers.shown_steps(MAML, Results(folder)) == 10


def test_figure_of_task_numbers(tmp_path):
    path = tmp_path / "figure.png"
    assert not task_numbers.draw(RAINBOW, Results(tmp_path / "results"), path)
    assert not path.exists()
    for shift, strategy in enumerate(SHOWN):
        for number in (16, 40):
            values = np.array([0.2, 0.4, 0.6]) + shift / 50 + number / 200
            record_point(tmp_path, PROTONET, strategy, number, per_task=values.tolist())
    results = Results(tmp_path / "results")
    assert task_numbers.draw(RAINBOW, results, path) == [PROTONET]
    assert_drawn(path)
    listing = task_numbers.listing(results)
    assert "Fig. 4; 32 points, 8 with results" in listing
    assert "Fig. 2; 40 points, none with results" in listing
    assert "DermNet, 1-shot, ProtoNet: 30, 60, 90, 120, 150 training" in listing
