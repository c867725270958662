"""`python -m experiments.select`: errors, interruption, parallel training runs."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import select
from tests.support.cli import ROOT, command
from tests.support.one_node_slurm import missing_programs, one_node_slurm

OWN = "--config=experiments/configs/own_data.py:shots=2"
SMALL = (
    "--config.backbone.mlp.hidden=(4,)",
    "--config.task.queries=3",
    "--config.eval.queries=3",
    "--config.train.meta_batch_size=2",
    "--config.compilation_cache=off",
    "--episodes=5",
    "--budget=3",
    "--candidates=protonet:vanilla,protonet:mlti",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.tile(np.repeat([0, 1], 8), 4)
    x = rng.normal(size=(64, 3)) + y[:, None]
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=x.astype(np.float32), y=y, task=np.repeat(np.arange(4), 16))
    return f"--config.dataset.path={path}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--candidates=protonet"], "expected LEARNER:STRATEGY"),
        (["--candidates=maml:mlti,mml:mlti"], "unknown learner 'mml'"),
        (["--candidates=maml:mlti,maml:mlti"], "'maml:mlti' is given twice"),
        (["--candidates=maml:mlti,sl:mlti"], "mlti does not apply to learner sl"),
        (["--budget=soon"], "budget is 'soon'"),
        (["--folds=7"], "folds is 7, but the data has only 4 tasks"),
        (["--metric=mse"], "unknown metric for label-sharing data 'mse'"),
        (["--config.task.shots=30"], "samples"),
    ],
)
def test_errors(args, message, data, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    call = command(select, monkeypatch, capsys, (OWN, data, *SMALL))
    code, printed = call(f"--workdir={tmp_path / 'work'}", *args)
    assert code == 2
    assert message in printed.err
    assert not (tmp_path / "work" / "fits").exists()


def start(data, workdir, *args):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.select", OWN, data, *SMALL]
        + [f"--workdir={workdir}", *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "protonet:mlti" in out
    return err


def selection(workdir):
    return json.loads((workdir / "selection.json").read_text())


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """What a selection in one process finds."""
    workdir = tmp_path_factory.mktemp("expected")
    finish(start(data, workdir))
    return selection(workdir)


def wait_for_fits(process, workdir):
    fits = workdir / "fits"
    while not (fits.is_dir() and len(list(fits.glob("*.json"))) > 2):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


@pytest.mark.slow
def test_stopped_jobs_resume_and_do_not_change_the_selection(data, expected, tmp_path):
    pytest.importorskip("submitit")
    stopped = start(data, tmp_path, "--jobs=2")
    wait_for_fits(stopped, tmp_path)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate(timeout=300)
    if stopped.returncode:  # it may just have finished
        assert stopped.returncode == 143, err
        assert "run the same command again to resume" in err
    finish(start(data, tmp_path, "--jobs=2"))
    assert selection(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.skipif(
    bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"
)
def test_jobs_in_slurm_do_not_change_the_selection(
    data, expected, tmp_path, monkeypatch
):
    with one_node_slurm(cpus=2) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        slurm = ("--executor=slurm", "--jobs=2", "--cpus=1", "--mem=1G")
        left = start(data, tmp_path, *slurm)
        wait_for_fits(left, tmp_path)
        left.kill()
        left.communicate()
        said = finish(start(data, tmp_path, *slurm))
    assert "resuming" in said
    assert selection(tmp_path) == expected
