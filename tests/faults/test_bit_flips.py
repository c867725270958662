"""Bit flips in every file that is saved: detected, or without an effect."""

import json
import pathlib
import shutil

import chex
import numpy as np
import pytest

import mlti_jax
from experiments import finished_run
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.training import _loop as loop
from mlti_jax.training import _metrics as metrics
from mlti_jax.training import train_and_evaluate
from tests.support.api_cases import fitted, samples
from tests.support.runs_to_break import small_experiment, write_data

pytestmark = pytest.mark.slow
FLIPS_OF_A_MODEL, FLIPS_OF_A_RUN, FLIPS_BEFORE_RESUMING = 120, 120, 60


def flip(folder: pathlib.Path, rng: np.random.Generator, by_size: bool) -> str:
    """Flip one random bit: all files are equally likely, or all bytes are."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    sizes = np.array([p.stat().st_size if by_size else 1 for p in files])
    path = files[rng.choice(len(files), p=sizes / sizes.sum())]
    content = bytearray(path.read_bytes())
    place = int(rng.integers(len(content)))
    content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(content))
    return f"{path.relative_to(folder)} at byte {place}"


def copies(original, tmp_path, number, seed):
    """Yield copies of a folder, each with another bit flipped, and the place."""
    rng = np.random.default_rng(seed)
    for index in range(number):
        copy = tmp_path / "copy"
        shutil.copytree(original, copy)
        yield copy, flip(copy, rng, by_size=bool(index % 2))
        shutil.rmtree(copy)


# -------------------------------------------------------------------- saved models


@pytest.mark.parametrize("name", ["protonet", "maml"])
def test_saved_models(tmp_path, name):
    learner = fitted(name)
    learner.save(tmp_path / "model")
    labels = [str(c) for c in ("a", "b", "c")][: learner.facts.outputs or 3]
    x = np.concatenate([samples(label, 3) for label in labels])
    y = np.repeat(labels, 3)
    expected = learner.adapt(x, y).predict_proba(x)
    detected = 0
    for folder, place in copies(
        tmp_path / "model", tmp_path, FLIPS_OF_A_MODEL // 2, seed=1
    ):
        try:
            loaded = mlti_jax.load(folder)
        except InputError:
            detected += 1
            continue
        assert loaded.result == learner.result, place
        assert loaded.classes == learner.classes, place
        found = loaded.adapt(x, y).predict_proba(x)
        np.testing.assert_array_equal(found, expected)
    assert detected > 0.8 * FLIPS_OF_A_MODEL // 2


# --------------------------------------------------------------- work directories


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A finished run, one that was stopped at step 20 of 40, and their experiment."""
    folder = tmp_path_factory.mktemp("runs")
    write_data(folder)
    experiment = small_experiment(
        folder,
        train__steps=40,
        train__log_every=10,
        train__checkpoint_every=10,
        eval__every=10,
    )
    train_and_evaluate(experiment, folder / "finished")

    def stop_at_20(self, step, steps_per_call):
        if step == 20:
            self._stop(15)  # as on SIGTERM, after the checkpoint of this step
        return step + 10

    patch = pytest.MonkeyPatch()
    patch.setattr(loop._Run, "_next_stop", stop_at_20)
    with pytest.raises(Interrupted):
        train_and_evaluate(experiment, folder / "stopped")
    patch.undo()
    return folder, experiment


def test_finished_runs(small_run, tmp_path):
    folder, _ = small_run
    experiment, variables, step = finished_run.load(folder / "finished")
    result = json.loads((folder / "finished" / "results.json").read_text())
    lines = metrics.read(folder / "finished" / "metrics.jsonl")
    detected = 0
    for copy, place in copies(folder / "finished", tmp_path, FLIPS_OF_A_RUN, seed=2):
        found = metrics.read(copy / "metrics.jsonl")
        assert all(line in lines for line in found), place
        try:
            _, loaded, loaded_step = finished_run.load(copy)
            shown = train_and_evaluate(experiment, copy)
        except InputError:
            detected += 1
            continue
        assert loaded_step == step, place
        chex.assert_trees_all_equal(loaded, variables)
        assert shown == {k: v for k, v in result.items() if k != "sha256"}, place
    # Half of the files are checkpoints of other steps, logs and markers.
    assert detected > 0.1 * FLIPS_OF_A_RUN


def test_runs_that_are_resumed(small_run, tmp_path, capsys):
    folder, experiment = small_run
    result = json.loads((folder / "finished" / "results.json").read_text())
    del result["sha256"]
    refused = repaired = 0
    for copy, place in copies(
        folder / "stopped", tmp_path, FLIPS_BEFORE_RESUMING, seed=3
    ):
        capsys.readouterr()
        try:
            found = train_and_evaluate(experiment, copy)
        except InputError:
            refused += 1
            continue
        assert found == result, place
        said = capsys.readouterr().err
        repaired += "is damaged" in said or "damaged lines" in said
    # About a fifth of the flips are in a file that is read again.
    assert refused + repaired > 0.1 * FLIPS_BEFORE_RESUMING
    assert repaired > 0


@pytest.mark.parametrize("kind", ["last", "best"])
def test_a_flip_in_the_parameters_is_said_and_repaired(
    small_run, tmp_path, capsys, kind
):
    """The flip that once changed a test accuracy from 0.889 to 0.50 in silence."""
    folder, experiment = small_run
    copy = tmp_path / "copy"
    shutil.copytree(folder / "stopped", copy)
    newest = max((copy / "checkpoints" / kind).iterdir(), key=lambda p: int(p.name))
    largest = max(newest.rglob("*"), key=lambda p: p.stat().st_size * p.is_file())
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0x40
    largest.write_bytes(bytes(content))
    capsys.readouterr()
    found = train_and_evaluate(experiment, copy)
    said = capsys.readouterr().err
    assert f"checkpoint {newest} is damaged" in said
    assert list((copy / "checkpoints").glob(f"damaged-{kind}-*"))
    whole = json.loads((folder / "finished" / "results.json").read_text())
    assert found == {k: v for k, v in whole.items() if k != "sha256"}
