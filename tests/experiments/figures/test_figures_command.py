"""The command that makes the figures."""

import re

import pytest

from experiments.figures import __main__ as figures
from experiments.figures import task_numbers
from experiments.figures.task_numbers import Figure
from tests.support.cli import ROOT, command
from tests.support.figure_cases import MAML, PROTONET, assert_drawn, record_point


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "results").mkdir()
    folders = tuple(f"--{name}={tmp_path / name}" for name in ("data_dir", "results"))
    return command(figures, monkeypatch, capsys, folders)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--figure is missing; choose one of: task_numbers, curves, tsne, sheets"),
        (["--figure=tsen"], "unknown figure 'tsen'; choose one of: curves, sheets, t"),
        (["--figure=tsne"], "--output is missing"),
        (["--figure=tsne", "--seeds=2"], "--seeds requires --run or --dry_run"),
        (["--figure=task_numbers", "--only=nci"], "--only requires --run"),
        (
            [
                "--figure=tsne",
                "--output=OUT",
                "--config=experiments/configs/rainbow_mnist.py:learner=protonet,strategy=metamix",
                "--config.dataset.source=builtin",
            ],
            "'metamix' does not interpolate pairs of tasks; choose mlti, intra",
        ),
        (["--figure=tsne", "extra"], "unexpected argument 'extra'"),
        (["--figure=tsne", "--figuer=2"], "unknown flag --figuer"),
        (["--figure=tsne", "--features=pixels"], "features"),
        (["--figure=tsne", "--run"], "are for --figure=task_numbers; tsne needs"),
        (["--figure=task_numbers", "--run", "--dry_run"], "exclude each other"),
        (["--figure=task_numbers", "--run"], "--run needs --workdir"),
        (["--figure=task_numbers", "--dry_run", "--only=nsi"], "no run.*--only=nsi"),
        (["--figure=task_numbers", "--output=OUT"], "no results for task_numbers in"),
        (
            ["--figure=task_numbers", "--output=OUT", "--steps=5"],
            "no results of 5 steps",
        ),
        (["--figure=curves", "--output=OUT"], "no results in .* have learning curves"),
        (["--figure=sheets", "--output=OUT", "--datasets=mnst"], "unknown dataset"),
        (
            ["--figure=sheets", "--output=OUT", "--datasets=pose"],
            "pose is not prepared",
        ),
        (["--figure=sheets", "--output=setup.py"], "setup.py is a file"),
        (["--figure=tsne", "--output=OUT", "--workdir=OUT"], "no config.json, so it"),
        (
            ["--figure=tsne", "--output=OUT", "--config=experiments/configs/no.py"],
            "config file .* does not exist",
        ),
        (
            [
                "--figure=tsne",
                "--output=OUT",
                "--workdir=OUT",
                "--config=experiments/configs/isic.py",
            ],
            "leave out --config",
        ),
        (
            [
                "--figure=tsne",
                "--output=OUT",
                "--config=experiments/configs/isic.py:learner=protonet",
            ],
            "isic is not prepared",
        ),
    ],
)
def test_wrong_input_gives_one_line(cli, tmp_path, args, message):
    code, printed = cli(*[arg.replace("OUT", str(tmp_path / "out")) for arg in args])
    assert code == 2
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(message, last), last


def test_help_and_list(cli, tmp_path):
    code, printed = cli("--help")
    assert code == 0
    for flag in ("--figure", "--datasets", "--features", "--data_dir"):
        assert flag in printed.out
    record_point(tmp_path, MAML, "mlti", 24)
    code, printed = cli("--list")
    assert code == 0
    assert "rainbow_mnist   Fig. 4; 32 points, 1 with results" in printed.out


def test_task_numbers_by_command(cli, tmp_path):
    record_point(tmp_path, MAML, "vanilla", 16)
    record_point(tmp_path, MAML, "mlti", 16, per_task=(0.6, 0.8, 1.0, 0.9))
    code, printed = cli("--figure=task_numbers", f"--output={tmp_path / 'new'}")
    assert code == 0
    assert "classes_5_shot (Fig. 2) has no results" in printed.err
    assert "MLTI             82.50 ±" in printed.out
    assert [path.name for path in (tmp_path / "new").iterdir()] == [
        "task_numbers_rainbow_mnist.png"
    ]
    assert_drawn(tmp_path / "new" / "task_numbers_rainbow_mnist.png")
    code, printed = cli(
        "--figure=task_numbers", "--dry_run", "--only=rainbow,maml", "--steps=10"
    )
    assert code == 0
    assert "16 runs: 2 done, 14 missing" in printed.out


@pytest.mark.slow
def test_tsne_by_command(cli, tmp_path):
    code, printed = cli(
        "--figure=tsne",
        f"--output={tmp_path}",
        "--features=inputs",
        "--config=experiments/configs/rainbow_mnist.py:learner=protonet",
        "--config.dataset.source=builtin",
    )
    assert code == 0, printed.err
    assert "distance between originals: median 0." in printed.out
    assert_drawn(tmp_path / "tsne_rainbow_mnist.png")


def test_sheets_by_command(cli, tmp_path):
    code, printed = cli("--figure=sheets", f"--output={tmp_path / 'out'}")
    assert code == 0, printed.err
    assert "isic: no sheet, isic is not prepared in" in printed.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        "sheet_rainbow_mnist.png"
    ]
    assert_drawn(tmp_path / "out" / "sheet_rainbow_mnist.png")


@pytest.mark.slow
def test_runs_of_points_by_command(cli, tmp_path, monkeypatch):
    """A real run of a few steps, from planning to the figure."""
    figure = Figure("small", 4, "combinations", (PROTONET,))
    monkeypatch.setattr(task_numbers, "FIGURES", (figure,))
    args = ["--figure=task_numbers", "--steps=2", "--only=train_classes24,mlti"]
    code, printed = cli(*args, "--run", f"--workdir={tmp_path / 'runs'}")
    assert code == 0, printed.err
    code, printed = cli(*args[:2], f"--output={tmp_path}")
    assert code == 0, printed.err
    assert "2 of 30,000 steps, 1 seed, built-in images" in printed.out
    name = "rainbow_mnist/protonet-mlti-train_classes24-steps2-seed0"
    code, printed = cli(
        "--figure=tsne", f"--workdir={tmp_path / 'runs' / name}", f"--output={tmp_path}"
    )
    assert code == 0, printed.err
    assert_drawn(tmp_path / "tsne_rainbow_mnist.png")
