"""Our own tables, which vary one setting at a time."""

import pytest

from experiments.paper import TABLES
from experiments.tables import variations
from experiments.tables.formats import markdown
from experiments.tables.jobs import Job, load_config, make_jobs, shell_command
from experiments.tables.render import Renderer
from experiments.tables.results import Results, record
from experiments.tables.variations import ALL_TABLES, METABOLISM, OURS
from tests.support.table_files import write_run

PER_TASK = (0.5, 0.6, 0.7, 0.8)
CELLS = {(cell.row.group, cell.row.title): cell for cell in METABOLISM.cells()}


def test_order_of_tables():
    assert list(ALL_TABLES)[: len(TABLES)] == list(TABLES)
    assert not set(TABLES) & set(OURS)


@pytest.mark.parametrize("table", OURS.values(), ids=list(OURS))
def test_rows_change_one_setting(table):
    base = {
        cell.row.learner: load_config(cell.run).to_dict()
        for cell in table.cells()
        if cell.row.title == "MLTI"
    }
    for cell in table.cells():
        assert len(cell.row.overrides) == ("," in cell.row.title)
        for field, value in cell.row.overrides:
            before = base[cell.row.learner]
            for part in field.split("."):
                before = before[part]
            assert before != value, field


@pytest.mark.parametrize("learner", ["ProtoNet", "MAML"])
def test_vanilla_has_the_same_variation(learner):
    plain = METABOLISM.vanilla(CELLS[learner, "MLTI"])
    other = METABOLISM.vanilla(CELLS[learner, "MLTI, path fingerprints"])
    assert plain == CELLS[learner, "Vanilla"]
    assert other == CELLS[learner, "Vanilla, path fingerprints"]


@pytest.mark.parametrize("table", OURS.values(), ids=list(OURS))
def test_rows_without_variation_are_the_papers_runs(table):
    ours = {cell.run for cell in table.cells() if cell.row.title == "MLTI"}
    assert len(ours) == 2
    assert ours <= {cell.run for cell in TABLES["overall_ls"].cells()}


def test_steps_of_a_row():
    run = CELLS["ProtoNet", "MLTI, 500 steps"].run
    (job,) = make_jobs([CELLS["ProtoNet", "MLTI, 500 steps"]], seeds=1)
    assert job == Job(run, 0, 500)
    assert job.name == "metabolism/paper-protonet-mlti-for500-seed0"
    assert shell_command(job).count("train.steps") == 1
    # Different from the paper's run with fewer steps from the command line.
    cut = Job(CELLS["ProtoNet", "MLTI"].run, 0, 500)
    assert cut.name != job.name


@pytest.mark.parametrize("table", OURS.values(), ids=list(OURS))
def test_names_are_unique(table):
    cells = table.cells()
    names = [job.name for job in make_jobs(cells, seeds=2)]
    assert len(set(names)) == 2 * len(cells)
    dataset = table.columns[0].config
    assert f"{dataset}/paper-maml-mlti-drawn1-seed0" in names


def test_rows_have_no_number_of_the_paper(tmp_path):
    for title in ("Vanilla", "MLTI", "Vanilla, 500 steps", "MLTI, 500 steps"):
        cell = CELLS["MAML", title]
        assert cell.is_applicable
        assert not cell.has_number
        (job,) = make_jobs([cell], seeds=1)
        per_task = tuple(x + 0.1 * ("500" in title) for x in PER_TASK)
        write_run(tmp_path / "work", 0, job.steps, per_task)
        record(tmp_path / "results", job, tmp_path / "work")
    renderer = Renderer(Results(tmp_path / "results"), lambda run: [])
    lines = markdown([renderer.report(variations.METABOLISM)], "").splitlines()
    line = next(line for line in lines if line.startswith("| MAML | MLTI, 500"))
    shown = [cell.strip() for cell in line.strip("|").split("|")]
    assert shown[2] == ""  # the paper
    assert shown[3].startswith("75.00 ± ")
    assert shown[4] == ""  # from the paper
    assert shown[5] == "+0.00 ± 0.00"
    assert shown[-1] == "1 seed"
