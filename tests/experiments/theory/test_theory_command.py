"""`python -m experiments.theory`: its files, its plots, and wrong input."""

import json

import matplotlib.image
import numpy as np
import pytest

from experiments.theory import __main__ as theory
from experiments.theory import variance
from experiments.theory.remainders import RIGHT
from mlti_jax.data import DomainPool
from tests.support.cli import command


@pytest.fixture
def run(monkeypatch, capsys):
    return command(theory, monkeypatch, capsys)


def check_output(folder, names):
    written = json.loads((folder / "theory.json").read_text())
    assert [part["data"] for part in written["total_variance"]] == names
    for part in written["total_variance"]:
        trace, eigenvalues = part["trace"], part["eigenvalues"]
        apart = trace["total"] - trace["within_task"]
        assert apart == pytest.approx(trace["between_tasks"], rel=1e-3, abs=1e-3)
        for within, total in zip(
            eigenvalues["within_task"], eigenvalues["total"], strict=True
        ):
            assert within <= 1.001 * total + 1e-6
    for result in written["remainders"]:
        for by, order in result["order"].items():
            assert result["slope"][by][RIGHT] == pytest.approx(order, abs=0.1)
    for name in ("theory.png", "total_variance.png"):
        image = matplotlib.image.imread(folder / name)
        assert min(image.shape[:2]) > 300
        assert image[..., :3].std() > 0.05


@pytest.mark.slow
def test_numbers_and_plots_are_written(run, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    pool = DomainPool.from_arrays(
        rng.integers(0, 256, (24, 2, 2, 3)).astype(np.uint8),
        domain=np.arange(24) % 3,
        label=np.arange(24) // 3 % 2,
    )
    monkeypatch.setattr(variance, "load_pools", lambda folder: {"small": pool})
    code, printed = run(f"--output={tmp_path / 'new'}")
    assert code == 0, printed.err
    check_output(tmp_path / "new", ["small"])
    for text in ("Lemma 1", "Lemma 4, head per task", "small"):
        assert text in printed.out


@pytest.mark.slow
def test_images_of_the_install(run, tmp_path):
    code, printed = run(f"--output={tmp_path / 'new'}", f"--data_dir={tmp_path}")
    assert code == 0, printed.err
    check_output(tmp_path / "new", ["RainbowMNIST, pixels"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--output is missing"),
        (["--output=new", "extra"], "unexpected argument 'extra'"),
        (["--output={file}"], "is a file, not a directory"),
        (["--nonsense=1"], "unknown flag --nonsense"),
    ],
)
def test_wrong_input_gets_one_clear_message(run, tmp_path, args, message):
    (tmp_path / "file").write_text("")
    code, printed = run(*[arg.format(file=tmp_path / "file") for arg in args])
    assert code == 2
    assert message in printed.err
    assert "Traceback" not in printed.err


def test_samples_of_a_pool_are_its_real_ones():
    pool = DomainPool.from_arrays(
        np.arange(10).reshape(5, 2),
        domain=np.array([0, 0, 0, 1, 1]),
        label=np.array([0, 0, 1, 1, 0]),
    )
    features, tasks, classes = variance.samples(pool)
    rows = {tuple(row) for row in np.column_stack([features, tasks, classes])}
    assert rows == {
        (0, 1, 0, 0),
        (2, 3, 0, 0),
        (4, 5, 0, 1),
        (6, 7, 1, 1),
        (8, 9, 1, 0),
    }
