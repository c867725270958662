"""`mlti_jax.compare`: paired differences, seeds, work directories, what is printed."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest
import scipy.stats

import mlti_jax
from mlti_jax.api import Comparison
from mlti_jax.api._compare import crossed_interval, difference
from mlti_jax.data import from_arrays
from mlti_jax.errors import InputError, Interrupted
from mlti_jax.training import Evaluator
from mlti_jax.training._metrics import format_interval
from tests.support.api_cases import SMALL, domain_splits, fitted

SMALLER = {**SMALL, "eval.num_tasks": 6}


def test_compare_pairs_strategies_on_the_same_tasks(tmp_path, capsys):
    comparison = mlti_jax.compare(
        domain_splits(), steps=20, shots=3, workdir=tmp_path, overrides=SMALL
    )
    values = [
        np.array(json.loads((tmp_path / n / "results.json").read_text())["per_task"])
        for n in ("vanilla", "mlti")
    ]
    expected = values[1] - values[0]
    ci95 = 1.96 * expected.std(ddof=1) / np.sqrt(len(expected))
    found = comparison.differences["mlti"]
    assert found.mean == pytest.approx(expected.mean())
    assert found.ci95 == pytest.approx(ci95)
    assert found.per_seed == (pytest.approx(expected.mean()),)
    assert np.isnan(found.seed_std)
    assert [len(learners) for learners in comparison.runs.values()] == [1, 1]

    printed = capsys.readouterr()
    line = printed.out.strip().splitlines()[-1]
    assert line == comparison.verdict
    assert "against vanilla, on the same 20 test tasks, one training run each" in line
    assert found.verdict in line
    assert printed.err.count("toy domains") == 1  # the data, once for both strategies
    # Printing the result adds a table, and does not repeat the sentence.
    table = str(comparison)
    assert table == repr(comparison)
    assert line not in table
    title, first, second = table.splitlines()
    assert title == "accuracy on the same 20 test tasks, one training run each:"
    assert first == f"  vanilla    {_percent(values[0])}"
    assert second.startswith(f"  mlti       {_percent(values[1])}   ")
    assert second.endswith(f"{100 * ci95:.2f} % against vanilla, paired")


def _percent(values):
    ci95 = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{100 * values.mean():.2f} +- {100 * ci95:.2f} %"


# --------------------------------------------------------------------------- seeds


@pytest.mark.slow
def test_seeds_are_runs_of_their_own(tmp_path, capsys):
    arguments = {"steps": 4, "shots": 3, "seed": 3, "overrides": SMALLER}
    # A comparison of one seed grows: its runs are used again.
    one = mlti_jax.compare(domain_splits(), workdir=tmp_path, **arguments)
    capsys.readouterr()
    both = mlti_jax.compare(domain_splits(), workdir=tmp_path, seeds=2, **arguments)
    printed = capsys.readouterr()
    assert printed.err.count("holds a finished run") == 2
    assert "--- mlti, seed 4" in printed.err
    assert "standard deviation over seeds" in printed.out
    assert "2 training runs each" in printed.out
    folders = {
        name: [tmp_path / name, tmp_path / name / "seed4"]
        for name in ("vanilla", "mlti")
    }
    values = {
        name: np.array([_result(folder)["per_task"] for folder in paths])
        for name, paths in folders.items()
    }
    seeds = [_result(folder)["seed"] for folder in folders["mlti"]]
    assert seeds == [3, 4]
    alone = mlti_jax.fit(
        domain_splits(),
        strategy="mlti",
        verbose=False,
        **{**arguments, "seed": 4},
    )
    assert alone.result == both.runs["mlti"][1].result
    assert both.learners["mlti"].result == one.learners["mlti"].result
    found = both.differences["mlti"]
    per_seed = (values["mlti"] - values["vanilla"]).mean(axis=1)
    np.testing.assert_allclose(found.per_seed, per_seed)
    assert found.mean == pytest.approx(per_seed.mean())
    assert found.seed_std == pytest.approx(np.abs(np.diff(per_seed))[0] / np.sqrt(2))


@pytest.mark.slow
def test_an_interrupted_comparison_resumes(tmp_path, monkeypatch):
    """Stopped in the run of the second seed: the same results, bit for bit."""
    rng = np.random.default_rng(0)
    tasks = {
        str(i): (rng.normal(size=(20, 3)), 100 + 5 * rng.normal(size=20))
        for i in range(6)
    }
    splits = from_arrays(tasks, validation=["0"], test=["1", "2"])
    overrides = {
        **SMALLER,
        **{"eval.every": 2, "train.checkpoint_every": 2},
        **{"learner.anil.steps": 1, "learner.anil.eval_steps": 1},
    }

    def run(folder):
        return mlti_jax.compare(
            *(splits, ("vanilla", "mlti")),
            learner="anil",
            **{"steps": 4, "shots": 3, "seeds": 2, "verbose": False},
            **{"workdir": tmp_path / folder, "overrides": overrides},
        )

    whole = run("whole")
    evaluate, calls = Evaluator.__call__, []

    def interrupted(self, *args):
        calls.append(self)
        if len(calls) == 7:  # each run validates at steps 2 and 4, and is tested
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *args)

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    with pytest.raises(Interrupted):
        run("broken")
    assert not (tmp_path / "broken" / "vanilla" / "seed1" / "results.json").exists()
    resumed = run("broken")
    for name in ("vanilla", "mlti"):
        results = [[m.result for m in c.runs[name]] for c in (whole, resumed)]
        assert results[0] == results[1]
    assert resumed.differences == whole.differences


def _result(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_interval_by_hand():
    """Two seeds and three tasks, every sum written out."""
    values = np.array([[0.1, 0.4, 0.1], [0.3, 0.2, 0.7]])
    seed_means, task_means = [0.2, 0.4], [0.2, 0.3, 0.4]
    v_seeds = sum((m - 0.3) ** 2 for m in seed_means) / 1 / 2
    v_tasks = sum((m - 0.3) ** 2 for m in task_means) / 2 / 3
    quantile = scipy.stats.t.ppf(0.975, 1)
    mean, ci95 = crossed_interval(values)
    assert mean == pytest.approx(0.3)
    assert ci95 == pytest.approx(np.sqrt(quantile**2 * v_seeds + 1.96**2 * v_tasks))
    assert crossed_interval(np.full((3, 4), 0.25)) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("seed_std", "task_std", "noise"),
    [(1.0, 1.0, 1.0), (0.3, 1.0, 3.0), (1.0, 0.0, 1.0), (0.0, 3.0, 1.0)],
)
def test_the_interval_covers_seeds_and_tasks(seed_std, task_std, noise):
    """Simulated experiments with known mean: at least 95 % of intervals contain it."""
    rng = np.random.default_rng(0)
    number, seeds, tasks = 2000, 3, 50
    covered = ignoring_seeds = 0
    for _ in range(number):
        values = (
            0.7
            + seed_std * rng.normal(size=(seeds, 1))
            + task_std * rng.normal(size=(1, tasks))
            + noise * rng.normal(size=(seeds, tasks))
        )
        mean, ci95 = crossed_interval(values)
        covered += abs(mean - 0.7) <= ci95
        over_tasks = 1.96 * values.mean(axis=0).std(ddof=1) / np.sqrt(tasks)
        ignoring_seeds += abs(mean - 0.7) <= over_tasks
    # The standard error of a share of 95 % is 0.5 %.
    assert covered / number > 0.94
    if seed_std == 1.0:  # the interval over tasks alone is far too narrow
        assert ignoring_seeds / number < 0.6


def test_one_lucky_seed_is_no_verdict():
    """Three seeds that disagree: each alone is clear, together they are not."""
    learner = fitted("protonet_domains")
    tasks = np.linspace(-0.01, 0.01, 40)

    def runs(offsets):
        return [
            dataclasses.replace(
                learner, result={**learner.result, "per_task": (0.5 + o + tasks)}
            )
            for o in offsets
        ]

    first = runs([0.0, 0.0, 0.0])
    lucky = runs([0.1, 0.02, -0.05])
    noisy = [dataclasses.replace(m, result=_jitter(m.result)) for m in lucky]
    assert difference(noisy[:1], first[:1]).verdict == "helps"
    assert difference(noisy[2:], first[2:]).verdict == "hurts"
    assert difference(noisy, first).verdict == "no clear difference"
    steady = runs([0.1, 0.11, 0.09])
    assert difference(steady, first).verdict == "helps"


def _jitter(result):
    noise = np.random.default_rng(0).normal(scale=0.01, size=40)
    return {**result, "per_task": result["per_task"] + noise}


# ------------------------------------------------------------------------- verdict


@pytest.mark.parametrize(
    ("first", "second", "metric", "verdict"),
    [
        ([0.5, 0.5, 0.6], [0.7, 0.8, 0.8], "accuracy", "helps"),
        ([0.7, 0.8, 0.8], [0.5, 0.5, 0.6], "accuracy", "hurts"),
        ([0.5, 0.5, 0.6], [0.5, 0.5, 0.6], "accuracy", "no clear difference"),
        ([0.5, 0.9, 0.6], [0.9, 0.5, 0.61], "accuracy", "no clear difference"),
        ([2.0, 2.1, 2.0], [1.0, 1.0, 1.2], "mse", "helps"),
        ([1.0, 1.0, 1.2], [2.0, 2.1, 2.0], "mse", "hurts"),
    ],
)
def test_verdict(first, second, metric, verdict):
    learner = fitted("regression" if metric == "mse" else "protonet_domains")
    one, two = (
        (dataclasses.replace(learner, result={**learner.result, "per_task": values}),)
        for values in (first, second)
    )
    found = difference(two, one)
    assert found.verdict == verdict
    line = Comparison({"vanilla": one, "mlti": two}, {"mlti": found}).verdict
    separator = ":" if verdict.startswith("no") else ""
    assert line.startswith(f"mlti{separator} {verdict} ({metric}")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.5, 0.25), "0.5000 +- 0.2500"),
        ((4622.35, 279.486), "4622.3500 +- 279.4860"),
        ((3.25e-9, 1e-10), "3.25e-09 +- 1e-10"),
        ((2.5e9, 3e7), "2.5e+09 +- 3e+07"),
        ((0.0, 0.0), "0.0000 +- 0.0000"),
    ],
)
def test_errors_in_any_unit_are_readable(values, text):
    assert format_interval("mse", *values) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategies": ("mlti",)}, "two or more different names"),
        ({"strategies": "mlti"}, "two or more different names"),
        ({"strategies": ("vanilla", "mlt")}, "unknown strategy 'mlt'"),
        ({"seeds": 0}, "seeds is 0; expected an integer from 1"),
        ({"seeds": 1.5}, "seeds is 1.5"),
        ({"seeds": 2, "seed": 2**32 - 1}, "seed is 4294967295"),
        ({"seeds": 2, "overrides": {"seed": 1}}, "use the argument seed"),
    ],
)
def test_wrong_arguments_are_refused_before_training(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        mlti_jax.compare(domain_splits(), workdir=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []
