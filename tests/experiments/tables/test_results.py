"""Results of runs: recorded, compared and rendered."""

import dataclasses
import functools
import json
import math
import pathlib
import re
import statistics

import jax
import numpy as np
import pytest

from experiments import report
from experiments.paper import TABLES
from experiments.tables.__main__ import listing
from experiments.tables.formats import latex, markdown
from experiments.tables.jobs import Job, load_config
from experiments.tables.render import LEGEND, Renderer
from experiments.tables.results import Results, record, result_path
from experiments.tables.statistics import compare, summarize
from experiments.tables.status import unprepared_datasets
from mlti_jax.errors import InputError
from tests.support.table_cells import find_cell
from tests.support.table_files import PER_TASK, write_run

METABOLISM = ("overall_ls", "Metabolism (5-shot)", "MAML")
VANILLA = {0: (0.5, 0.6, 0.7, 0.8), 1: (0.7, 0.6, 0.5, 0.6)}
MLTI = {0: (0.7, 0.8, 0.9, 0.8), 1: (0.7, 0.6, 0.7, 0.8)}


@pytest.fixture
def keep(tmp_path):
    """Records a result for a cell."""
    folder = tmp_path / "results"

    def call(title, seed, per_task, steps=10_000, alternative=False, **changes):
        cell = find_cell(*METABOLISM, title)
        job = Job(cell.alternative_run if alternative else cell.run, seed, steps)
        workdir = tmp_path / "work" / job.name
        write_run(workdir, seed, steps, per_task, strategy=cell.run.strategy, **changes)
        return record(folder, job, workdir)

    call.folder = folder
    return call


def lines_of(text: str, row: str) -> list[list[str]]:
    """Returns the cells of the rows of a Markdown table with these titles."""
    found = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def rendered(folder, table="overall_ls", **options) -> str:
    missing = functools.partial(unprepared_datasets, data_dir=folder.parent / "no data")
    renderer = Renderer(Results(folder), missing, **options)
    return markdown([renderer.report(TABLES[table])], LEGEND)


def test_result_is_recorded_with_its_command(keep):
    result = keep("MLTI", 1, (0.123456789, 1.0, 0.5, 0.25), steps=70)
    job = Job(find_cell(*METABOLISM, "MLTI").run, 1, 70)
    assert result_path(keep.folder, job).relative_to(keep.folder) == pathlib.Path(
        "metabolism/paper-maml-mlti-steps70-seed1.json"
    )
    assert Results(keep.folder).get(job) == result
    assert result["per_task"] == [0.12346, 1.0, 0.5, 0.25]
    assert result["command"] == (
        "python -m experiments.run --config=experiments/configs/metabolism.py:"
        "learner=maml,strategy=mlti,split=paper --config.seed=1 "
        "--config.train.steps=70 --data_dir=DATA --workdir=DIR"
    )
    # Five steps at 0.5 per second while compiling, five at 2.5: twelve seconds.
    assert (result["train_seconds"], result["steps_per_second"]) == (12.0, 2.5)
    assert Results(keep.folder).get(dataclasses.replace(job, steps=10_000)) is None
    assert Results(keep.folder).get(dataclasses.replace(job, seed=0)) is None


def test_damaged_results_raise(keep):
    keep("MLTI", 0, PER_TASK)
    (path,) = keep.folder.glob("*/*.json")
    whole = path.read_text()
    path.write_text(whole[:50])
    with pytest.raises(InputError, match=f"{path} is damaged .not valid JSON"):
        Results(keep.folder)
    for text, message in {
        whole.replace("0.75, ", "", 1): "per_task does not have 4",
        re.sub(r'("per_task": )\[.*?\]', r"\1null", whole, flags=re.S): "per_task does",
        whole.replace('"config"', '"confog"'): "missing config;",
    }.items():
        path.write_text(text)
        with pytest.raises(InputError, match=f"not a valid result: {message}"):
            Results(keep.folder)
    path.write_text(whole)
    path.with_name("copy.json").write_text(whole)
    with pytest.raises(InputError, match="is a second result of python -m"):
        Results(keep.folder)


def test_settings_are_recorded_and_outdated_results_skipped(keep, capsys):
    job = Job(find_cell(*METABOLISM, "MLTI").run, 0, 10_000)
    whole = load_config(job.run).to_dict()
    keep("MLTI", 0, PER_TASK)
    path = result_path(keep.folder, job)
    workdir = keep.folder.parent / "work" / job.name
    config = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps(whole | {"data": config["data"]}))
    result = record(keep.folder, job, workdir)
    assert result["settings"]["strategy.mlti.alpha"] == 0.5
    assert result["settings"]["interpolation.layers"] == [0, 1]
    assert result["versions"]["jax"] == jax.__version__
    # Strategies that were not chosen and fields recorded separately are not included.
    for absent in ("strategy.maxup.alpha", "seed", "train.steps", "data.source"):
        assert absent not in result["settings"]
    assert Results(keep.folder).get(job) == result
    for field, value, kept in (
        ("task.queries", 10, True),
        ("unknown.field", 1, True),
        ("task.queries", 15, False),
        ("interpolation.layers", [0], False),
    ):
        changed = result | {"settings": result["settings"] | {field: value}}
        path.write_text(json.dumps(changed))
        assert (Results(keep.folder).get(job) is not None) == kept
        message = f"paper-maml-mlti-seed0: {field} was {value} and is now"
        assert (message in capsys.readouterr().err) != kept


def test_measurements_of_the_theory_are_not_results_of_runs(keep):
    keep("MLTI", 0, PER_TASK)
    (keep.folder / "theory.json").write_text("{}")
    assert len(Results(keep.folder).all) == 1


def test_means_and_differences_worked_by_hand(keep):
    for seed in (0, 1):
        keep("Vanilla", seed, VANILLA[seed])
        keep("MLTI", seed, MLTI[seed])
    text = rendered(keep.folder)
    # Tasks averaged over seeds: .6 .6 .6 .7, deviation .05. Seeds: .65 and .60.
    (line,) = [x for x in lines_of(text, "MAML | Vanilla") if x[2] == "57.22 ± 1.01"]
    assert line[3:] == ["62.50 ± 4.90 (3.54)", "+5.28 ± 5.00", "", "2 seeds"]
    # Tasks: .7 .7 .8 .8. Seeds: .8 and .7. Differences: .1 .1 .2 .1.
    (line,) = [x for x in lines_of(text, "MAML | MLTI") if x[2] == "60.28 ± 1.00"]
    assert line[3:] == [
        "75.00 ± 5.66 (7.07)",
        "+14.72 ± 5.75",
        # Seeds .15 and .10: 12.706 * .0354 / sqrt(2) = .3177, with .0490 .3214.
        "+12.50 ± 32.14 (3.54)",
        "2 seeds",
    ]
    assert "### Metabolism (5-shot)" in text
    assert "standard deviation of the seeds' means" in text


def test_single_seeds_other_steps_and_the_alternative_split(keep):
    keep("Vanilla", 0, VANILLA[0], steps=70)
    keep("MLTI", 0, MLTI[0], steps=70)
    keep("MLTI", 1, MLTI[1], steps=60)
    keep("MLTI", 0, MLTI[0], alternative=True, source="disjoint")
    text = rendered(keep.folder)
    assert "| ours, disjoint | vs. vanilla, disjoint | runs |" in text
    line = lines_of(text, "MAML | MLTI")[-1]
    # No row has the steps of the config, so the largest number is shown.
    assert line[3] == "80.00 ± 8.00"
    assert line[5] == "+15.00 ± 9.80"
    assert line[6:8] == ["80.00 ± 8.00", "vanilla not run for 10,000 steps"]
    assert line[8] == "1 seed, 70 of 10,000 steps; disjoint: 1 seed"
    line = lines_of(rendered(keep.folder, steps=60), "MAML | MLTI")[-1]
    assert line[3] == "70.00 ± 8.00"
    assert line[5:] == [
        "vanilla not run for 60 steps",
        "1 seed, 60 of 10,000 steps",
    ]


def test_rows_show_the_steps_that_most_of_them_have(keep):
    for title in ("Vanilla", "MLTI"):
        keep(title, 0, PER_TASK, steps=90)
    for title in ("Vanilla", "MetaMix", "MLTI"):
        keep(title, 0, MLTI[0], steps=70)
    keep("MetaAug", 0, MLTI[0], steps=80)
    keep("TAML", 0, MLTI[0], steps=90)
    text = rendered(keep.folder)
    notes = {
        title: lines_of(text, f"MAML | {title}")[-1][-3:]
        for title in ("Vanilla", "MetaMix", "MLTI", "MetaAug", "TAML")
    }
    # Three rows have 70 steps and three have 90: the larger number is shown.
    # Differences are between runs with equal steps.
    assert [notes[title][-1] for title in notes] == [
        f"1 seed, {steps} of 10,000 steps" for steps in (90, 70, 90, 80, 90)
    ]
    assert notes["MetaMix"][-2] == "+0.00 ± 0.00"
    assert notes["MetaAug"][-2] == "vanilla not run for 80 steps"
    keep("MetaMix", 1, MLTI[0], steps=60)
    keep("Meta-Reg", 0, MLTI[0], steps=70)
    line = lines_of(rendered(keep.folder), "MAML | MLTI")[-1]
    assert line[-1] == "1 seed, 70 of 10,000 steps"


def test_only_some_rows_and_columns(keep):
    text = rendered(keep.folder, only=("metabolism", "protonet"))
    assert text.count("### ") == 1
    assert not lines_of(text, "MAML | MLTI")
    assert len(lines_of(text, "ProtoNet | MLTI")) == 1
    assert rendered(keep.folder, only=("disjoint",)).count("### ") == 2
    renderer = Renderer(Results(keep.folder), lambda run: [], only=("nonsense",))
    assert renderer.report(TABLES["overall_ls"]) is None


def test_cells_without_a_result_give_the_reason(keep):
    text = rendered(keep.folder)
    (line,) = lines_of(text, "ProtoNet | MLTI")[:1]
    assert line[2:] == ["n/a", "not given in the paper", "", "", ""]
    assert lines_of(text, "MAML | MLTI")[0][3] == "dataset not prepared: pose"
    assert lines_of(text, "MAML | MLTI")[1][3] == "not run"  # has built-in images
    assert "dataset not prepared: dermnet" in rendered(keep.folder, "cross_domain")
    assert str(keep.folder.parent) not in text


def test_built_in_images_are_noted(tmp_path):
    cell = find_cell("overall_ls", "RMNIST (1-shot)", "MAML", "MLTI")
    job = Job(cell.run, 0, 30_000)
    write_run(tmp_path / "work", 0, 30_000, source="builtin", strategy="mlti")
    record(tmp_path / "results", job, tmp_path / "work")
    text = rendered(tmp_path / "results")
    assert lines_of(text, "MAML | MLTI")[1][-1] == "1 seed, built-in images"


def test_parts_of_releases_are_noted(tmp_path):
    cell = find_cell("overall_ls", "RMNIST (1-shot)", "MAML", "MLTI")
    job = Job(cell.run, 0, 30_000)
    part = {
        "prepared": "198 of 203 classes",
        "left_out": {"train": ["a"], "test": ["b", "c"]},
    }
    write_run(tmp_path / "work", 0, 30_000, part=part, strategy="mlti")
    assert record(tmp_path / "results", job, tmp_path / "work")["part"] == part
    text = rendered(tmp_path / "results")
    assert lines_of(text, "MAML | MLTI")[1][-1] == (
        "1 seed, part of the release (198 of 203 classes),"
        " without 1 train and 2 test classes"
    )
    (tmp_path / "figures").mkdir()
    page = report.page(tmp_path / "results", tmp_path / "figures")
    assert "part of the release (198 of 203 classes), without 1 train and 2" in page


def test_pairing_matches_a_loop():
    rng = np.random.default_rng(0)
    sides = [
        {seed: make_result(rng.integers(0, 21, 50) / 20, seed) for seed in seeds}
        for seeds in ((0, 1, 2), (1, 2, 5))
    ]
    means = []
    for task in range(50):
        ours, theirs = (
            statistics.mean(side[seed]["per_task"][task] for seed in (1, 2))
            for side in sides
        )
        means.append(ours - theirs)
    by_seed = [
        statistics.mean(sides[0][seed]["per_task"])
        - statistics.mean(sides[1][seed]["per_task"])
        for seed in (1, 2)
    ]
    got = compare(*sides)
    assert got.mean == pytest.approx(statistics.mean(means))
    assert got.ci95 == pytest.approx(1.96 * statistics.stdev(means) / math.sqrt(50))
    assert got.deviation == pytest.approx(statistics.stdev(by_seed))
    assert got.seeds == 2


def make_result(per_task, seed=0, **changes) -> dict:
    result = {
        "dataset": "nci",
        "metric": "accuracy",
        "ways": 2,
        "shots": 5,
        "queries": 10,
        "num_tasks": len(per_task),
        "eval_seed": 0,
        "checksums": {"train": 1, "test": 2},
        "train_steps": 100,
        "seed": seed,
        "per_task": list(per_task),
    }
    return result | changes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset", "metabolism"),
        ("queries", 5),
        ("eval_seed", 1),
        ("checksums", {"train": 1, "test": 3}),
        ("checksums", {"train": 0, "test": 2}),
        ("train_steps", 50),
        ("num_tasks", 3),
    ],
)
def test_results_on_different_tasks_are_not_compared(field, value):
    one = make_result(PER_TASK)
    other = make_result(PER_TASK[:3] if field == "num_tasks" else PER_TASK)
    other[field] = value
    assert compare({0: one}, {0: other}) == f"different {field}"
    assert summarize({0: one, 1: other}) == f"seeds with different {field}"
    assert compare({0: one}, {1: one}) == "no seed in common"


def test_table_shows_why_results_are_not_paired(keep):
    keep("Vanilla", 0, VANILLA[0], eval_seed=1)
    keep("MLTI", 0, MLTI[0])
    keep("MLTI", 1, MLTI[1], checksums={"train": 1, "test": 3})
    text = rendered(keep.folder)
    line = lines_of(text, "MAML | MLTI")[-1]
    assert line[3:6] == [
        "seeds with different checksums",
        "",
        "not paired: different eval_seed",
    ]


def test_number_of_paired_seeds_is_shown(keep):
    keep("Vanilla", 1, VANILLA[1])
    keep("MLTI", 0, MLTI[0])
    keep("MLTI", 1, MLTI[1])
    line = lines_of(rendered(keep.folder), "MAML | MLTI")[-1]
    assert line[5] == "+10.00 ± 11.32 (1 of 2 seeds)"  # 0, 0, .2, .2


def test_latex(keep):
    keep("MLTI", 0, (0.5, 0.5, 0.6, 0.4), steps=70)
    report = Renderer(Results(keep.folder), lambda run: []).report(TABLES["overall_ls"])
    text = latex([report], LEGEND)
    assert text.startswith(r"% Needs \usepackage{booktabs,graphicx}.")
    assert text.count(r"$\pm$ 1.96 standard errors over tasks") == 1
    assert r"\section*{overall\_ls}" in text
    # One below each of the four headers, one between the two learners.
    assert text.count(r"\midrule") == 8
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 4
    assert (
        r"MAML & MLTI & 60.28 $\pm$ 1.00 & 50.00 $\pm$ 8.00 & $-$10.28 $\pm$ 8.06 & "
        r"vanilla not run for 70 steps & 1 seed, 70 of 10,000 steps \\"
    ) in text
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert line.count("&") == 6


def test_listing_counts_results(keep):
    keep("MLTI", 0, PER_TASK)
    keep("MLTI", 1, PER_TASK)
    keep("MLTI", 0, PER_TASK, alternative=True)
    text = listing(Results(keep.folder))
    for name in ("overall_ls", "ablation_ls"):
        assert re.search(
            rf"{name} .*; results for 1, 1 with disjoint \(3 runs\)\n", text
        )
    assert re.search("overall_nls .*; no results", text)
