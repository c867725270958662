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


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    y = np.tile(np.repeat([0, 1], 8), 4)
    x = rng.normal(size=(64, 3)) + y[:, None]
    path = tmp_path / "data.npz"
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


@pytest.mark.slow
def test_stopped_selections_resume_and_processes_do_not_matter(data, tmp_path):
    whole = start(data, tmp_path / "whole", "--jobs=2")
    out, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    assert "protonet:mlti" in out
    stopped = start(data, tmp_path / "stopped")
    fits = tmp_path / "stopped" / "fits"
    while not (fits.is_dir() and len(list(fits.glob("*.json"))) > 2):
        assert stopped.poll() is None, stopped.communicate()[1]
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate(timeout=300)
    if stopped.returncode:  # it may just have finished
        assert stopped.returncode == 143
        assert "run the same command again to resume" in err
    resumed = start(data, tmp_path / "stopped")
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    one, other = (
        json.loads((tmp_path / name / "selection.json").read_text())
        for name in ("whole", "stopped")
    )
    assert one == other
