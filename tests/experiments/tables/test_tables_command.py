"""The command `experiments.tables`."""

import re

import pytest

from experiments.tables import __main__ as tables
from experiments.tables.variations import ALL_TABLES
from tests.support.cli import command


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    (tmp_path / "results").mkdir()
    folders = (f"--results={tmp_path / 'results'}", f"--data_dir={tmp_path}")
    return command(tables, monkeypatch, capsys, folders)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--table is missing; --list shows the tables"),
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
            "no run matches.*mamml",
        ),
        (["overall_ls"], "unexpected argument 'overall_ls'"),
        (["--table=overall_ls", "--only=mamml"], "no run matches.*mamml"),
        (["--table=overall_ls", "--seeds=3"], "--seeds requires --run or --dry_run"),
        (["--table=overall_ls", "--albert=A"], "--albert requires --run"),
        (["--table=overall_ls", "--stale"], "--stale requires --run or --dry_run"),
        (["--table=overall_ls", "--dry_run", "--albert=/no"], "--albert=/no is not a "),
        (["--table=overall_ls", "--results=/no"], "--results=/no is not a folder"),
        (["--list", "--results=/no"], "--results=/no is not a folder of results"),
        (["--table=overall_ls", "--output=/no/x.md"], "the folder /no does not exist"),
        (["--table=overall_ls", "--output=/tmp"], "--output=/tmp is a directory"),
        (
            ["--table=overall_ls", "--run", f"--workdir={__file__}"],
            "test_tables_command.py is a file, not a directory",
        ),
    ],
)
def test_invalid_flags_are_reported_in_one_line(cli, args, message):
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


def test_tables_are_printed_or_written(cli, tmp_path):
    code, printed = cli("--table=resnet12,ablation_ls")
    assert code == 0
    assert printed.out.startswith("Accuracy in %")
    assert printed.out.count("\n## ") == 2
    path = tmp_path / "all.tex"
    code, printed = cli("--all", "--format=latex", f"--output={path}")
    assert code == 0
    assert printed.out == ""
    columns = sum(len(table.columns) for table in ALL_TABLES.values())
    assert path.read_text().count(r"\begin{tabular}") == columns
    assert path.read_text() == cli("--table=all", "--format=latex")[1].out
