"""The command on a finished run, and its adaptation against one task at a time."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.configs.fsmol import get_config
from experiments.fsmol import __main__ as command
from experiments.fsmol import evaluation
from experiments.fsmol.draws import draw_all
from mlti_jax import data
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.types import Batch, Task
from tests.support.cli import reset_flags
from tests.support.raw_files import prepare
from tests.support.releases import write_fsmol_tables

pytest.importorskip("rdkit.Chem")
pytest.importorskip("sklearn")
# It defines flags, which `flagsaver` would remove if it were imported later.
pytest.importorskip("array_record.python.array_record_data_source")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsmol")
    prepare("fsmol", write_fsmol_tables(folder / "raw"), folder / "data")
    return str(folder / "data")


def small_config(argument):
    config = get_config(argument)
    with config.unlocked():
        config.dataset.min_per_class = 8
        config.task.update({"shots": 4, "queries": 4})
        config.backbone.mlp.hidden = (8, 6)
        config.train.update({"steps": 4, "meta_batch_size": 2})
        config.eval.update({"num_tasks": 4, "queries": 4, "validation_tasks": 4})
    return config


@pytest.fixture(scope="module")
def runs(data_dir, tmp_path_factory):
    """Finished runs by learner."""

    def finish(argument):
        folder = tmp_path_factory.mktemp("run")
        train_and_evaluate(build(small_config(argument), data_dir), folder)
        return folder

    return {
        "protonet": finish("learner=protonet,strategy=mlti"),
        "maml": finish("learner=maml,strategy=vanilla"),
    }


def evaluate(**options):
    reset_flags()  # Other tests of this process may have set them.
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**options):
        command.main()


@pytest.mark.slow
def test_a_finished_run(runs, data_dir, tmp_path, capsys):
    baselines = tmp_path / "baselines"
    baselines.mkdir()
    (baselines / "kNN_summary.csv").write_text(
        "TASK_ID,fraction_positive_test,16_train,32_train\n"
        "CHEMBL837,0.33,0.4+/-0.0,0.5+/-0.1\nCHEMBL830,0.33,0.5+/-0.1,0.6+/-0.1\n"
    )
    options = {"data_dir": data_dir, "support": "32,16", "draws": 3}
    evaluate(
        workdir=str(runs["protonet"]),
        baselines=str(baselines),
        classical=["logistic_regression"],
        **options,
    )
    printed = capsys.readouterr().out
    assert "minus FS-Mol kNN" in printed
    content = json.loads((runs["protonet"] / "fsmol.json").read_text())
    assert content["run"]["learner"] == "protonet"
    # 33 molecules are too few for 32 and queries of both classes.
    assert content["skipped"] == {"16": [], "32": ["CHEMBL823"]}
    names = {"CHEMBL823", "CHEMBL830", "CHEMBL837"}
    for method in content["methods"].values():
        values = method["delta_auprc"]["values"]
        assert set(values["16"]) == names
        assert all(len(draws) == 3 for draws in values["16"].values())
        means = [np.mean(draws) for draws in values["16"].values()]
        line = method["delta_auprc"]["summary"]["16"]
        assert line["mean"] == pytest.approx(np.mean(means))
        assert line["assays"] == 3
    # Another run, compared with the first one, on the same draws.
    evaluate(
        workdir=str(runs["maml"]),
        against=[str(runs["protonet"] / "fsmol.json")],
        output=str(tmp_path / "maml.json"),
        **options,
    )
    assert "minus protonet, mlti (" in capsys.readouterr().out
    with pytest.raises(InputError, match="has draws 3, and this command 2"):
        evaluate(
            workdir=str(runs["maml"]),
            against=[str(runs["protonet"] / "fsmol.json")],
            **(options | {"draws": 2}),
        )


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["protonet", "maml"])
def test_outputs_equal_those_of_each_task_alone(runs, data_dir, learner, monkeypatch):
    monkeypatch.setattr(evaluation, "QUERIES", (40, 80))
    monkeypatch.setattr(evaluation, "SAMPLES_PER_PASS", 130)
    monkeypatch.setattr(evaluation, "MOLECULES_PER_PASS", 50)
    experiment, variables, _ = command.finished_run.load(runs[learner], data_dir)
    pool = experiment.splits.test
    draws = draw_all(pool, 16, 2, seed=0)
    method = evaluation.method_of_run(experiment, variables, pool)
    found = {(d.assay, d.number): outputs for d, outputs in method(draws)}
    assert len(found) == len(draws) == 6
    x = np.asarray(pool.x) / np.float32(255)
    for draw in draws:
        task = Task(
            Batch(jnp.asarray(x[draw.support]), jnp.eye(2)[draw.support_y]),
            Batch(jnp.asarray(x[draw.query]), jnp.eye(2)[draw.query_y]),
            jnp.int32(0),
        )
        context = TaskContext(jax.random.key(0), False)
        alone = experiment.learner.loss(variables, task, context)[1].outputs
        np.testing.assert_allclose(
            found[draw.assay, draw.number], alone, rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
def test_without_a_run(data_dir, tmp_path, capsys):
    evaluate(
        data_dir=data_dir,
        classical=["random_forest"],
        support="16",
        draws=1,
        output=str(tmp_path / "forest.json"),
    )
    assert "random_forest" in capsys.readouterr().out
    content = json.loads((tmp_path / "forest.json").read_text())
    assert content["run"] is None
    from sklearn.ensemble import RandomForestClassifier

    pool = data.load("fsmol", data_dir=data_dir, min_per_class=8).test
    draw = draw_all(pool, 16, 1, seed=0)[0]
    x = np.asarray(pool.x)
    forest = RandomForestClassifier(random_state=0)
    forest.fit(x[draw.support][:, :2048], draw.support_y)
    assert forest.predict(x[draw.query][:, :2048]).shape == draw.query_y.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--workdir is missing"),
        ({"workdir": "/nowhere"}, "--workdir=/nowhere does not exist"),
        ({"classical": ["forest"], "output": "x.json"}, "unknown classical method"),
        ({"classical": ["random_forest"]}, "--output is missing"),
        ({"workdir": ".", "support": "1"}, "--support is '1'; expected numbers"),
        ({"workdir": ".", "support": "a"}, "--support is 'a'; expected numbers"),
        ({"workdir": ".", "draws": 0}, "--draws is 0; expected an integer from 1"),
        ({"workdir": ".", "baselines": "/nowhere"}, "--baselines=/nowhere has no"),
        ({"workdir": "."}, "has no config.json"),
    ],
)
def test_wrong_flags(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        evaluate(**options)
