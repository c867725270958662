"""Loading finished runs: the tested network, runs of previous versions, errors."""

import json

import chex
import jax
import numpy as np
import pytest

from experiments import finished_run
from experiments.figures import tsne as figure_tsne
from experiments.figures.tsne import Features
from mlti_jax.errors import InputError
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._experiment import TEST
from mlti_jax.training._workdir import open_workdir
from tests.support.figure_cases import use_data, vector_config, vectors
from tests.support.table_files import write_run


@pytest.mark.slow
@pytest.mark.parametrize("validation", [False, True])
def test_a_finished_run_gives_the_network_it_was_tested_with(
    tmp_path, monkeypatch, validation
):
    use_data(monkeypatch, vectors(validation))
    result = train_and_evaluate(build(vector_config()), tmp_path)
    assert result["checkpoint"] == ("best" if validation else "last")
    experiment, variables, step = finished_run.load(tmp_path)
    assert step == result["step"]
    assert experiment.config.interpolation.layers == (0, 1)
    key = experiment.eval_key(TEST)
    values = experiment.evaluator(variables, experiment.splits.test, key, 8)
    np.testing.assert_allclose(values, result["per_task"], atol=1e-5)
    # Options that were removed since, without an effect on results, are ignored.
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text())
    saved["learner"]["maml"]["unroll"] = False
    del saved["sha256"]  # as in a run of an earlier version
    path.write_text(json.dumps(saved))
    _, same, _ = finished_run.load(tmp_path)
    chex.assert_trees_all_equal(same, variables)
    assert train_and_evaluate(experiment, tmp_path) == result
    if not validation:  # An earlier checkpoint is another network.
        path = tmp_path / "results.json"
        path.write_text(json.dumps(result | {"step": 4}))
        _, earlier, step = finished_run.load(tmp_path)
        assert step == 4
        pairs = zip(jax.tree.leaves(earlier), jax.tree.leaves(variables), strict=True)
        assert any((a != b).any() for a, b in pairs)
    # At both layers, with the network's features.
    originals, made = figure_tsne.task_vectors(experiment, Features(variables, ""), 12)
    assert (originals.shape, made.shape) == ((3, 8), (12, 8))


def test_work_directories_without_a_finished_run(tmp_path, monkeypatch):
    use_data(monkeypatch, vectors())
    experiment = build(vector_config())
    saved = json.loads(experiment.config.to_json_best_effort())
    open_workdir(tmp_path, {**saved, "data": experiment.data_facts()})
    path = tmp_path / "results.json"
    write_run(tmp_path / "other", checkpoint="last", step=3)
    (tmp_path / "other" / "results.json").rename(path)
    with pytest.raises(InputError, match="cannot read the checkpoint of step 3"):
        finished_run.load(tmp_path)
    config = tmp_path / "config.json"
    saved = json.loads(config.read_text())
    del saved["sha256"]
    saved["data"]["checksums"]["train"] += 1
    config.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="trained on different data"):
        finished_run.load(tmp_path)
    del saved["train"]["compute_dtype"]
    config.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="its config has no train.compute_dtype; run"):
        finished_run.load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="no results.json, so it is not a finished"):
        finished_run.load(tmp_path)
