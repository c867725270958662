"""`mlti_jax.fit`: equal to `experiments.run`, choices, errors."""

import json
import pathlib
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

import mlti_jax
from experiments import finished_run
from mlti_jax.api._fit import choose_config
from mlti_jax.data import Splits, from_arrays
from mlti_jax.data._own import dataset as own_data
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training._checkpoints import Checkpoints
from mlti_jax.training._config import base_config, flat_fields
from mlti_jax.training._evaluation import mean_and_interval
from tests.support.api_cases import (
    SMALL,
    class_pool,
    class_splits,
    domain_pool,
    domain_splits,
    fit_small,
    fitted,
    regression_pool,
    regression_splits,
    samples,
)

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_fit_gives_what_the_command_gives_bit_for_bit(tmp_path):
    names = [f"task{i}" for i in range(6)]
    x = np.concatenate([samples(f"{n} {y}", 9) for n in names for y in "ab"])
    path = tmp_path / "data.npz"
    np.savez(
        path, x=x, y=np.tile(np.repeat(["a", "b"], 9), 6), task=np.repeat(names, 18)
    )
    small = {**SMALL, "train.steps": 20, "train.ema": 0.5, "seed": 3}
    command = [
        *(sys.executable, "-m", "experiments.run", f"--workdir={tmp_path / 'run'}"),
        "--config=experiments/configs/own_data.py:learner=protonet,strategy=mlti,shots=3",
        f"--config.dataset.path={path}",
        "--config.dataset.validation=task1",
        *("--config.task.queries=6", "--config.eval.queries=6"),
        *(f"--config.{name}={value}" for name, value in small.items()),
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True)
    learner = mlti_jax.fit(
        own_data.load(path=path, validation="task1"),
        *("protonet", "mlti"),
        shots=3,
        seed=small.pop("seed"),
        steps=small.pop("train.steps"),
        verbose=False,
        overrides=small,
    )
    _, variables, _ = finished_run.load(tmp_path / "run")
    chex.assert_trees_all_equal(learner.variables, variables)
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert learner.result == {k: v for k, v in result.items() if k != "sha256"}


@pytest.mark.slow
def test_fit_is_the_run_of_its_config(tmp_path):
    splits = class_splits()
    learner = fitted("protonet")
    config = base_config()
    config.dataset.name = "toy_classes"
    config.learner.name, config.strategy.name = "protonet", "mlti"
    config.backbone.name = "mlp"
    config.interpolation = {"method": "mixup", "layers": (0, 1)}
    config.task = {"ways": 3, "shots": 3, "queries": 9}
    config.train.steps, config.train.ema = 20, 0.5
    config.eval.queries = 9
    config.update_from_flattened_dict(SMALL)
    assert learner.config.to_dict() == config.to_dict()
    result = train_and_evaluate(build(config, splits=splits), tmp_path)
    assert result == learner.result
    best = Checkpoints(tmp_path / "checkpoints" / "best", None)
    step, variables = best.restore(learner.variables)
    best.close()
    assert step == result["step"]
    chex.assert_trees_all_equal(learner.variables, variables)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_variables():
    one, same = (fit_small(domain_splits(), seed=1) for _ in range(2))
    other = fitted("protonet_domains")
    chex.assert_trees_all_equal(one.variables, same.variables)
    different = jax.tree.map(
        lambda a, b: bool((a != b).any()), one.variables.params, other.variables.params
    )
    assert any(jax.tree.leaves(different))


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (
            class_splits(),
            {
                "learner.name": "protonet",
                "backbone.name": "mlp",
                "interpolation.method": "mixup",
                "interpolation.layers": (0, 1),
                "task.ways": 4,  # as many as each split has
                "task.shots": 5,
                "task.queries": 7,
                "eval.queries": 7,
                "eval.every": 200,
            },
        ),
        (
            domain_splits(labels=("a", "b", "c")),
            {"learner.name": "protonet", "task.ways": 3},
        ),
        (
            regression_splits(),
            {
                "learner.name": "maml",
                "task.ways": 1,
                "task.shots": 5,
                "task.queries": 10,
                "interpolation.method": "mixup",
            },
        ),
        (
            Splits(
                "few",
                "non_label_sharing",
                class_pool("train", 3, per_class=30),
                None,
                class_pool("test", 3, per_class=4),
                "few test samples",
            ),
            {"task.shots": 2, "task.queries": 10, "eval.queries": 2, "task.ways": 3},
        ),
    ],
    ids=["classes", "domains", "regression", "few"],
)
def test_choices_from_the_data(splits, expected):
    config = choose_config(splits, {"strategy.name": "mlti", "train.steps": 2000}, {})
    experiment = build(config, splits=splits)
    chosen = flat_fields(experiment.config)
    assert {name: chosen[name] for name in expected} == expected
    assert experiment.learner.norm == (
        "batch" if splits.setting == "regression" else "running"
    )


@pytest.mark.slow
def test_verbose_prints_choices_and_results(capsys):
    fit_small(domain_splits(), verbose=True)
    printed = capsys.readouterr()
    assert "protonet on mlp, mlti with mixup at layer 0, 1" in printed.err
    assert "running averages: a prediction does not depend on the other" in printed.err
    assert "2-way 3-shot, 9 queries in training and 9 at test" in printed.err
    assert "toy domains" in printed.err
    assert "probabilities are not calibrated: the data has no validation" in printed.out
    assert "test accuracy" in printed.out
    fit_small(domain_splits(), "anil", "vanilla", verbose=True)
    assert "depends on the other queries of the same call" in capsys.readouterr().err
    fit_small(class_splits(), ways=3)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.slow
def test_a_dictionary_goes_through_from_arrays():
    tasks = {f"class{i}": samples(f"class{i}") for i in range(10)}
    learner = fit_small(tasks, ways=2)
    assert learner.facts.setting == "non_label_sharing"
    assert len(learner.classes) == 8  # a fifth is kept for the test
    tasks = {
        f"task{i}": (np.concatenate([samples(f"{i}a"), samples(f"{i}b")]), [0, 1] * 12)
        for i in range(5)
    }
    learner = fit_small(tasks)
    assert learner.facts.setting == "label_sharing"
    assert learner.classes == ("0", "1")


def test_a_workdir_is_kept_and_used_again(tmp_path, capsys):
    folder = tmp_path / "work"
    first = fit_small(domain_splits(), workdir=folder)
    assert (folder / "results.json").is_file()
    capsys.readouterr()
    again = fit_small(domain_splits(), workdir=folder, verbose=True)
    assert "finished run" in capsys.readouterr().err
    chex.assert_trees_all_equal(first.variables, again.variables)
    in_memory = fitted("protonet_domains")
    assert in_memory.result == first.result == again.result
    chex.assert_trees_all_equal(first.variables, in_memory.variables)
    with pytest.raises(InputError, match="seed: 0 -> 1"):
        fit_small(domain_splits(), workdir=folder, seed=1)


def test_without_a_workdir_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    fit_small(domain_splits())
    assert list(tmp_path.iterdir()) == []

    def stopped(*args):
        raise Interrupted(2, 7)

    monkeypatch.setattr("mlti_jax.api._fit.run_experiment", stopped)
    with pytest.raises(KeyboardInterrupt, match="with a workdir"):
        fit_small(domain_splits())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Interrupted):
        fit_small(domain_splits(), workdir=tmp_path / "kept")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"overrides": {"train.learning_rat": 1}},
            "did you mean 'train.learning_rate'",
        ),
        (
            {"overrides": {"learning_rate": 1e-3}},
            "did you mean 'train.learning_rate' or",
        ),
        ({"overrides": {"optimizer": "sgd"}}, "unknown config field 'optimizer'"),
        ({"overrides": {"train.steps": "many"}}, "train.steps is 'many'"),
        ({"overrides": {"train": 3}}, "unknown config field 'train'"),
        ({"overrides": {"dataset.name": "x"}}, "unknown config field 'dataset.name'"),
        ({"steps": 0}, "train.steps is 0; expected an integer from 1"),
        ({"shots": 0}, "shots is 0"),
        ({"shots": 12}, "has 12 samples, but shots=12"),
        ({"ways": 7}, "only 6 classes"),
        ({"learner": "protnet"}, "unknown learner 'protnet'"),
        ({"strategy": "mlt"}, "unknown strategy 'mlt'"),
        ({"learner": "sl"}, "mlti does not apply to learner sl"),
    ],
)
def test_wrong_arguments_get_one_clear_error(arguments, message):
    with pytest.raises(InputError, match=message):
        mlti_jax.fit(class_splits(), verbose=False, **arguments)


def test_wrong_tasks_get_one_clear_error():
    with pytest.raises(InputError, match="tasks is of type list"):
        mlti_jax.fit([1, 2])
    with pytest.raises(InputError, match="does not support regression"):
        mlti_jax.fit(regression_splits(), "protonet", verbose=False)
    no_test = Splits("t", "label_sharing", domain_pool("a", 3), None, None, "none kept")
    with pytest.raises(InputError, match="test"):
        mlti_jax.fit(no_test, verbose=False)


def test_overrides_by_section_or_by_name_are_the_same():
    splits = class_splits()
    fields = {"strategy.name": "mlti", "train.steps": 20}
    by_name = choose_config(splits, fields, {"train.learning_rate": 0.5, "seed": 2})
    by_section = choose_config(
        splits, fields, {"train": {"learning_rate": 0.5}, "seed": np.int64(2)}
    )
    assert by_name.to_dict() == by_section.to_dict()
    assert by_name.train.learning_rate == 0.5


# --------------------------------------------------------------------- evaluation


def test_evaluate_repeats_the_test_of_fit():
    learner = fitted("protonet")
    evaluation = learner.evaluate(num_tasks=20)
    assert evaluation.metric == "accuracy"
    np.testing.assert_allclose(
        evaluation.per_task, learner.result["per_task"], atol=1e-6
    )
    assert evaluation.mean == pytest.approx(learner.result["mean"])
    assert (evaluation.mean, evaluation.ci95) == mean_and_interval(evaluation.per_task)
    assert "over 20 tasks" in str(evaluation)


def test_evaluate_on_other_tasks_and_sizes():
    learner = fitted("protonet")
    other = class_splits(spread=5.0)
    hard = learner.evaluate(other, num_tasks=20)
    easy = learner.evaluate(num_tasks=20)
    assert hard.mean < easy.mean - 0.1
    pool = learner.evaluate(other.test, num_tasks=20)
    np.testing.assert_array_equal(pool.per_task, hard.per_task)
    two = learner.evaluate(num_tasks=20, ways=2, shots=1, queries=3)
    assert set(np.round(two.per_task * 6)) <= set(range(7))


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("protonet", {"num_tasks": 1}, "num_tasks is 1"),
        ("protonet", {"tasks": {}}, "tasks is of type dict"),
        ("protonet", {"tasks": regression_pool("r", 3)}, "tasks have targets"),
        ("regression", {"tasks": class_pool("c", 3)}, "tasks have classes"),
        ("protonet", {"ways": 9}, "only 4 classes"),
        ("maml", {"ways": 2}, "trained on tasks of 3 classes"),
        (
            "anil_domains",
            {"tasks": domain_pool("d", 3, ("no", "yes"))},
            "output for each of the classes inactive, active; the tasks have no, yes",
        ),
    ],
)
def test_evaluate_raises(name, call, message):
    with pytest.raises(InputError, match=message):
        fitted(name).evaluate(**call)


def test_tasks_standardized_with_other_statistics_are_converted():
    """The same raw samples give the same values, whatever else was in their table."""
    tasks = {
        f"task{i}": (
            100 * i + 50 * np.concatenate([samples(f"{i}a"), samples(f"{i}b")]),
            np.repeat([0, 1], 12),
        )
        for i in range(6)
    }
    splits = from_arrays(tasks, test=["task0", "task1"], standardise=True)
    learner = fit_small(splits, **{"eval.num_tasks": 4})
    own = learner.evaluate(num_tasks=8).per_task
    few = {name: tasks[name] for name in ("task0", "task1", "task5")}
    for standardise in (True, False):
        other = from_arrays(few, test=["task0", "task1"], standardise=standardise)
        assert other.inputs.mean != splits.inputs.mean
        found = learner.evaluate(other, num_tasks=8).per_task
        np.testing.assert_allclose(found, own, atol=0.1)
        assert np.mean(found == own) > 0.7  # rounding may move a sample or two


def test_evaluate_raises_for_samples_of_another_shape():
    pool = class_pool("test", 4)
    other = pool.replace(x=pool.x[:, :5])
    with pytest.raises(InputError, match=r"float32\[5\].*trained on float32\[6\]"):
        fitted("protonet").evaluate(other)


@pytest.mark.parametrize(
    ("steps", "decay"),
    [(5, 0.0), (20, 0.5), (2000, 0.995), (10**4, 0.999), (10**6, 0.999)],
)
def test_the_average_covers_a_tenth_of_the_steps(steps, decay):
    config = choose_config(domain_splits(), {"train.steps": steps}, {})
    assert config.train.ema == decay
    config = choose_config(domain_splits(), {"train.steps": np.int64(steps)}, {})
    assert config.train.ema == decay
    config = choose_config(domain_splits(), {"train.steps": steps}, {"train.ema": 0.25})
    assert config.train.ema == 0.25
