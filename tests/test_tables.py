"""The paper's tables: their numbers, their runs, and what is made of results."""

import dataclasses
import functools
import math
import pathlib
import re
import statistics
import sys

import numpy as np
import pytest
from table_files import PER_TASK, leave_run
from test_command_line import forget_flags

from experiments import command_line, run, tables
from experiments.paper import TABLES, Cell, Run
from experiments.results_store import Results, path_of, record
from experiments.table_formats import latex, markdown
from experiments.table_jobs import Job, arguments, command_to_type, paper_config
from experiments.table_listing import listing
from experiments.table_render import Renderer
from experiments.table_state import unprepared
from experiments.table_statistics import paired, summarise
from experiments.variations import ALL_TABLES
from mlti_jax.errors import InputError
from mlti_jax.learners import FAMILIES
from mlti_jax.strategies import check_applicable, parse

ROOT = pathlib.Path(__file__).parent.parent


def find_cell(table: str, column: str, group: str, title: str) -> Cell:
    found = [
        cell
        for cell in TABLES[table].cells()
        if (cell.column.title, cell.row.group, cell.row.title) == (column, group, title)
    ]
    assert len(found) == 1
    return found[0]


def all_runs() -> list[Run]:
    cells = [cell for table in TABLES.values() for cell in table.cells()]
    pairs = [(cell.run, cell.other_run) for cell in cells if cell.is_given]
    return list(dict.fromkeys(each for pair in pairs for each in pair if each))


# ------------------------------------------------------------- the paper's numbers


@pytest.mark.parametrize(
    ("place", "mean", "ci95"),
    [
        (("overall_ls", "Pose (15-shot)", "MAML", "Meta-Dropout"), 2.501, 0.090),
        (("overall_ls", "Metabolism (5-shot)", "ProtoNet", "MLTI"), 63.47, 0.96),
        (("ablation_ls", "RMNIST (1-shot)", "MAML", "Cross-Intrpl"), 65.34, 1.78),
        (("compatibility_ls", "NCI (5-shot)", "MC", "Vanilla"), 77.25, 0.80),
        (("overall_nls", "ISIC", "ProtoNet (5-shot)", "Meta-Maxup"), 68.97, 0.83),
        (
            ("ablation_nls", "DermNet-S", "ProtoNet (1-shot)", "Intra-Intrpl"),
            46.97,
            0.81,
        ),
        (
            ("compatibility_nls", "Tabular Murris", "ANIL (5-shot)", "MLTI"),
            82.75,
            0.89,
        ),
        (
            ("cross_domain", "DermNet-S to miniImagenet-S, 1-shot", "MAML", "MLTI"),
            30.03,
            0.58,
        ),
        (("full_size", "DermNet-full, 5-shot", "MAML", "MetaMix"), 71.57, 0.67),
        (("resnet12", "miniImagenet-S", "ProtoNet", "Vanilla"), 40.96, 0.75),
        (
            ("interpolation_layers", "Metabolism (5-shot)", "ProtoNet", "Layer 1"),
            62.38,
            0.94,
        ),
        (
            ("extremely_limited", "miniImagenet (8 classes), 5-shot", "SL", ""),
            45.57,
            0.69,
        ),
        (("additional_datasets", "Huffpost, 5-shot", "MAML", "TAML"), 50.89, 0.88),
    ],
)
def test_numbers_are_the_papers(place, mean, ci95):
    cell = find_cell(*place)
    assert (cell.mean, cell.ci95) == (mean, ci95)


def test_what_the_paper_does_not_give():
    absent = [
        (cell.column.config, cell.row.learner)
        for table in TABLES.values()
        for cell in table.cells()
        if not cell.is_given
    ]
    assert set(absent) == {("pose", "protonet"), ("pose", "matchingnet")}
    assert len(absent) == 4 + 4 + 2


def tex_numbers(tex: str, label: str) -> list[list[str]]:
    """The numbers of each line of a table, as `mean±ci95` or `n/a`."""
    body = tex.partition(rf"\label{{tab:{label}}}")[2].partition(r"\end{tabular}")[0]
    body = re.sub(r"\\textbf\{([^}]*)\}", r"\1", body).replace(r"\%", "")
    body = re.sub(r"\s*\$\\pm\$\s*", "±", body)
    lines = [re.findall(r"n/a|\d+\.\d\d+(?:±[\d.]+)?", x) for x in body.split(r"\\")]
    return [line for line in lines if line]


@pytest.mark.parametrize("name", TABLES)
def test_numbers_stand_in_the_papers_source(name, raw_dir):
    path = raw_dir.parent / "paper" / "mlti.tex"
    if not path.exists():
        pytest.skip("the paper's source is not here")
    tex = re.sub(r"(?m)^%.*", "", path.read_text())
    table = TABLES[name]
    assert [list(row.numbers) for row in table.rows] == tex_numbers(
        tex, table.labels[-1]
    )
    means = sorted(
        number.partition("±")[0] for row in table.rows for number in row.numbers
    )
    for label in table.labels[:-1]:  # without intervals, in another order
        assert sorted(sum(tex_numbers(tex, label), [])) == means
    plain = tex.replace(r"$\pm$", "±").replace(r"\%", "%")
    assert table.caption.rstrip(".") in plain


def test_all_tables_of_results_are_there(raw_dir):
    path = raw_dir.parent / "paper" / "mlti.tex"
    if not path.exists():
        pytest.skip("the paper's source is not here")
    tex = re.sub(r"(?m)^%.*", "", path.read_text())
    labels = set(re.findall(r"\\label\{tab:(\w+)\}", tex))
    ours = {label for table in TABLES.values() for label in table.labels}
    assert labels - ours == {"hyperpara_ls", "hyperpara_nls"}
    assert ours < labels


# ------------------------------------------------------------------- their runs


def test_every_run_has_a_config_that_its_learner_fits():
    runs = all_runs()
    assert len({each.name for each in runs}) == len(runs)
    families = {name: kind for kind, names in FAMILIES.items() for name in names}
    for each in runs:
        config = paper_config(each)
        assert config.learner.name == each.learner
        assert config.strategy.name == each.strategy
        check_applicable(parse(each.strategy), each.learner, families[each.learner])


def test_a_field_that_there_is_not_is_refused():
    with pytest.raises(KeyError, match="layerz"):
        paper_config(Run("nci", "maml", "mlti", overrides=(("train.layerz", 1),)))
    with pytest.raises(InputError, match="unknown config argument 'shotz'"):
        paper_config(Run("isic", "maml", "mlti", arguments=(("shotz", 1),)))


def test_commands_make_the_configs(monkeypatch):
    """As the command line reads them, for one run of each kind."""
    kinds = {
        (each.config, each.variant, tuple(dict(each.arguments)), each.overrides): each
        for each in all_runs()
    }
    assert len(kinds) > 20
    read = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(run, "build", lambda config, data_dir: read.append(config))
    monkeypatch.setattr(run, "train_and_evaluate", lambda experiment, workdir: {})
    monkeypatch.setattr(run, "summary", lambda result: "")
    monkeypatch.setattr(run.parallel, "use_all_cores", lambda: None)
    for each in kinds.values():
        argv = arguments(Job(each, 3, 77), "work", "data", "albert")[1:]
        monkeypatch.setattr(sys, "argv", [*argv, "--config.compilation_cache=off"])
        forget_flags(run.flags.FLAGS)
        assert command_line.run(run.main, run.__doc__) == 0
        expected = paper_config(each).copy_and_resolve_references()
        with expected.unlocked():
            expected.seed, expected.train.steps = 3, 77
            expected.compilation_cache = "off"
            if "albert" in each.argument:
                expected.backbone.albert.pretrained = "albert"
                expected.dataset.tokenizer = "albert"
        assert read[-1].to_dict() == expected.to_dict()


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        (("full_size", "miniImagenet-full, 1-shot", "MAML", "TAML"), "classes", 64),
        (("full_size", "DermNet-full, 5-shot", "MAML", "TAML"), "classes", 150),
        (("extremely_limited", "DermNet (8 classes), 1-shot", "MTL", ""), "classes", 8),
        (("overall_nls", "DermNet-S", "MAML (5-shot)", "MLTI"), "classes", 30),
        (("overall_nls", "DermNet-S", "MAML (5-shot)", "MLTI"), "shots", 5),
        (("resnet12", "DermNet-S", "MAML", "MetaMix"), "network", "resnet12"),
        (("resnet12", "DermNet-S", "MAML", "MetaMix"), "shots", 1),
        (
            ("interpolation_layers", "Tabular Murris (1-shot)", "ProtoNet", "Layer 1"),
            "layers",
            (1,),
        ),
        (
            ("cross_domain", "miniImagenet-S to DermNet-S, 5-shot", "MAML", "MLTI"),
            "test_on",
            "dermnet",
        ),
        (("additional_datasets", "Huffpost, 1-shot", "MAML", "MLTI"), "rate", 2e-5),
        (("overall_ls", "NCI (5-shot)", "ProtoNet", "MLTI"), "split", "paper"),
        (("overall_ls", "NCI (5-shot)", "ProtoNet", "MLTI"), "alpha", 0.5),
        (("overall_ls", "RMNIST (1-shot)", "ProtoNet", "MLTI"), "steps", 30_000),
    ],
)
def test_runs_are_what_the_papers_text_says(place, field, value):
    config = paper_config(find_cell(*place).run)
    found = {
        "classes": config.dataset.get("train_classes"),
        "shots": config.task.shots,
        "network": config.backbone.name,
        "layers": config.interpolation.layers,
        "test_on": config.dataset.get("test_on"),
        "rate": config.train.learning_rate,
        "split": config.dataset.get("split"),
        "alpha": config.strategy.mlti.alpha,
        "steps": config.train.steps,
    }
    assert found[field] == value


def test_vanilla_rows():
    for table in TABLES.values():
        for cell in table.cells():
            vanilla = table.vanilla(cell)
            if vanilla is None:
                assert cell.row.strategy == "vanilla"
                continue
            assert vanilla.run.strategy == "vanilla"
            assert vanilla.run.learner == cell.run.learner
            assert paper_config(vanilla.run).task == paper_config(cell.run).task
            assert paper_config(vanilla.run).dataset == paper_config(cell.run).dataset


# ------------------------------------------------------------ results and numbers

METABOLISM = ("overall_ls", "Metabolism (5-shot)", "MAML")
VANILLA = {0: (0.5, 0.6, 0.7, 0.8), 1: (0.7, 0.6, 0.5, 0.6)}
MLTI = {0: (0.7, 0.8, 0.9, 0.8), 1: (0.7, 0.6, 0.7, 0.8)}


@pytest.fixture
def keep(tmp_path):
    """Records a result of a cell, as if it had been run."""
    folder = tmp_path / "results"

    def call(title, seed, per_task, steps=10_000, other=False, **changes):
        cell = find_cell(*METABOLISM, title)
        job = Job(cell.other_run if other else cell.run, seed, steps)
        workdir = tmp_path / "work" / job.name
        leave_run(workdir, seed, steps, per_task, strategy=cell.run.strategy, **changes)
        return record(folder, job, workdir)

    call.folder = folder
    return call


def lines_of(text: str, row: str) -> list[list[str]]:
    """The cells of the lines of a Markdown table that begin with the row's titles."""
    found = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def rendered(folder, table="overall_ls", **options) -> str:
    absent = functools.partial(unprepared, data_dir=folder.parent / "no data")
    renderer = Renderer(Results(folder), absent, **options)
    return markdown([renderer.report(TABLES[table])])


def test_a_result_is_recorded_with_its_command(keep):
    result = keep("MLTI", 1, (0.123456789, 1.0, 0.5, 0.25), steps=70)
    job = Job(find_cell(*METABOLISM, "MLTI").run, 1, 70)
    assert path_of(keep.folder, job).relative_to(keep.folder) == pathlib.Path(
        "metabolism/paper-maml-mlti-steps70-seed1.json"
    )
    assert Results(keep.folder).of(job) == result
    assert result["per_task"] == [0.12346, 1.0, 0.5, 0.25]
    assert result["command"] == (
        "python -m experiments.run --config=experiments/configs/metabolism.py:"
        "learner=maml,strategy=mlti,split=paper --config.seed=1 "
        "--config.train.steps=70 --data_dir=DATA --workdir=DIR"
    )
    # Five steps at 0.5 a second, five at 2.5: twelve seconds.
    assert (result["train_seconds"], result["steps_per_second"]) == (12.0, 1.5)
    assert Results(keep.folder).of(dataclasses.replace(job, steps=10_000)) is None
    assert Results(keep.folder).of(dataclasses.replace(job, seed=0)) is None


def test_a_command_with_brackets_is_quoted():
    cell = find_cell(
        "interpolation_layers", "Metabolism (5-shot)", "ProtoNet", "Layer 0"
    )
    assert "'--config.interpolation.layers=(0,)'" in command_to_type(
        Job(cell.run, 0, 10_000)
    )


def test_damaged_results_are_named(keep):
    keep("MLTI", 0, PER_TASK)
    (path,) = keep.folder.glob("*/*.json")
    whole = path.read_text()
    path.write_text(whole[:50])
    with pytest.raises(InputError, match=f"{path} is no whole result: arguments, "):
        Results(keep.folder)
    path.write_text(whole.replace("0.75, ", "", 1))
    with pytest.raises(InputError, match="no whole result: per_task missing"):
        Results(keep.folder)
    path.write_text(whole.replace('"config"', '"confog"'))
    with pytest.raises(InputError, match="no whole result: config missing"):
        Results(keep.folder)
    path.write_text(whole)
    path.with_name("copy.json").write_text(whole)
    with pytest.raises(InputError, match="is a second result of python -m"):
        Results(keep.folder)


def test_seeds_and_differences_by_hand(keep):
    for seed in (0, 1):
        keep("Vanilla", seed, VANILLA[seed])
        keep("MLTI", seed, MLTI[seed])
    text = rendered(keep.folder)
    # Tasks averaged over seeds: .6 .6 .6 .7, deviation .05; seeds: .65 and .60.
    (line,) = [x for x in lines_of(text, "MAML | Vanilla") if x[2] == "57.22 ± 1.01"]
    assert line[3:] == ["62.50 ± 4.90 (3.54)", "+5.28 ± 5.00", "", "2 seeds"]
    # .7 .7 .8 .8; seeds .8 and .7; differences .1 .1 .2 .1.
    (line,) = [x for x in lines_of(text, "MAML | MLTI") if x[2] == "60.28 ± 1.00"]
    assert line[3:] == [
        "75.00 ± 5.66 (7.07)",
        "+14.72 ± 5.75",
        "+12.50 ± 4.90",
        "2 seeds",
    ]
    assert "### Metabolism (5-shot)" in text
    assert "standard deviation of the seeds' means" in text


def test_single_seeds_other_steps_and_the_other_split(keep):
    keep("Vanilla", 0, VANILLA[0], steps=70)
    keep("MLTI", 0, MLTI[0], steps=70)
    keep("MLTI", 1, MLTI[1], steps=60)
    keep("MLTI", 0, MLTI[0], other=True, source="disjoint")
    text = rendered(keep.folder)
    assert "| ours, disjoint | from vanilla, disjoint | runs |" in text
    line = lines_of(text, "MAML | MLTI")[-1]
    assert line[3] == "80.00 ± 8.00"  # the most steps where the paper's are not there
    assert line[5] == "+15.00 ± 9.80"
    assert line[6:8] == ["80.00 ± 8.00", "vanilla not run"]
    assert line[8] == "1 seed, 70 of 10,000 steps; disjoint: 1 seed"
    line = lines_of(rendered(keep.folder, steps=60), "MAML | MLTI")[-1]
    assert line[3] == "70.00 ± 8.00"
    assert line[5:] == ["vanilla not run", "1 seed, 60 of 10,000 steps"]


def test_cells_without_a_result_say_why(keep):
    text = rendered(keep.folder)
    (line,) = lines_of(text, "ProtoNet | MLTI")[:1]
    assert line[2:] == ["n/a", "not given in the paper", "", "", ""]
    assert lines_of(text, "MAML | MLTI")[0][3] == "no data here: pose"
    assert lines_of(text, "MAML | MLTI")[1][3] == "not run"  # has built-in images
    assert "no data here: dermnet" in rendered(keep.folder, "cross_domain")
    assert str(keep.folder.parent) not in text


def test_built_in_images_are_not_the_papers(tmp_path):
    cell = find_cell("overall_ls", "RMNIST (1-shot)", "MAML", "MLTI")
    job = Job(cell.run, 0, 30_000)
    leave_run(tmp_path / "work", 0, 30_000, source="builtin", strategy="mlti")
    record(tmp_path / "results", job, tmp_path / "work")
    text = rendered(tmp_path / "results")
    assert lines_of(text, "MAML | MLTI")[1][-1] == "1 seed, built-in images"


def test_pairing_by_another_computation():
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
    mean, ci95, seeds = paired(*sides)
    assert mean == pytest.approx(statistics.mean(means))
    assert ci95 == pytest.approx(1.96 * statistics.stdev(means) / math.sqrt(50))
    assert seeds == 2


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
def test_what_is_not_comparable_is_not_compared(field, value):
    one = make_result(PER_TASK)
    other = make_result(PER_TASK[:3] if field == "num_tasks" else PER_TASK)
    other[field] = value
    assert paired({0: one}, {0: other}) == f"different {field}"
    assert summarise({0: one, 1: other}) == f"seeds with different {field}"
    assert paired({0: one}, {1: one}) == "no seed in common"


def test_a_pair_that_is_refused_says_so(keep):
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


def test_fewer_seeds_in_the_pair_are_told(keep):
    keep("Vanilla", 1, VANILLA[1])
    keep("MLTI", 0, MLTI[0])
    keep("MLTI", 1, MLTI[1])
    line = lines_of(rendered(keep.folder), "MAML | MLTI")[-1]
    assert line[5] == "+10.00 ± 11.32 (1 of 2 seeds)"  # 0, 0, .2, .2


def test_latex(keep):
    keep("MLTI", 0, (0.5, 0.5, 0.6, 0.4), steps=70)
    report = Renderer(Results(keep.folder), lambda run: []).report(TABLES["overall_ls"])
    text = latex([report])
    assert r"\section*{overall\_ls}" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 4
    assert (
        r"MAML & MLTI & 60.28 $\pm$ 1.00 & 50.00 $\pm$ 8.00 & $-$10.28 $\pm$ 8.06 & "
        r"vanilla not run & 1 seed, 70 of 10,000 steps \\"
    ) in text
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert line.count("&") == 6


# ----------------------------------------------------------------- the command


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs the command in this process: its exit code and what it printed."""

    def call(*args):
        folders = (f"--results={tmp_path / 'results'}", f"--data_dir={tmp_path}")
        monkeypatch.setattr(sys, "argv", ["tables", *folders, *args])
        forget_flags(tables.flags.FLAGS)
        code = tables.command_line.run(tables.main, tables.__doc__)
        return code, capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--table is missing; --list names the tables"),
        (["--table=overal"], "unknown table 'overal'; choose one of: .*overall_ls"),
        (["--table=overall_ls,nls"], "unknown table 'nls'"),
        (["--table=overall_ls", "--format=html"], "format.*markdown.*latex"),
        (["--table=overall_ls", "--split=half"], "split.*paper.*disjoint"),
        (["--table=overall_ls", "--seeds=0"], "seeds"),
        (["--table=overall_ls", "--steps=0"], "steps"),
        (["--table=overall_ls", "--jobs=none"], "jobs"),
        (["--table=overall_ls", "--runn"], "unknown flag --runn"),
        (["--table=overall_ls", "--run"], "--run needs --workdir"),
        (["--table=overall_ls", "--run", "--dry_run"], "exclude each other"),
        (
            ["--table=overall_ls", "--dry_run", "--only=mamml"],
            "no run's name has.*mamml",
        ),
        (["overall_ls"], "unexpected argument 'overall_ls'"),
    ],
)
def test_wrong_flags_are_one_line(cli, args, message):
    code, printed = cli(*args)
    assert code == 2
    assert re.match(f"error: .*{message}", printed.err)
    assert printed.err.count("\n") == 1


def test_listing(cli):
    code, printed = cli("--list")
    assert code == 0
    for table in ALL_TABLES.values():
        assert f"\n{table.name} " in f"\n{printed.out}"
        assert table.caption in printed.out
    assert "overall_ls             44 cells and 4 n/a; no results" in printed.out


def test_listing_counts_results(keep):
    keep("MLTI", 0, PER_TASK)
    keep("MLTI", 1, PER_TASK)
    keep("MLTI", 0, PER_TASK, other=True)
    text = listing(Results(keep.folder))
    for name in ("overall_ls", "ablation_ls"):
        assert re.search(
            rf"{name} .*; results of 1, 1 with disjoint \(3 runs\)\n", text
        )
    assert re.search("overall_nls .*; no results", text)


def test_tables_are_printed_or_written(cli, tmp_path):
    code, printed = cli("--table=resnet12,ablation_ls")
    assert code == 0
    assert printed.out.startswith("## resnet12\n")
    assert printed.out.count("\n## ") == 1
    path = tmp_path / "all.tex"
    code, printed = cli("--all", "--format=latex", f"--output={path}")
    assert code == 0
    assert printed.out == ""
    columns = sum(len(table.columns) for table in ALL_TABLES.values())
    assert path.read_text().count(r"\begin{tabular}") == columns
    assert path.read_text() == cli("--table=all", "--format=latex")[1].out
