"""Standardized regression targets: statistics, records, and what is refused."""

import json

import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import Inputs
from mlti_jax.data._own import dataset as own_data
from mlti_jax.data._own.targets import TargetScaling
from mlti_jax.errors import InputError

RNG = np.random.default_rng(0)


def tasks(scale=(30.0, 0.002), offset=(5e6, -1.0), number=5, size=8):
    """Tasks with two targets of very different units."""
    return {
        f"t{i}": (
            RNG.normal(size=(size, 3)),
            RNG.normal(size=(size, 2)) * scale + offset,
        )
        for i in range(number)
    }


def test_training_tasks_give_the_statistics():
    given = tasks()
    splits = data.from_arrays(given, validation=["t1"], test=["t3"])
    y = np.concatenate([given[name][1] for name in ("t0", "t2", "t4")])
    mean = [sum(column) / len(column) for column in y.T]
    variance = [
        sum((value - m) ** 2 for value in column) / len(column)
        for column, m in zip(y.T, mean, strict=True)
    ]
    scaling = splits.inputs.targets
    np.testing.assert_allclose(scaling.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, np.sqrt(variance), rtol=1e-6)
    np.testing.assert_allclose(splits.train.y.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(splits.train.y.std(axis=0), 1, atol=1e-6)
    # Computed in float64: 5e6 + 30 z has few digits left in float32.
    np.testing.assert_allclose(
        splits.test.y, (given["t3"][1] - mean) / np.sqrt(variance), rtol=1e-5
    )
    np.testing.assert_allclose(
        scaling.restore(np.asarray(splits.test.y)), given["t3"][1], rtol=1e-9
    )


def test_a_constant_target_is_only_shifted():
    given = {name: (x, y * [1, 0] + [0, 0.1]) for name, (x, y) in tasks().items()}
    splits = data.from_arrays(given)
    assert splits.inputs.targets.scale[1] == 1.0
    np.testing.assert_allclose(splits.train.y[:, 1], 0, atol=1e-15)


def test_classes_have_no_scaling():
    given = {str(i): (RNG.normal(size=(4, 2)), [0, 1, 0, 1]) for i in range(4)}
    assert data.from_arrays(given).inputs.targets == TargetScaling()


def test_files_have_the_option(tmp_path):
    given = tasks(number=3)
    columns = {"task": np.repeat(list(given), 8)}
    columns |= {
        f"x{i}": np.concatenate([x[:, i] for x, _ in given.values()]) for i in (0, 1)
    }
    columns["y"] = np.concatenate([y[:, 0] for _, y in given.values()])
    on = data.from_table(columns, label="y", task="task", test=["t2"])
    assert on.inputs.targets.scale[0] == pytest.approx(columns["y"][:16].std())
    options = {"label": "y", "task": "task", "standardise_targets": False}
    off = data.from_table(columns, test=["t2"], **options)
    np.testing.assert_allclose(off.test.y[:, 0], columns["y"][16:], rtol=1e-6)
    x = np.stack([columns["x0"], columns["x1"]], axis=1)
    np.savez(tmp_path / "d.npz", x=x, y=columns["y"], task=columns["task"])
    npz = own_data.load(path=tmp_path / "d.npz", test="t2")
    assert npz.inputs.targets == on.inputs.targets
    npz = own_data.load(path=tmp_path / "d.npz", test="t2", standardise_targets=False)
    assert npz.inputs.targets == TargetScaling()


def test_records_keep_the_scaling_and_earlier_ones_are_read():
    inputs = data.from_arrays(tasks()).inputs
    assert Inputs.from_json(inputs.to_json()) == inputs
    record = json.loads(inputs.to_json())
    del record["targets"]
    assert Inputs.from_json(json.dumps(record)).targets == TargetScaling()
    for wrong in ([[0.0], [0.0]], [[0.0], [1.0, 2.0]], [[0.0], ["a"]], [[1.0]] * 3):
        with pytest.raises(InputError, match="record of inputs"):
            Inputs.from_json(json.dumps({**record, "targets": wrong}))


def test_targets_without_a_usable_scale_are_refused():
    tiny = tasks(scale=(1e-25, 1.0), offset=(0.0, 0.0))
    with pytest.raises(InputError, match="standard deviation .*e-2. .*another unit"):
        data.from_arrays(tiny)
    far = tasks(scale=(1e-10, 1.0), offset=(0.0, 0.0))
    far["t3"][1][2, 0] = 1e12
    with pytest.raises(InputError, match="standardized y of task 't3' has the value"):
        data.from_arrays(far, test=["t3"])
