"""The page of results: made of files alone, and the committed one is up to date."""

import pathlib
import re

import pytest
from figure_cases import MAML, PROTONET, leave_result
from table_cells import find_cell
from table_files import leave_run

from experiments import report
from experiments.results_store import FOLDER, Results, record
from experiments.table_jobs import Job
from mlti_jax.errors import InputError

ROOT = pathlib.Path(__file__).parent.parent
METABOLISM = ("overall_ls", "Metabolism (5-shot)", "MAML")


def keep(folder, title, seed, per_task):
    run = find_cell(*METABOLISM, title).run
    workdir = folder.parent / f"{title}{seed}"
    leave_run(workdir, seed, 10_000, per_task, strategy=run.strategy)
    record(folder, Job(run, seed, 10_000), workdir)


def test_only_what_has_results_is_shown_with_its_commands(tmp_path):
    folder = tmp_path / "results"
    for seed in (0, 1):
        keep(folder, "Vanilla", seed, (0.5, 0.5, 0.25, 0.75))
        keep(folder, "MLTI", seed, (0.5, 0.75, 0.75, 1.0))
    (folder / "notes.md").write_text("A word on it.\n")
    page = report.page(folder)
    assert "A word on it." in page
    # By hand: 75 and 50 %; the differences 0, 25, 50 and 25 have deviation 20.41.
    line = next(line for line in page.splitlines() if line.startswith("| MAML | MLTI"))
    assert "| 75.00 ± 20.00 (0.00) |" in line
    assert "| +25.00 ± 20.00 |" in line
    assert "**Metabolism (5-shot)**" in page
    assert "**NCI (5-shot)**" not in page
    assert "### overall_nls" not in page
    assert re.search(r"Nothing has been run for: .*overall_nls, ", page)
    assert "MAML, MLTI, paper; seeds 0, 1" in page
    assert "strategy=mlti,split=paper --config.seed=SEED --data_dir=DATA" in page
    assert "## Figures" not in page


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="is no folder of results"):
        report.folder_of(str(tmp_path / "absent"))


def test_pictures_have_words_and_commands(tmp_path):
    pictures = tmp_path / "results" / "pictures"
    pictures.mkdir(parents=True)
    for name in ("tsne_isic", "total_variance"):
        (pictures / f"{name}.png").write_bytes(b"")
    parts = report.figure_parts(tmp_path / "results")
    assert parts[0] == "## Figures"
    assert [part.startswith("![") for part in parts[1:]] == [False, True] * 2
    assert "App. B.3" in parts[1]
    assert "`python -m experiments.figures --figure=tsne" in parts[3]
    assert str(pictures / "tsne_isic.png") in parts[4]


def test_curves_are_drawn_and_single_points_are_not(tmp_path, monkeypatch):
    folder, drawn = tmp_path / "results", []
    monkeypatch.setattr(
        report.figure_task_numbers, "draw", lambda figure, *_: drawn.append(figure)
    )
    for panel in (MAML, PROTONET):
        leave_result(tmp_path, panel, "vanilla", 16)
    report.draw_task_numbers(Results(folder), folder)
    assert not drawn
    leave_result(tmp_path, PROTONET, "vanilla", 24)
    report.draw_task_numbers(Results(folder), folder)
    assert [figure.panels for figure in drawn] == [(PROTONET,)]


def test_all_committed_pictures_have_words():
    for path in (FOLDER / report.PICTURES).glob("*.png"):
        starts = [path.stem.startswith(start) for start in report.PICTURE_WORDS]
        assert sum(starts) == 1, path


def test_the_committed_page_is_that_of_the_committed_results():
    page = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert page == report.page(FOLDER)
