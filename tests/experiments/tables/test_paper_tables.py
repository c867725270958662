"""The paper's tables: numbers and runs."""

import re
import sys
from unittest import mock

import pytest

from experiments import cli, run
from experiments.paper import TABLES, Run
from experiments.tables.jobs import Job, command_arguments, load_config, shell_command
from mlti_jax.errors import InputError
from mlti_jax.strategies._registry import check_applicable
from tests.support.cli import ROOT, reset_flags
from tests.support.table_cells import find_cell


def all_runs() -> list[Run]:
    cells = [cell for table in TABLES.values() for cell in table.cells()]
    pairs = [(cell.run, cell.alternative_run) for cell in cells if cell.is_applicable]
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
def test_numbers_match_the_paper(place, mean, ci95):
    cell = find_cell(*place)
    assert (cell.mean, cell.ci95) == (mean, ci95)


def test_cells_that_are_not_applicable():
    absent = [
        (cell.column.config, cell.row.learner)
        for table in TABLES.values()
        for cell in table.cells()
        if not cell.is_applicable
    ]
    assert set(absent) == {("pose", "protonet"), ("pose", "matchingnet")}
    assert len(absent) == 4 + 4 + 2


def tex_numbers(tex: str, label: str) -> list[list[str]]:
    """Returns the numbers of each line of a table, as `mean±ci95` or `n/a`."""
    body = tex.partition(rf"\label{{tab:{label}}}")[2].partition(r"\end{tabular}")[0]
    body = re.sub(r"\\textbf\{([^}]*)\}", r"\1", body).replace(r"\%", "")
    body = re.sub(r"\s*\$\\pm\$\s*", "±", body)
    lines = [re.findall(r"n/a|\d+\.\d\d+(?:±[\d.]+)?", x) for x in body.split(r"\\")]
    return [line for line in lines if line]


@pytest.mark.parametrize("name", TABLES)
def test_numbers_match_the_papers_source(name, raw_dir):
    path = raw_dir.parent / "paper" / "mlti.tex"
    if not path.exists():
        pytest.skip("the paper's source is not available")
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


def test_no_table_of_results_is_missing(raw_dir):
    path = raw_dir.parent / "paper" / "mlti.tex"
    if not path.exists():
        pytest.skip("the paper's source is not available")
    tex = re.sub(r"(?m)^%.*", "", path.read_text())
    labels = set(re.findall(r"\\label\{tab:(\w+)\}", tex))
    ours = {label for table in TABLES.values() for label in table.labels}
    assert labels - ours == {"hyperpara_ls", "hyperpara_nls"}
    assert ours < labels


# ------------------------------------------------------------------- their runs


def test_every_run_has_a_valid_config():
    runs = all_runs()
    assert len({each.name for each in runs}) == len(runs)
    for each in runs:
        config = load_config(each)
        assert config.learner.name == each.learner
        assert config.strategy.name == each.strategy
        check_applicable(each.strategy, each.learner)


def test_unknown_fields_and_arguments_raise():
    with pytest.raises(KeyError, match="layerz"):
        load_config(Run("nci", "maml", "mlti", overrides=(("train.layerz", 1),)))
    with pytest.raises(InputError, match="unknown config argument 'shotz'"):
        load_config(Run("isic", "maml", "mlti", arguments=(("shotz", 1),)))


def test_commands_produce_the_configs(monkeypatch):
    """Parses the command of one run of each kind."""
    kinds = {
        (each.config, each.variant, tuple(dict(each.arguments)), each.overrides): each
        for each in all_runs()
    }
    assert len(kinds) > 20
    read = []
    monkeypatch.chdir(ROOT)

    def build(config, data_dir):
        read.append(config)
        return mock.Mock()

    monkeypatch.setattr(run, "build", build)
    monkeypatch.setattr(run.report, "write_run", lambda *arguments: None)
    monkeypatch.setattr(run, "train_and_evaluate", lambda *arguments: {})
    monkeypatch.setattr(run, "summary", lambda result: "")
    monkeypatch.setattr(run.parallel, "use_all_cores", lambda: None)
    for each in kinds.values():
        argv = command_arguments(Job(each, 3, 77), "work", "data", "albert")[1:]
        monkeypatch.setattr(sys, "argv", [*argv, "--config.compilation_cache=off"])
        reset_flags()
        assert cli.run(run.main, run.__doc__) == 0
        expected = load_config(each).copy_and_resolve_references()
        with expected.unlocked():
            expected.seed, expected.train.steps = 3, 77
            expected.compilation_cache = "off"
            if "albert" in each.argument:
                expected.backbone.albert.pretrained = "albert"
                expected.dataset.tokenizer = "albert"
        assert read[-1].to_dict() == expected.to_dict()


def test_command_with_parentheses_is_quoted():
    cell = find_cell(
        "interpolation_layers", "Metabolism (5-shot)", "ProtoNet", "Layer 0"
    )
    assert "'--config.interpolation.layers=(0,)'" in shell_command(
        Job(cell.run, 0, 10_000)
    )


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
def test_runs_match_the_papers_text(place, field, value):
    config = load_config(find_cell(*place).run)
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
            assert load_config(vanilla.run).task == load_config(cell.run).task
            assert load_config(vanilla.run).dataset == load_config(cell.run).dataset
