"""The table and the figure at the top of the results page."""

import math

import matplotlib.image
import pytest

from experiments import report
from experiments.tables import overview
from experiments.tables.jobs import Job
from experiments.tables.overview import comparisons, summary_table
from experiments.tables.results import Results, record
from tests.support.table_cells import find_cell
from tests.support.table_files import write_run

# Two seeds: means .65 and .60 of vanilla, .80 and .70 of MLTI.
VANILLA = {0: (0.5, 0.6, 0.7, 0.8), 1: (0.7, 0.6, 0.5, 0.6)}
MLTI = {0: (0.7, 0.8, 0.9, 0.8), 1: (0.7, 0.6, 0.7, 0.8)}
COLUMN = ("overall_ls", "Metabolism (5-shot)", "MAML")


@pytest.fixture
def keep(tmp_path):
    """Records a result for a cell."""

    def call(title, seed, per_task, steps=10_000, place=COLUMN, alternative=False):
        cell = find_cell(*place, title)
        job = Job(cell.alternative_run if alternative else cell.run, seed, steps)
        work = tmp_path / "work" / job.name
        write_run(work, seed, steps, per_task, strategy=cell.run.strategy)
        record(tmp_path / "results", job, work)

    return call


def found(tmp_path):
    return comparisons(Results(tmp_path / "results"))


def test_row_by_hand(keep, tmp_path):
    for seed in (0, 1):
        keep("Vanilla", seed, VANILLA[seed])
        keep("MLTI", seed, MLTI[seed])
    ((*names, vanilla, mlti, difference, seeds, steps, paper),) = summary_table(
        found(tmp_path)
    ).lines
    assert names == ["Metabolism, 5-shot", "MAML"]
    # Student's t with one degree of freedom: 12.706. Tasks: .6 .6 .6 .7 and
    # .7 .7 .8 .8 and their differences .1 .1 .2 .1.
    over_tasks = {"vanilla": 0.049, "mlti": 0.0566, "difference": 0.049}
    over_seeds = {"vanilla": 0.025, "mlti": 0.05, "difference": 0.025}
    half = {
        name: 100 * math.hypot(over_tasks[name], 12.7062 * over_seeds[name])
        for name in over_tasks
    }
    assert vanilla == f"62.50 ± {half['vanilla']:.2f}"
    assert mlti == f"75.00 ± {half['mlti']:.2f}"
    assert difference == f"+12.50 ± {half['difference']:.2f}"
    assert (seeds, steps, paper) == ("2", "10,000", "+3.06")  # 60.28 - 57.22


def test_only_common_seeds_and_equal_steps_are_compared(keep, tmp_path):
    keep("Vanilla", 0, VANILLA[0])
    keep("MLTI", 1, MLTI[1])
    assert found(tmp_path) == []
    keep("MLTI", 0, MLTI[0], steps=70)
    assert found(tmp_path) == []
    keep("Vanilla", 0, VANILLA[0], steps=70)
    (only,) = found(tmp_path)
    assert (only.steps, only.difference.seeds) == (70, 1)
    line = summary_table([only]).lines[0]
    assert line[4] == "+15.00 ± 9.80"  # over tasks: one seed
    assert line[6] == "70 of 10,000"
    # With seeds 0 and 1 of the same number of steps, those are shown.
    keep("Vanilla", 1, VANILLA[1])
    keep("MLTI", 0, MLTI[0])
    (only,) = found(tmp_path)
    assert (only.steps, only.difference.seeds) == (10_000, 2)


def test_other_setups_have_their_own_rows(keep, tmp_path):
    for alternative in (False, True):
        keep("Vanilla", 0, VANILLA[0], alternative=alternative)
        keep("MLTI", 0, MLTI[0], alternative=alternative)
        keep("MetaMix", 0, MLTI[0], alternative=alternative)
    lines = summary_table(found(tmp_path)).lines
    assert [line[0] for line in lines] == [
        "Metabolism, 5-shot",
        "Metabolism, 5-shot, disjoint",
    ]
    assert [line[-1] for line in lines] == ["+3.06", ""]  # not in the paper
    strategies = [each.run.strategy for each in found(tmp_path)]
    assert strategies == ["metamix", "mlti"] * 2


def test_figure_and_page(keep, tmp_path):
    pose = ("overall_ls", "Pose (15-shot)", "MAML")
    (tmp_path / "figures").mkdir()
    for title in ("Vanilla", "MLTI"):
        keep(title, 0, VANILLA[0], place=pose)
    path = tmp_path / "figures" / report.DIFFERENCES
    assert not overview.draw(found(tmp_path), path)  # not an accuracy
    for seed in (0, 1):
        keep("Vanilla", seed, VANILLA[seed])
        keep("MLTI", seed, MLTI[seed])
    keep("MetaMix", 0, MLTI[0])
    assert overview.draw(found(tmp_path), path)
    assert matplotlib.image.imread(path)[..., :3].std() > 0.03
    page = report.page(tmp_path / "results", tmp_path / "figures")
    assert page.index("## Overview") < page.index("![differences") < page.index("## T")
    assert "| Pose, 15-shot (MSE) | MAML |" in page
