"""The command line of `experiments.run`: listing, help, and errors for bad input."""

import errno
import importlib
import json
import re
import subprocess
import sys

import pytest

from experiments import run
from experiments.config import config_names, parse_arg
from mlti_jax._internal import command_line
from mlti_jax.errors import InputError
from mlti_jax.training import base_config
from tests.support.cli import ROOT, run_command

RAINBOW = "--config=experiments/configs/rainbow_mnist.py"


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    return run_command(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--config=experiments/configs/nope.py"],
            "available configs: .*rainbow",
        ),
        ([RAINBOW + ":lerner=maml"], "unknown config argument 'lerner'"),
        ([RAINBOW + ":learner"], "not of the form name=value"),
        ([RAINBOW + ":shots=two"], "must be of type int, got 'two'"),
        ([RAINBOW + ":learner=mml"], "unknown learner 'mml'.*maml"),
        ([RAINBOW + ":strategy=mlt"], "unknown strategy 'mlt'.*mlti"),
        ([RAINBOW, "--config.train.stepz=3"], "unknown config field.*meta_batch_size"),
        (
            [RAINBOW, "--config.trian.steps=3"],
            "unknown config field.*config has:.*train",
        ),
        ([RAINBOW, "--config.train.steps=many"], "train.steps"),
        ([RAINBOW, "--config.train.steps=0"], "train.steps must be positive, got 0"),
        ([RAINBOW, "--config.dataset.name=mnst"], "unknown dataset 'mnst'"),
        ([RAINBOW, "--config.dataset.source=web"], "unknown MNIST source 'web'"),
        ([RAINBOW, "--config.dataset.train_classes=41"], "train_classes"),
        ([RAINBOW, "--config.backbone.name=conv5"], "unknown backbone 'conv5'"),
        ([RAINBOW, "--config.backbone.name=mlp"], r"needs vectors \[N, D\]"),
        ([RAINBOW, "--config.backbone.conv4.filters=0"], "filters and blocks >= 1"),
        ([RAINBOW, "--config.seed=-1"], "config.seed must be from 0"),
        ([RAINBOW, "--config.eval.num_tasks=1"], "expected an integer from 2"),
        (
            [RAINBOW, "--config.learner.maml.steps=-3"],
            "steps of maml is -3",
        ),
        (["--config", RAINBOW[9:], "--config.train.stepz=3"], "unknown config field"),
        (
            [
                "--config=experiments/configs/quickstart.py",
                "--config.strategy.name=mlti",
            ],
            "compares vanilla, mlti",
        ),
        ([RAINBOW, "--config.task.ways=11"], "10"),
        ([RAINBOW, "--config.task.shots=8"], "8 samples, but shots=8 and queries=1"),
        ([RAINBOW, "--config.task.queries=9"], "8 samples"),
        ([RAINBOW, "--config.strategy.mlti.alpha=0.0"], "alpha must be positive"),
        ([RAINBOW, "--config.strategy.mlti.alpha=-2.0"], "alpha must be positive"),
        ([RAINBOW, "--config.interpolation.layers=(0,1)"], "layer 0 only"),
        ([RAINBOW, "--config.interpolation.method=blend"], "unknown mixing method"),
        ([RAINBOW, "--config.learner.maml.norm=layer"], "batch-norm policy"),
        ([RAINBOW, "--config.train.learning_rate=inf"], "learning_rate must be finite"),
        ([RAINBOW, "--config.strategy.name=mlti+metamix"], "both replace the tasks'"),
        (
            [RAINBOW, "--config.learner.name=protonet", "--config.strategy.name=taml"],
            "strategy taml does not apply to learner protonet: it needs a learner",
        ),
        (
            [RAINBOW, "--config.learner.name=sl"],
            "strategy mlti does not apply to learner sl.*strategies for sl: vanilla",
        ),
        (
            [
                *(RAINBOW, "--config.strategy.name=taml"),
                *("--config.strategy.taml.measure=gini",),
                "--config.train.meta_batch_size=1",
            ],
            "train.meta_batch_size is 1; set it to at least 2",
        ),
        (
            [
                *(RAINBOW, "--config.strategy.name=metareg"),
                "--config.learner.maml.adapted_layers=(0,1,2,3,4)",
            ],
            "this learner adapts all of them",
        ),
        ([RAINBOW, "--nonsense=1"], "unknown flag --nonsense"),
        ([RAINBOW, "extra"], "unexpected argument 'extra'"),
    ],
)
def test_invalid_input_is_reported_in_one_message(cli, args, message):
    code, printed = cli(*args)
    assert code == 2
    assert printed.err.count("error:") == 1
    assert "Traceback" not in printed.err
    assert re.search(message, printed.err, re.DOTALL), printed.err


def test_missing_or_damaged_data(cli, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b\x08 cut short")
    code, printed = cli(RAINBOW)
    assert code == 2
    assert "train-" in printed.err
    code, printed = cli(RAINBOW, "--config.dataset.source=idx")
    assert code == 2
    assert not (tmp_path / "work").exists()


def test_workdir_is_a_file(cli, tmp_path):
    (tmp_path / "file").write_text("")
    code, printed = cli(RAINBOW, workdir=tmp_path / "file")
    assert code == 2
    assert "not a directory" in printed.err


def test_workdir_of_another_config_is_rejected_with_the_difference(cli, tmp_path):
    (tmp_path / "work").mkdir()
    other = base_config().to_dict()
    (tmp_path / "work" / "config.json").write_text(json.dumps(other))
    code, printed = cli(RAINBOW)
    assert code == 2
    assert "different config" in printed.err
    assert "train.steps: 10000 -> 30000" in printed.err


def test_full_disk_is_reported_and_files_are_kept(cli, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    (work / "kept").write_text("before")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device", str(work))

    monkeypatch.setattr(run, "train_and_evaluate", full)
    monkeypatch.setattr(run, "build", lambda *args: None)
    code, printed = cli(RAINBOW)
    assert code == 2
    assert "No space left on device" in printed.err
    assert "run the same command again" in printed.err
    assert (work / "kept").read_text() == "before"


def test_listing_and_help(cli):
    code, printed = cli("--list")
    assert code == 0
    for name in ("maml", "protonet", "mlti", "conv4", "rainbow_mnist", "quickstart"):
        assert name in printed.out
    code, printed = cli("--help")
    assert code == 0
    assert "--workdir" in printed.out
    assert "rainbow_mnist.py:learner=maml,strategy=mlti" in printed.out


def test_every_config_loads():
    for name in config_names():
        config = importlib.import_module(f"experiments.configs.{name}").get_config()
        assert config.is_locked
        assert config.dataset.name


def test_config_arguments():
    values = parse_arg("shots=5,learner=maml", learner="x", shots=1, rate=0.5)
    assert (values.learner, values.shots, values.rate) == ("maml", 5, 0.5)
    with pytest.raises(InputError, match="choose one of"):
        parse_arg("ways=5", learner="x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "missing argument SIDE"),
        (["a", "b", "c"], "unexpected argument 'c'"),
        (["a", "b"], None),
    ],
)
def test_positional_arguments(monkeypatch, capsys, given, message):
    calls = []
    monkeypatch.setattr(sys, "argv", ["tool", *given])
    code = command_line.run(
        lambda case, side: calls.append((case, side)), "", positional=("CASE", "SIDE")
    )
    if message is None:
        assert (code, calls) == (0, [("a", "b")])
    else:
        assert (code, calls) == (2, [])
        assert message in capsys.readouterr().err


def test_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
