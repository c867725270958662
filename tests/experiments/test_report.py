"""The results page: its parts, and that the committed page is up to date."""

import json
import re

import pytest

from experiments import report
from experiments.tables.jobs import Job
from experiments.tables.results import FOLDER, Results, existing_folder, record
from mlti_jax.errors import InputError
from tests.support.figure_cases import MAML, PROTONET, record_point
from tests.support.table_cells import find_cell
from tests.support.table_files import write_run

METABOLISM = ("overall_ls", "Metabolism (5-shot)", "MAML")


def keep(folder, title, seed, per_task):
    run = find_cell(*METABOLISM, title).run
    workdir = folder.parent / f"{title}{seed}"
    write_run(workdir, seed, 10_000, per_task, strategy=run.strategy)
    record(folder, Job(run, seed, 10_000), workdir)


def test_tables_with_results_are_shown_with_their_runs(tmp_path):
    folder = tmp_path / "results"
    for seed in (0, 1):
        keep(folder, "Vanilla", seed, (0.5, 0.5, 0.25, 0.75))
        keep(folder, "MLTI", seed, (0.5, 0.75, 0.75, 1.0))
    (folder / "notes.md").write_text("A word on it.\n")
    page = report.page(folder, tmp_path / "figures")
    assert "A word on it." in page
    # By hand: 75 and 50 %; the differences 0, 25, 50 and 25 have deviation 20.41. Those
    # of the two seeds are equal.
    line = next(line for line in page.splitlines() if line.startswith("| MAML | MLTI"))
    assert "| 75.00 ± 20.00 (0.00) |" in line
    assert "| +25.00 ± 20.00 (0.00) |" in line
    assert "#### Metabolism (5-shot)" in page
    assert "#### NCI (5-shot)" not in page
    assert "Not run: Pose (15-shot), RMNIST (1-shot), NCI (5-shot)." in page
    assert "### overall_nls" not in page
    assert re.search(r"No results yet: .*overall_nls, ", page)
    assert (
        "| MAML, MLTI, paper | `metabolism.py:learner=maml,strategy=mlti,split=paper` "
        "| 0, 1 |"
    ) in page
    assert "## Figures" not in page


def test_missing_folder_raises(tmp_path):
    with pytest.raises(InputError, match="is not a folder of results"):
        existing_folder(str(tmp_path / "absent"))


def test_figures_have_captions_and_commands(tmp_path):
    for name in ("tsne_isic", "total_variance", "without_caption"):
        (tmp_path / f"{name}.png").write_bytes(b"")
    parts = report.figure_parts(Results(tmp_path / "results"), tmp_path)
    assert parts[0] == "## Figures"
    assert [part.startswith("![") for part in parts[1:]] == [False, True] * 2
    assert "App. B.3" in parts[1]
    assert "`python -m experiments.figures --figure=tsne" in parts[3]
    assert parts[4] == "![tsne_isic](figures/tsne_isic.png)"


def test_figure_of_task_numbers_lists_the_runs_of_its_points(tmp_path):
    for number in (16, 24):
        record_point(tmp_path, PROTONET, "vanilla", number)
    (tmp_path / "task_numbers_rainbow_mnist.png").write_bytes(b"")
    text = report.figure_parts(Results(tmp_path / "results"), tmp_path)[-1]
    assert "<summary>2 runs</summary>" in text
    assert (
        "| RainbowMNIST, ProtoNet, vanilla, 24 training combinations "
        "| `rainbow_mnist.py:learner=protonet,strategy=vanilla` "
        "| `dataset.train_classes=24`, `train.steps=10` | 0 |"
    ) in text


def test_overrides_of_a_command():
    config, overrides = report._config_and_overrides(
        "python -m experiments.run --config=experiments/configs/nci.py:learner=maml "
        "--config.seed=0 '--config.interpolation.layers=(0,)' --workdir=DIR"
    )
    assert config == "nci.py:learner=maml"
    assert overrides == ["interpolation.layers=(0,)"]


def test_tables_of_the_theory(tmp_path):
    assert report.theory_parts(tmp_path) == []
    slope = {by: {"right": 3.5} for by in ("features", "spread")}
    remainder = {by: {"right": [0.25, 0.1]} for by in ("features", "spread")}
    case = {"case": "Lemma 1", "slope": slope, "remainder": remainder}
    variance = {
        "data": "pixels",
        "trace": {
            "within_class": 1.0,
            "between_classes": 2.0,
            "between_tasks": 3.0,
            "total": 6.0,
        },
        "eigenvalues": {"within_task": [4.0], "total": [5.0]},
        "tasks_above_total": 1,
        "tasks": 7,
    }
    numbers = {"remainders": [case], "total_variance": [variance]}
    (tmp_path / "theory.json").write_text(json.dumps(numbers))
    text = "\n".join(report.theory_parts(tmp_path))
    assert re.search(r"Lemma 1 +right +2\.5e-01 +3\.50 +3\.50", text)
    assert re.search(r"pixels +1\.00 +2\.00 +3\.00 +6\.00 +4\.00 +5\.00 +1/7", text)


def test_only_curves_with_two_or_more_points_are_drawn(tmp_path, monkeypatch):
    folder, drawn = tmp_path / "results", []
    monkeypatch.setattr(
        report.task_numbers, "draw", lambda figure, *_: drawn.append(figure)
    )
    for panel in (MAML, PROTONET):
        record_point(tmp_path, panel, "vanilla", 16)
    report.draw_task_numbers(Results(folder), tmp_path)
    assert not drawn
    record_point(tmp_path, PROTONET, "vanilla", 24)
    report.draw_task_numbers(Results(folder), tmp_path)
    assert [figure.panels for figure in drawn] == [(PROTONET,)]


@pytest.mark.slow  # A short training for each method with stored numerics
def test_the_committed_page_is_up_to_date():
    page = report.PAGE.read_text(encoding="utf-8")
    assert page == report.page(FOLDER, report.PAGE.parent / report.FIGURES)
    for beginning in (*report.CAPTIONS, report.DIFFERENCES):
        assert f"({report.FIGURES}/{beginning}" in page, beginning
