"""Pose: small files in its layout, prepared and loaded."""

import pickle

import jax
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data.builders import pose
from mlti_jax.errors import InputError
from tests.support.raw_files import dump, prepare, read
from tests.support.releases import pose_arrays, write_pose


def test_pose(tmp_path):
    train, test = pose_arrays(6, seed=0), pose_arrays(3, seed=1)
    folder = write_pose(tmp_path / "raw", train, test)
    prepare("pose", folder, tmp_path / "data")
    splits = data.load("pose", data_dir=tmp_path / "data")
    assert splits.setting == "regression"
    assert splits.validation is None
    for pool, (x, y) in ((splits.train, train), (splits.test, test)):
        assert len(pool.domains) == len(x)
        for number in range(len(x)):
            rows = np.asarray(pool.index[number])
            got = np.asarray(pool.x)[rows]
            np.testing.assert_array_equal(got, x[number].reshape(-1, 128, 128, 1))
            np.testing.assert_allclose(np.asarray(pool.y)[rows], 10 * y[number])
    fewer = data.load("pose", data_dir=tmp_path / "data", train_classes=2)
    assert fewer.train.domains == ("train_00", "train_01")
    task = data.sample_task(fewer.train, jax.random.key(0), ways=1, shots=2, queries=2)
    assert task.support.x.shape == (2, 128, 128, 1)
    assert task.query.y.shape == (2, 1)
    with pytest.raises(InputError, match="train_classes is 7; .* 1 to 6"):
        data.load("pose", data_dir=tmp_path / "data", train_classes=7)


def test_last_of_several_angles_is_used(tmp_path):
    x, y = pose_arrays(2, seed=0)
    several = np.concatenate([np.full_like(y, 9), y], axis=-1)
    dump([x.tolist(), several], tmp_path / "a.pkl")
    images, turns = pose._read_pickle(tmp_path / "a.pkl")
    np.testing.assert_array_equal(images.reshape(x.shape), x)
    np.testing.assert_array_equal(turns, y[..., 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": 1}, "a dict; expected a pair"),
        ((np.zeros((2, 4, 100), np.uint8), np.zeros((2, 4, 1))), r"\[2, 4, 100\]"),
        (
            (np.zeros((2, 4, 16384), np.uint8), np.zeros((2, 3, 1))),
            r"\[2, 3, 1\] angle",
        ),
        ((np.zeros((2, 4, 16384)), np.zeros((2, 4, 1))), "dtype float64, from 0.0"),
        ((np.full((2, 4, 16384), 300), np.zeros((2, 4, 1))), "from 300 to 300"),
        ((np.zeros((2, 4, 16384), int), np.full((2, 4, 1), np.nan)), "finite floats"),
        ((np.zeros((51, 1, 16384), int), np.zeros((51, 1, 1))), "51 objects"),
        (
            ([np.zeros((1, 16384)), np.zeros((2, 16384))], np.zeros(2)),
            "different sizes",
        ),
    ],
)
def test_other_layouts(tmp_path, content, message):
    folder = write_pose(tmp_path, content, pose_arrays(2, seed=0))
    with pytest.raises(InputError, match=f"train_data_ins.pkl holds.*{message}"):
        read("pose", folder, tmp_path)


def test_invalid_pickles_and_missing_files(tmp_path):
    folder = write_pose(tmp_path, pose_arrays(2, seed=0), pose_arrays(2, seed=0))
    (folder / "val_data_ins.pkl").write_bytes(pickle.dumps(pytest.fixture))
    with pytest.raises(InputError, match="can't read .*val_data_ins.pkl as a pickle"):
        read("pose", folder, tmp_path)
    (folder / "val_data_ins.pkl").unlink()
    with pytest.raises(InputError, match="has no val_data_ins.pkl. .*Yin et al."):
        read("pose", folder, tmp_path)
