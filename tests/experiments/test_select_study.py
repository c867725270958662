"""The numbers of `docs/selecting.md` are those of the stored results."""

import json

import pytest

from experiments.select_study import simulated, tables
from tests.support.cli import ROOT

PAGE = (ROOT / "docs" / "selecting.md").read_text()
RESULTS = ROOT / "experiments" / "results"


def stored(name):
    return json.loads((RESULTS / name).read_text())


def test_study():
    found = stored("select_study.json")
    assert tables.simulated(found["simulated"]) in PAGE
    assert tables.trained(found["trained"]) in PAGE


def test_false_alarms_of_the_study_are_rare():
    found = stored("select_study.json")
    for row in (*found["simulated"], *found["trained"].values()):
        assert row["false_alarms"] <= 0.05
        if row["bias_of_nested"] is not None:
            assert abs(row["bias_of_nested"]) < row["standard_error_of_nested"]


@pytest.mark.parametrize("name", ["nci", "metabolism", "rainbow_mnist"])
def test_selections(name):
    found = stored(f"select_{name}.json")
    assert tables.selection(found) in PAGE
    assert (ROOT / "docs" / "figures" / f"select_{name}.png").stat().st_size < 100_000


def test_simulated_rates_count_only_candidates_that_are_not_better():
    model = simulated.Model([0.5, 0.5, 0.9], 5)
    found = simulated.study(model, 20, 0, nested=False)
    assert found["power"] == 1
    assert found["chooses_best"] == 1
    assert found["false_alarms"] <= 0.05
