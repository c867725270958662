"""`select`: folds, leakage, budget, halving, nesting, resuming, wrong arguments."""

import dataclasses

import flax.linen as nn
import numpy as np
import optax
import pytest

import mlti_jax
from mlti_jax.api._selection.budget import Cost, choose_steps, parse_budget
from mlti_jax.api._selection.candidates import default_pairs, parse_candidates
from mlti_jax.api._selection.folds import gather_tasks, make_folds
from mlti_jax.api._selection.halving import Rung, Searcher, count_fits, plan_rungs
from mlti_jax.api._selection.trainer import Fit, Trainer
from mlti_jax.errors import InputError, Interrupted
from tests.support.api_cases import SMALL, class_splits

FEW = {**SMALL, "backbone.mlp.hidden": (4,), "eval.tasks_per_pass": 20}


def binary_tasks(number=4, per_class=9, features=3, seed=0):
    rng = np.random.default_rng(seed)
    tasks = {}
    for task in range(number):
        y = np.repeat([0, 1], per_class)
        x = rng.normal(size=(2 * per_class, features)) + y[:, None] + 0.1 * task
        tasks[f"t{task}"] = ((5 * x + 100).astype(np.float32), y)
    return tasks


def regression_tasks(number=4):
    rng = np.random.default_rng(0)
    return {
        f"t{n}": (rng.normal(size=(20, 3)).astype(np.float32), rng.normal(size=20))
        for n in range(number)
    }


def make_trainer(tasks, pairs, episodes=12, nested=False, **shared):
    gathered = gather_tasks(tasks)
    splits = dataclasses.replace(gathered.splits, test=gathered.pool)
    shared = {"overrides": FEW, **shared}
    candidates = parse_candidates(pairs, splits, shared)
    folds = make_folds(gathered, None, shared.get("ways"), nested=nested)
    return Trainer(candidates, gathered, folds, "accuracy", episodes)


VANILLA_AND_MLTI = [("protonet", "vanilla"), ("protonet", "mlti")]


# --------------------------------------------------------------------------- folds


def test_few_tasks_are_left_out_one_by_one():
    folds = make_folds(gather_tasks(binary_tasks(8)), None, None, nested=True)
    assert folds == tuple((n,) for n in range(8))


def test_more_tasks_are_divided_into_six_folds():
    folds = make_folds(gather_tasks(binary_tasks(9)), None, None, nested=True)
    assert sorted(map(len, folds)) == [1, 1, 1, 2, 2, 2]
    assert sorted(task for fold in folds for task in fold) == list(range(9))


def test_folds_of_classes_suffice_for_a_task():
    tasks = gather_tasks(class_splits())  # 6 + 4 + 4 classes
    folds = make_folds(tasks, None, 3, nested=True)
    assert len(folds) == 4
    assert min(map(len, folds)) >= 3
    assert sorted(c for fold in folds for c in fold) == list(range(14))


def test_all_pools_are_gathered():
    splits = class_splits()
    tasks = gather_tasks(splits)
    pools = (splits.train, splits.validation, splits.test)
    expected = {
        name: np.asarray(pool.x)[np.asarray(pool.index[n])[: pool.count[n]]]
        for pool in pools
        for n, name in enumerate(pool.classes)
    }
    for n, name in enumerate(tasks.names):
        rows = np.asarray(tasks.pool.index[n])[: tasks.pool.count[n]]
        np.testing.assert_array_equal(np.asarray(tasks.pool.x)[rows], expected[name])
    assert set(tasks.names) == set(expected)


def test_statistics_are_those_of_the_training_tasks():
    raw = binary_tasks()
    splits = mlti_jax.data.from_arrays(raw, test=["t0"], standardise=True)
    tasks = gather_tasks(splits)
    position = tasks.names.index("t2")
    fold = tasks.fold([position], [position])
    kept = np.concatenate([x for name, (x, _) in raw.items() if name != "t2"])
    kept = kept.astype(np.float64)
    np.testing.assert_allclose(fold.inputs.mean, kept.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(fold.inputs.scale, kept.std(axis=0), rtol=1e-5)
    rows = np.asarray(fold.test.index[0]).reshape(-1)
    expected = (raw["t2"][0] - kept.mean(axis=0)) / kept.std(axis=0)
    np.testing.assert_allclose(np.asarray(fold.test.x)[rows], expected, atol=1e-4)


def test_samples_that_occur_in_several_tasks_are_counted():
    raw = binary_tasks(4, per_class=10)
    assert gather_tasks(raw).repeated_share() == 0
    raw["t0"][0][:3] = raw["t2"][0][5:8]
    raw["t1"][0][1] = raw["t1"][0][0]  # within one task
    np.testing.assert_allclose(gather_tasks(raw).repeated_share(), 6 / 80)


def test_targets_are_standardized_on_the_training_tasks():
    raw = regression_tasks()
    tasks = gather_tasks(raw)
    fold = tasks.fold([1], [1])
    kept = np.concatenate([y for name, (_, y) in raw.items() if name != "t1"])
    np.testing.assert_allclose(fold.inputs.targets.mean, [kept.mean()], atol=1e-6)
    np.testing.assert_allclose(fold.inputs.targets.scale, [kept.std()], rtol=1e-5)
    rows = np.asarray(fold.test.index[0])
    expected = (raw["t1"][1] - kept.mean()) / kept.std()
    np.testing.assert_allclose(np.asarray(fold.test.y)[rows, 0], expected, atol=1e-5)


def test_training_pools_have_no_held_out_sample():
    tasks = gather_tasks(binary_tasks())
    fold = tasks.fold([1, 3], [1])
    rows = np.asarray(fold.train.index).reshape(-1)
    per_task = 18
    assert set(rows // per_task) == {0, 2}
    assert set(np.asarray(fold.test.index).reshape(-1) // per_task) == {1}


# --------------------------------------------------------------------- training runs


@pytest.mark.slow
def test_a_fold_has_the_result_of_fit():
    raw = binary_tasks()
    trainer = make_trainer(raw, VANILLA_AND_MLTI, shots=2)
    one = Fit(1, (2,), 7)
    found = trainer.run(one)
    fields = {**FEW, "train.devices": 1, "eval.num_tasks": 12}
    episode = trainer.experiment(one).evaluator.episode
    for tasks in (
        trainer.tasks.fold([2], [2]),
        mlti_jax.data.from_arrays(raw, test=["t2"]),
    ):
        fitted = mlti_jax.fit(
            tasks,
            "protonet",
            "mlti",
            shots=2,
            steps=7,
            seed=trainer.seed(one),
            verbose=False,
            overrides={**fields, "eval.queries": episode.queries},
        )
        np.testing.assert_allclose(found[2][0], fitted.result["per_task"], atol=2e-6)


@pytest.mark.slow
def test_a_fold_of_targets_has_the_result_of_fit():
    raw = regression_tasks()
    pairs = [("maml", "vanilla"), ("maml", "mlti")]
    trainer = dataclasses.replace(make_trainer(raw, pairs, shots=5), metric="mse")
    trainer.run(Fit(0, (0,), 2))  # has another scale of targets
    one = Fit(0, (3,), 4)
    found = trainer.run(one)
    fitted = mlti_jax.fit(
        mlti_jax.data.from_arrays(raw, test=["t3"]),
        "maml",
        "vanilla",
        shots=5,
        steps=4,
        seed=trainer.seed(one),
        verbose=False,
        overrides={**FEW, "train.devices": 1, "eval.num_tasks": 12},
    )
    np.testing.assert_allclose(found[3][0], fitted.result["per_task"], rtol=1e-4)


@pytest.mark.slow
def test_held_out_tasks_do_not_change_the_training(monkeypatch):
    raw = binary_tasks()
    other = {**raw, "t1": (raw["t1"][0] + 1000, raw["t1"][1])}
    found = []
    for tasks in (raw, other):
        trainer = make_trainer(tasks, VANILLA_AND_MLTI)
        found.append(trainer.run(Fit(0, (1, 3), 5))[3])
    np.testing.assert_array_equal(*found)


def test_seeds_are_shared_by_candidates_and_differ_between_folds():
    trainer = make_trainer(binary_tasks(), VANILLA_AND_MLTI)
    folds = [(0,), (1,), (0, 1), ()]
    seeds = [[trainer.seed(Fit(c, fold, 9)) for fold in folds] for c in (0, 1)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(folds)
    assert trainer.seed(Fit(0, (0,), 9, repeat=1)) not in seeds[0]


# ------------------------------------------------------------- halving and nesting


def test_rungs():
    assert plan_rungs(3, 100) == [Rung(100, 3)]
    assert plan_rungs(5, 100) == [Rung(25, 5), Rung(100, 3)]
    assert plan_rungs(9, 160) == [Rung(10, 9), Rung(40, 5), Rung(160, 3)]
    # 4 folds and 6 pairs of folds, 2 seeds.
    assert count_fits(plan_rungs(5, 100), 4, True, 2) == 2 * 10 * 8


def search(score, folds=4, candidates=5, nested=True):
    """Search with scores `score(fit, fold)`, and the fits that ran."""
    ran = []

    def execute(fits):
        ran.extend(fits)
        return {f: {j: np.full((1, 2), score(f, j)) for j in f.held_out} for f in fits}

    rungs = plan_rungs(candidates, 100)
    searcher = Searcher(candidates, 0, folds, rungs, 1, True, execute)
    return searcher.search(nested), ran


def test_the_best_is_found_and_the_worst_stop_early():
    found, ran = search(lambda fit, fold: [0, 5, 1, 3, 4][fit.candidate])
    assert found.choice.winner == 1
    # 1, 4 and 3 are the better half; 0 is the reference.
    assert found.choice.reached == (2, 2, 1, 2, 2)
    assert [choice.winner for choice in found.outer] == [1] * 4
    assert not any(fit.candidate == 2 for fit in ran if fit.steps == 100)
    assert len(ran) == len(set(ran))


@pytest.mark.parametrize("outer", range(4))
def test_the_choice_without_a_fold_does_not_depend_on_it(outer):
    def score(fit, fold, changed):
        value = np.random.default_rng([fit.candidate, fit.steps, *fit.held_out, fold])
        sees = outer not in fit.held_out or fold == outer
        return value.normal() + (fit.candidate * changed if sees else 0)

    before, _ = search(lambda fit, fold: score(fit, fold, 0))
    after, _ = search(lambda fit, fold: score(fit, fold, 100))
    assert before.outer[outer] == after.outer[outer]
    assert after.choice.winner == 4


# --------------------------------------------------------------------------- budget


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (70, (70, None)),
        ("90s", (None, 90)),
        ("1.5 min", (None, 90)),
        ("2h", (None, 7200)),
    ],
)
def test_budgets(budget, expected):
    assert parse_budget(budget) == expected


@pytest.mark.parametrize(
    "budget", ["ten minutes", "10", "0min", "-5s", 0, 2.5, None, True]
)
def test_wrong_budgets(budget):
    with pytest.raises(InputError, match="budget is"):
        parse_budget(budget)


def test_steps_fit_into_the_time():
    costs = [Cost(2.0, 0.1, 0.01), Cost(4.0, 0.3, 0.03)]
    # Two compilations each, 10 fits each, one refit with the slower one.
    fixed, slope = 2 * 6.0 + 10 * 0.4, 10 * 0.04 + 0.03
    steps, note = choose_steps(costs, 300, fold_sets=10, shapes=2, largest=10_000)
    assert steps == int((300 - fixed) / slope) // 10 * 10
    assert "warning" not in note
    steps, note = choose_steps(costs, 20, fold_sets=10, shapes=2, largest=10_000)
    assert steps == 50
    assert "too small" in note
    assert choose_steps(costs, 1e6, fold_sets=10, shapes=2, largest=777)[0] == 770


# ------------------------------------------------------------------ wrong arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folds": 9}, "folds is 9, but the data has only 4 tasks"),
        ({"folds": 2}, "nested=False"),
        ({"folds": 1}, "folds is 1"),
        ({"metric": "f1"}, "unknown metric for label-sharing data 'f1'"),
        ({"budget": "soon"}, "budget is 'soon'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"overrides": {"train.steps": 5}}, "overrides has train.steps, which select"),
        ({"candidates": "mlti"}, "expected a list of pairs"),
        ({"candidates": [("protonet", "mlti")]}, "expected two or more"),
        ({"candidates": VANILLA_AND_MLTI * 2}, "is given twice"),
        ({"candidates": [("protonets", "mlti"), 3]}, "neither a pair"),
        ({"candidates": [("protonets", "mlti"), ("maml", "mlti")]}, "unknown learner"),
        ({"candidates": [("maml", "mltis"), ("maml", "mlti")]}, "unknown strategy"),
        (
            {"candidates": [("protonet", "metareg"), ("maml", "mlti")]},
            "strategy metareg does not apply to learner protonet",
        ),
        ({"candidates": [{"learners": "maml"}, {}]}, "unknown argument of fit"),
        ({"learning_rate": 1}, "unknown argument of select 'learning_rate'"),
        ({"steps": 5, "budget": 5}, "omit steps"),
        ({"shots": 50}, "samples"),
    ],
)
def test_wrong_arguments_are_errors_before_training(arguments, message, monkeypatch):
    monkeypatch.setattr(Trainer, "run", None)
    with pytest.raises(InputError, match=message):
        mlti_jax.select(binary_tasks(), **{"budget": 5, "overrides": FEW, **arguments})


def test_metric_based_learners_are_not_for_regression():
    with pytest.raises(InputError, match="protonet needs classes"):
        mlti_jax.select(regression_tasks(), VANILLA_AND_MLTI, budget=5)


def test_too_few_classes_are_an_error():
    classes = {f"c{n}": np.zeros((9, 3), np.float32) for n in range(5)}
    with pytest.raises(InputError, match="the data has 5 classes"):
        mlti_jax.select(classes, budget=5)


@pytest.mark.parametrize(
    "setting", ["label_sharing", "non_label_sharing", "regression"]
)
def test_default_candidates_include_vanilla_of_each_learner(setting):
    pairs = default_pairs(setting)
    assert {learner for learner, _ in pairs} == {
        learner for learner, strategy in pairs if strategy == "vanilla"
    }


def test_candidates_have_names_and_fields():
    slow = {"learner": "maml", "overrides": {"train.learning_rate": 1e-4}}
    named = {"name": "mine", "learner": "maml", "strategy": "vanilla", "shots": 1}
    trainer = make_trainer(binary_tasks(), [slow, named], shots=2)
    first, second = trainer.candidates
    assert first.name == "maml:mlti, train.learning_rate=0.0001"
    assert first.config.train.learning_rate == 1e-4
    assert first.config.backbone.mlp.hidden == (4,)
    assert (first.config.task.shots, second.config.task.shots) == (2, 1)
    assert second.name == "mine"
    assert second.is_vanilla


# --------------------------------------------------------------------- whole selections


def run(workdir, **arguments):
    return mlti_jax.select(
        binary_tasks(),
        VANILLA_AND_MLTI,
        budget=3,
        episodes=6,
        shots=2,
        workdir=workdir,
        verbose=False,
        overrides=FEW,
        **arguments,
    )


@pytest.mark.slow
def test_an_interrupted_selection_resumes_with_the_same_result(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    calls, train = [], Trainer.run

    def run_some(self, fit):
        calls.append(fit)
        if len(calls) == 6:
            raise Interrupted(15, 0)
        return train(self, fit)

    monkeypatch.setattr(Trainer, "run", run_some)
    with pytest.raises(Interrupted) as stop:
        run(tmp_path / "resumed")
    assert stop.value.exit_code == 143
    resumed = run(tmp_path / "resumed")
    # 2 candidates, 4 folds and 6 pairs of folds; one fit was started twice.
    assert len(calls) == 2 * 10 + 1
    assert resumed.to_dict() == whole.to_dict()
    x = binary_tasks()["t0"][0]
    y = binary_tasks()["t0"][1]
    ones = [s.learner.adapt(x, y).predict_proba(x) for s in (whole, resumed)]
    np.testing.assert_array_equal(*ones)
    again = run(tmp_path / "resumed")  # finished: read, not trained
    assert len(calls) == 2 * 10 + 1
    assert again.to_dict() == whole.to_dict()
    with pytest.raises(InputError, match="other seeds"):
        run(tmp_path / "resumed", seeds=2)

    # The table and the estimate from the saved scores, computed here.
    assert (tmp_path / "whole" / "selection.png").stat().st_size > 1000
    page = (tmp_path / "whole" / "report.html").read_text()
    for title in ("Candidates", "Folds", "Data", "Method and settings", "Repeat this"):
        assert title in page
    for text in ("protonet:mlti", "t3", whole.conclusion.splitlines()[0]):
        assert text in page
    assert whole.fits == 20
    reference, other = (
        whole.candidates["protonet:vanilla"],
        whole.candidates["protonet:mlti"],
    )
    difference = np.mean(other.fold_means) - np.mean(reference.fold_means)
    np.testing.assert_allclose(other.comparison.difference.mean, difference)
    chosen = [
        whole.candidates[name].fold_means[fold]
        for fold, name in enumerate(whole.estimate.chosen)
    ]
    np.testing.assert_allclose(whole.estimate.score.mean, np.mean(chosen))
    assert "learly better" in str(whole)
    assert whole.learner.result["mean"] == whole.estimate.score.mean


@pytest.mark.slow
@pytest.mark.parametrize(
    "tasks", [class_splits(), regression_tasks()], ids=["classes", "regression"]
)
def test_other_settings(tasks):
    names = "maml" if isinstance(tasks, dict) else "protonet"
    found = mlti_jax.select(
        tasks,
        [(names, "vanilla"), (names, "mlti")],
        budget=2,
        episodes=4,
        metric=None if isinstance(tasks, dict) else "log_loss",
        nested=False,
        verbose=False,
        overrides=FEW,
    )
    assert found.metric == ("mse" if isinstance(tasks, dict) else "log_loss")
    assert found.estimate is None
    assert "optimistic" in str(found)
    best = min(found.candidates.values(), key=lambda result: result.score.mean)
    assert found.winner == best.name


@pytest.mark.slow
def test_networks_and_optimizers_of_users(tmp_path):
    vanilla = {"learner": "protonet", "strategy": "vanilla"}
    own = {**vanilla, "network": nn.Dense(5), "optimizer": optax.sgd(0.1)}
    found = mlti_jax.select(
        binary_tasks(),
        [vanilla, own],
        budget=4,
        episodes=4,
        nested=False,
        verbose=False,
        workdir=tmp_path,
        overrides=FEW,
    )
    name = "protonet:vanilla, network=Dense, optimizer=GradientTransformationExtraArgs"
    assert list(found.candidates) == ["protonet:vanilla", name]
    one, other = (result.fold_means for result in found.candidates.values())
    assert one != other
