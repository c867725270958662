"""Average precision and the comparison of methods."""

import math

import numpy as np
import pytest

from experiments.fsmol import scores
from experiments.fsmol.baselines import read_baselines
from mlti_jax.errors import InputError


def test_average_precision_by_hand():
    y = np.array([1, 0, 1, 0, 0])
    # The two active samples are first and third: precisions 1/1 and 2/3.
    found = scores.average_precision(np.array([5.0, 4, 3, 2, 1]), y)
    assert found == pytest.approx((1 + 2 / 3) / 2)
    assert scores.delta_auprc(np.array([5.0, 4, 3, 2, 1]), y) == pytest.approx(
        (1 + 2 / 3) / 2 - 2 / 5
    )
    # With equal scores there is one threshold.
    assert scores.average_precision(np.zeros(5), y) == pytest.approx(2 / 5)


@pytest.mark.parametrize("levels", [3, 20, 10_000])
def test_average_precision_is_scikit_learns(levels):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(levels)
    for _ in range(50):
        size = rng.integers(5, 300)
        y = np.append(rng.integers(0, 2, size - 2), [0, 1])
        values = rng.integers(0, levels, size) / levels
        assert scores.average_precision(values, y) == pytest.approx(
            metrics.average_precision_score(y, values)
        )


def test_scores_of_logits():
    logits = np.array([[1.0, 2.0], [3.0, 1.0], [0.0, 0.5], [2.0, 2.5]])
    y = np.array([1, 0, 0, 1])
    found = scores.score(logits, y)
    assert found["accuracy"] == 0.75
    # Differences 1, -2, 0.5, 0.5: precision 1/1 for one, 2/3 for the other.
    assert found["delta_auprc"] == pytest.approx((1 + 2 / 3) / 2 - 0.5)


def test_differences_are_paired_by_assay():
    mine = {"a": 0.5, "b": 0.3, "c": 0.9}
    other = {"b": 0.1, "a": 0.4, "d": 7.0}
    mean, half, number = scores.difference(mine, other)
    assert (mean, number) == (pytest.approx(0.15), 2)
    # Differences 0.1 and 0.2: standard deviation 0.1 / sqrt(2).
    assert half == pytest.approx(1.96 * 0.1 / math.sqrt(2) / math.sqrt(2))
    assert scores.difference(mine, {})[2] == 0


BASELINE = (
    "TASK_ID,fraction_positive_train,fraction_positive_test,16_train,32_train\n"
    "A,0.5,0.48,0.538+/-0.031,\n"
    "B,0.6,0.55,0.65+/-0.1,0.7+/-0.0\n"
)


def test_baselines(tmp_path):
    (tmp_path / "kNN_summary.csv").write_text(BASELINE)
    found = read_baselines(tmp_path, (16, 32))
    assert found == {
        "kNN": {
            16: {"A": pytest.approx(0.058), "B": pytest.approx(0.1)},
            32: {"B": pytest.approx(0.15)},
        }
    }
    with pytest.raises(InputError, match="no column '64_train'"):
        read_baselines(tmp_path, (64,))
    wrong = BASELINE.replace("0.538", "half")
    (tmp_path / "kNN_summary.csv").write_text(wrong)
    with pytest.raises(InputError, match="line 2 of .*'half.*expected numbers such as"):
        read_baselines(tmp_path, (16,))
    with pytest.raises(InputError, match="--baselines=.* has no files"):
        read_baselines(tmp_path / "missing", (16,))


# The means of the authors' figures, which subtract the share in the support sets.
PUBLISHED = {
    "ProtoNet-gnn+ecfp+fc-Support64": (0.208, 0.244, 0.272, 0.303),
    "MAML-Support16": (0.160, 0.167, 0.173, 0.192),
    "GNN-Multitask": (0.112, 0.144, 0.177, 0.223),
    "random_forest": (0.095, 0.127, 0.165, 0.215),
    "kNN": (0.053, 0.077, 0.104, 0.141),
}


def test_means_of_the_published_results(raw_dir):
    folder = raw_dir / "fsmol" / "baselines"
    if not folder.is_dir():
        pytest.skip("MLTI_RAW_DIR has no folder fsmol/baselines")
    sizes = (16, 32, 64, 128)
    theirs = read_baselines(folder, sizes, share="fraction_positive_train")
    ours = read_baselines(folder, sizes)
    for method, means in PUBLISHED.items():
        for size, mean in zip(sizes, means, strict=True):
            assert len(theirs[method][size]) == 157
            values = list(theirs[method][size].values())
            assert np.mean(values) == pytest.approx(mean, abs=6e-4)
            difference = np.mean(list(ours[method][size].values())) - mean
            assert 0.002 < difference < 0.006
