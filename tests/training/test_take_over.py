"""Testing a finished run on other tasks: the same result as training again."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from mlti_jax.data import ClassPool
from mlti_jax.errors import InputError
from mlti_jax.training import _metrics as metrics
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._workdir import read_result
from tests.support.figure_cases import use_data, vector_config, vectors

pytestmark = pytest.mark.slow


def elsewhere(splits):
    """Return the splits with test tasks of other data."""
    rng = np.random.default_rng(1)
    x = (rng.random((5 * 6, 40)) < 0.5).astype(np.float32)
    test = ClassPool.from_arrays(x, np.repeat(np.arange(5), 6))
    return dataclasses.replace(splits, test=test)


def config(**fields):
    chosen = vector_config()
    with chosen.unlocked():
        chosen.dataset.test_on = fields.pop("test_on", None)
    chosen.update_from_flattened_dict(fields)
    return chosen


@pytest.fixture(scope="module", params=[False, True], ids=["last", "best"])
def finished(request, tmp_path_factory):
    """Whether the data has validation tasks, and the work directory of a run."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_data(monkeypatch, vectors(request.param))
        train_and_evaluate(build(config()), folder)
    return request.param, folder


@pytest.fixture
def runs(finished, tmp_path, monkeypatch):
    """A folder with a finished run, its result, and a function that builds another."""
    validation, folder = finished
    shutil.copytree(folder, tmp_path / "trained")
    use_data(monkeypatch, elsewhere(vectors(validation)))

    def other(**fields):
        return build(config(test_on="other", **fields))

    return tmp_path, read_result(folder), other


def test_result_is_that_of_training_again(runs, capsys):
    folder, trained, other = runs
    experiment = other()
    again = train_and_evaluate(experiment, folder / "again")
    capsys.readouterr()
    found = train_and_evaluate(experiment, folder / "other", folder / "trained")
    said = capsys.readouterr().err
    assert "which is already trained" in said
    assert "train:" not in said
    assert found == again
    assert found["per_task"] != trained["per_task"]
    curves = [
        [
            {name: line[name] for name in line if name != "steps_per_second"}
            for line in metrics.read(folder / name / "metrics.jsonl")
        ]
        for name in ("again", "other")
    ]
    assert curves[0] == curves[1]
    # The new work directory does not depend on the old one.
    assert train_and_evaluate(experiment, folder / "other") == found
    (folder / "other" / "results.json").unlink()
    assert train_and_evaluate(experiment, folder / "other") == found


def test_interrupted_copies_are_repeated(runs, monkeypatch):
    folder, _, other = runs
    experiment = other()
    copytree = "mlti_jax.training._workdir.shutil.copytree"

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(copytree, fail)
        with pytest.raises(KeyboardInterrupt):
            train_and_evaluate(experiment, folder / "other", folder / "trained")
    assert not (folder / "other" / "checkpoints").exists()
    found = train_and_evaluate(experiment, folder / "other", folder / "trained")
    assert found == train_and_evaluate(experiment, folder / "again")


def test_more_test_tasks_of_the_same_data(runs):
    folder, trained, other = runs
    found = train_and_evaluate(
        other(**{"eval.num_tasks": 12}), folder / "other", folder / "trained"
    )
    assert found["num_tasks"] == 12
    assert found["step"] == trained["step"]


@pytest.mark.parametrize(("field", "value"), [("seed", 1), ("train.steps", 8)])
def test_other_trainings_are_refused(runs, field, value):
    folder, _, other = runs
    experiment = other(**{field: value})
    message = f"(?s)was not trained with.*{field}: "
    with pytest.raises(InputError, match=message) as caught:
        train_and_evaluate(experiment, folder / "other", folder / "trained")
    assert "test_on" not in str(caught.value)
    assert not (folder / "other" / "results.json").exists()


def test_runs_of_earlier_versions_lack_options_of_later_strategies(runs):
    folder, trained, other = runs
    path = folder / "trained" / "config.json"
    saved = json.loads(path.read_text())
    del saved["sha256"], saved["strategy"]["views"], saved["strategy"]["mlti"]["boxes"]
    path.write_text(json.dumps(saved))
    found = train_and_evaluate(other(), folder / "other", folder / "trained")
    assert found["step"] == trained["step"]


def test_queries_of_validation_tasks_are_part_of_the_training(runs):
    folder, trained, other = runs
    experiment = other(**{"eval.queries": 3})
    if trained["checkpoint"] == "last":
        found = train_and_evaluate(experiment, folder / "other", folder / "trained")
        assert found["queries"] == 3
    else:
        with pytest.raises(InputError, match="eval.queries: 2 -> 3"):
            train_and_evaluate(experiment, folder / "other", folder / "trained")


def test_other_training_data_is_refused(runs):
    folder, _, other = runs
    path = folder / "trained" / "config.json"
    saved = json.loads(path.read_text())
    del saved["sha256"]
    saved["data"]["checksums"]["train"] += 1
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="data.checksums.train"):
        train_and_evaluate(other(), folder / "other", folder / "trained")


def test_a_run_that_is_not_finished_is_refused(runs):
    folder, _, other = runs
    (folder / "trained" / "results.json").unlink()
    with pytest.raises(InputError, match=r"has no results.json, so it is not a fini"):
        train_and_evaluate(other(), folder / "other", folder / "trained")
