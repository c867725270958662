"""Reports of runs: their content, when they are written, and what can go wrong."""

import contextlib
import dataclasses
import errno
import json
import sys

import jax
import numpy as np
import pytest

import mlti_jax
from mlti_jax.api._fit import choose_config
from mlti_jax.data import DomainPool, Splits, sample_task
from mlti_jax.errors import Interrupted
from mlti_jax.report import _repeat, _sections, _write
from mlti_jax.strategies._objective import task_context
from mlti_jax.training import build
from mlti_jax.training._evaluation import TaskOutputs
from mlti_jax.training._experiment import TEST
from tests.support.api_cases import (
    SMALL,
    class_splits,
    fit_small,
    regression_splits,
)
from tests.support.browser import browser
from tests.support.html_page import HtmlPage

EVIL = "<script>document.title='broken'</script>"


def image_splits():
    """Label-sharing images, with names that must be escaped."""

    def pool(prefix, number):
        rng = np.random.default_rng(number)
        x = rng.integers(0, 256, (number * 2 * 8, 8, 8, 3), np.uint8)
        domain = np.repeat([f"{prefix}{i} {EVIL}" for i in range(number)], 16)
        label = np.tile(np.repeat(["a", EVIL], 8), number)
        return DomainPool.from_arrays(x, domain, label, classes=("a", EVIL))

    train, test = pool("train", 3), pool("test", 2)
    return Splits("toy_images", "label_sharing", train, None, test, "toy images")


IMAGE_FIELDS = {"backbone.conv4.filters": 2, "backbone.conv4.blocks": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Fit once per setting; return learners and their work directories."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "classes": fit_small(
            class_splits(spread=2.5), ways=3, workdir=root / "classes"
        ),
        "images": fit_small(image_splits(), workdir=root / "images", **IMAGE_FIELDS),
        "regression": fit_small(
            regression_splits(targets=2), shots=5, workdir=root / "regression"
        ),
    }, root


def read(root, name):
    return HtmlPage((root / name / "report.html").read_text())


def test_settings_that_differ_are_listed(runs):
    _, root = runs
    rows = read(root, "classes").table("setting", "value", "default")
    found = {name: (value, default) for name, value, default in rows}
    assert found == {
        "backbone.mlp.hidden": ("(8, 8)", "(500, 500)"),
        "backbone.name": ("mlp", "(none)"),
        "dataset.name": ("toy_classes", "(none)"),
        "eval.every": ("10", "1000"),
        "eval.num_tasks": ("20", "600"),
        "eval.queries": ("9", "15"),
        "eval.validation_tasks": ("10", "200"),
        "train.ema": ("0.5", "0.0"),
        "interpolation.layers": ("(0, 1)", "(0,)"),
        "learner.name": ("protonet", "(none)"),
        "strategy.name": ("mlti", "(none)"),
        "task.queries": ("9", "15"),
        "task.shots": ("3", "1"),
        "task.ways": ("3", "5"),
        "train.log_every": ("10", "100"),
        "train.meta_batch_size": ("2", "4"),
        "train.steps": ("20", "10000"),
    }


def test_recall_by_class_and_calibration_are_those_of_a_loop(runs):
    learners, root = runs
    fit = learners["classes"]
    pool, key = fit.splits.test, build(fit.config, splits=fit.splits).eval_key(TEST)
    recall, logits, correct = {}, [], []

    @jax.jit
    def one_task(index):
        key_task, key_noise = jax.random.split(jax.random.fold_in(key, index))
        task = sample_task(pool, key_task, ways=3, shots=3, queries=9)
        context = task_context(fit.strategy, fit.variables, key_noise, train=False)
        return task, fit.learner.loss(fit.variables, task, context, 0)[1].outputs

    for index in range(20):
        task, outputs = jax.device_get(one_task(index))
        true, predicted = task.query.y.argmax(1), outputs.argmax(1)
        logits.append(outputs)
        correct.append(true == predicted)
        for label, group in enumerate(task.groups):
            value = (predicted[true == label] == label).mean()
            recall.setdefault(pool.classes[group], []).append(100 * value)
    found = read(root, "classes")
    rows = found.table("class", "tasks", "mean", "± 95 %")
    assert {row[0] for row in rows} == set(recall)
    for name, number, mean, half in rows:
        values = np.array(recall[name])
        assert int(number) == len(values)
        assert float(mean) == pytest.approx(values.mean(), rel=1e-3)
        expected = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
        assert float(half) == pytest.approx(expected, rel=1e-3)
    accuracy = 100 * np.mean(np.concatenate(correct))
    (label,) = (text for text in found.labels() if "Confusion" in text)
    assert label == f"Confusion matrix of 4 classes; {accuracy:.1f} % are correct."

    z = np.concatenate(logits) / fit.calibration.temperature
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    sizes = np.histogram(p.max(1), np.linspace(0, 1, 16))[0]
    table = next(t for t in found.tables[::-1] if t[0][0] == "probability")
    assert [int(row[1]) for row in table[1:]] == [n for n in sizes if n]
    assert f"temperature {fit.calibration.temperature:.3g}" in found.text


def test_values_by_domain_are_those_of_the_drawn_tasks(runs):
    learners, root = runs
    fit = learners["images"]
    experiment = build(fit.config, splits=fit.splits)
    pool, key = fit.splits.test, experiment.eval_key(TEST)
    by_name = {}
    for index, value in enumerate(fit.result["per_task"]):
        key_task, _ = jax.random.split(jax.random.fold_in(key, index))
        episode = experiment.evaluator.episode._asdict()
        name = pool.domains[int(sample_task(pool, key_task, **episode).domain)]
        by_name.setdefault(name, []).append(100 * value)
    rows = read(root, "images").table("task of origin", "tasks", "mean", "± 95 %")
    assert {row[0]: int(row[1]) for row in rows} == {
        name: len(values) for name, values in by_name.items()
    }
    for name, _, mean, _ in rows:
        assert float(mean) == pytest.approx(np.mean(by_name[name]), rel=1e-3)


def test_pages_of_all_settings(runs):
    learners, root = runs
    classes, images, regression = (
        read(root, name) for name in ("classes", "images", "regression")
    )
    assert "The same tasks after mlti." in images.text
    assert images.names() & {"image"}
    assert "without validation tasks, no temperature can be fitted" in images.text
    assert "no checkpoint is selected" in images.text
    assert "script" not in images.names()
    assert EVIL in images.text
    assert "first two principal components" in classes.text
    assert "no checkpoint is selected" not in classes.text
    titles = [title for _, title in regression.headings]
    assert "Calibration" not in titles
    assert sum("Predicted against true" in label for label in regression.labels()) == 2
    for name, page in (("classes", classes), ("regression", regression)):
        fit = learners[name]
        assert fit.splits.summary in page.text
        software = dict(page.table("software", "version"))
        assert software["jax"] == jax.__version__
        assert software["mlti_jax"] == mlti_jax.__version__
        size = (root / name / "report.html").stat().st_size
        assert size < 2e6


def test_the_call_repeats_the_config(runs):
    learners, root = runs
    for name, fit in learners.items():
        code = next(
            part
            for part in (root / name / "report.html").read_text().split("<pre")
            if "overrides = {" in part
        )
        shown = HtmlPage(f"<pre{code}").text
        literal = shown[shown.index("{") : shown.index("}") + 1]
        # Options of networks that the run does not use are not in the call.
        overrides = {"backbone.mlp.hidden": (8, 8), **eval(literal)}
        config = choose_config(fit.splits, {"strategy.name": "vanilla"}, overrides)
        again = build(config, splits=fit.splits).config
        assert again.to_json_best_effort() == fit.config.to_json_best_effort()


def test_the_call_names_parts_of_the_user(runs):
    config = runs[0]["classes"].config.copy_and_resolve_references()
    config.backbone.name = config.train.optimizer.name = "custom"
    code = _repeat.call(config)
    assert "network=network, optimizer=optimizer, overrides" in code
    assert "'custom'" not in code
    config.train.ema = 0.0
    code = _repeat.call(config, "compare", ", ('a', 'b'), seed=3, seeds=2", ("head/*",))
    assert "seed=3, seeds=2, adapted=('head/*',), network=network" in code
    assert "'train.ema': 0.0" in code  # fit has another default
    assert "'seed'" not in code


def test_targets_are_shown_in_the_units_of_the_user(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype(np.float32)
    tasks = {f"sensor {i}": (x, 1000 + 50 * x @ rng.normal(size=3)) for i in range(5)}
    splits = mlti_jax.data.from_arrays(tasks, test=["sensor 1"])
    shown = []
    monkeypatch.setattr(
        "mlti_jax.report._charts.predictions_plot",
        lambda true, predicted, label: shown.append((true, predicted)),
    )
    labels = np.asarray(splits.test.y)
    outputs = [TaskOutputs(labels - 0.5, labels, None, None)]
    _sections.predictions_section(outputs, splits)
    true, predicted = shown[0]
    np.testing.assert_allclose(true, tasks["sensor 1"][1], rtol=1e-5)
    trained = np.concatenate([tasks[f"sensor {i}"][1] for i in (0, 2, 3, 4)])
    np.testing.assert_allclose(true - predicted, 0.5 * trained.std(), rtol=1e-4)


def test_the_command_is_that_of_the_process(monkeypatch):
    main = dataclasses.make_dataclass("Main", ["__spec__"])
    spec = dataclasses.make_dataclass("Spec", ["name"])
    monkeypatch.setitem(sys.modules, "__main__", main(spec("experiments.run")))
    monkeypatch.setattr(sys, "argv", ["run.py", "--workdir=a b", "--config.seed=1"])
    expected = "python -m experiments.run \\\n  '--workdir=a b' \\\n  --config.seed=1"
    assert _repeat.command() == expected
    monkeypatch.setitem(sys.modules, "__main__", main(spec("pytest.__main__")))
    assert _repeat.command() is None


def test_reports_in_a_browser(runs):
    _, root = runs
    with browser() as chromium:
        for name in ("classes", "images", "regression"):
            path = root / name / "report.html"
            for width in (390, 1100):
                chromium.open(path, width, dark=width > 400)
                assert chromium.complaints() == []
                requests = [r for r in chromium.requests() if not r.startswith("data:")]
                assert requests == [path.as_uri()]
                assert "broken" not in chromium.evaluate("document.title")
                visible = chromium.evaluate("document.documentElement.scrollWidth")
                assert visible <= width
                sizes = chromium.evaluate(
                    "[...document.querySelectorAll('.chart svg')].map(e => "
                    "Math.min(e.clientWidth, e.clientHeight))"
                )
                assert len(sizes) == len(read(root, name).labels())
                assert min(sizes) > 60
                sizes = chromium.evaluate(
                    "[...document.querySelectorAll('image')].map(e => "
                    "e.getBoundingClientRect().width)"
                )
                assert (name == "images") <= len(sizes)
                assert min(sizes, default=1) > 0


def again(runs, tmp_path, **options):
    """Repeat the finished fit of classes, without its report, in a copy."""
    learners, root = runs
    for name in ("config.json", "results.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((root / "classes" / name).read_bytes())
    (tmp_path / "checkpoints").symlink_to(root / "classes" / "checkpoints")
    fit = learners["classes"]
    return fit_small(fit.splits, ways=3, workdir=tmp_path, **options)


def test_a_missing_or_old_report_is_written_and_no_other(runs, tmp_path):
    again(runs, tmp_path)
    path = tmp_path / "report.html"
    text = path.read_text()
    path.write_text(text.replace("<h1>", "<h1>kept"))
    again_in_place = fit_small(class_splits(spread=2.5), ways=3, workdir=tmp_path)
    assert "<h1>kept" in path.read_text()
    path.write_text("of another result")
    experiment = build(again_in_place.config, splits=again_in_place.splits)
    # As `experiments.run` calls it: restores the variables, without a temperature.
    mlti_jax.report.write_run(experiment, again_in_place.result, tmp_path)
    page = HtmlPage(path.read_text())
    assert "Probabilities are as the learner gives them" in page.text
    assert "calibrated:" not in page.text
    assert page.table("class", "tasks", "mean", "± 95 %") == HtmlPage(text).table(
        "class", "tasks", "mean", "± 95 %"
    )


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_a_run_finishes_and_says_so(
    runs, tmp_path, monkeypatch, capsys, package
):
    monkeypatch.setitem(sys.modules, package, None)
    again(runs, tmp_path, verbose=True)
    said = [line for line in capsys.readouterr().err.splitlines() if "report" in line]
    assert len(said) == 1
    assert "report.html was not written" in said[0]
    assert repr(package) in said[0]
    assert "pip install -e '.[plot]'" in said[0]
    assert not (tmp_path / "report.html").exists()


def test_a_fault_of_the_report_loses_nothing(runs, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("no such chart")

    monkeypatch.setattr(_write, "run_page", fail)
    message = r"report.html was not written, .*ValueError: no such chart \(test_runs"
    with pytest.warns(RuntimeWarning, match=message):
        fit = again(runs, tmp_path)
    assert fit.result == runs[0]["classes"].result
    assert (tmp_path / "results.json").exists()
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk(runs, tmp_path, monkeypatch, capsys, code):
    def fail(path, text):
        raise OSError(code, "disk trouble", str(path))

    monkeypatch.setattr("mlti_jax.report._page.write_text", fail)
    if code == errno.ENOSPC:
        with pytest.raises(OSError, match="disk trouble"):
            again(runs, tmp_path)
    else:
        again(runs, tmp_path, verbose=True)
        assert "report.html was not written: disk trouble" in capsys.readouterr().err
    assert (tmp_path / "results.json").exists()
    assert not (tmp_path / "report.html").exists()


def test_an_interrupted_run_leaves_no_report(tmp_path, monkeypatch):
    stopped = contextlib.nullcontext(lambda: 15)
    monkeypatch.setattr("mlti_jax.training._loop.stop_signal", lambda: stopped)
    with pytest.raises(Interrupted):
        fit_small(class_splits(), ways=3, workdir=tmp_path)
    assert not (tmp_path / "report.html").exists()


@dataclasses.dataclass
class Method:
    config: object
    splits: object
    learner: object
    strategy: object


def test_comparison_shows_paired_differences(runs, tmp_path):
    fit = runs[0]["images"]
    rng = np.random.default_rng(0)
    results = {}
    for name in ("vanilla", "mlti"):
        values = rng.random(20).round(3).tolist()
        mean = float(np.mean(values))
        results[name] = {**fit.result, "per_task": values, "mean": mean, "ci95": 0.05}
    methods = dict.fromkeys(results, fit)
    mlti_jax.report.write_comparison(methods, results, tmp_path)
    page = HtmlPage((tmp_path / "report.html").read_text())
    gaps = np.subtract(results["mlti"]["per_task"], results["vanilla"]["per_task"])
    half = 1.96 * gaps.std(ddof=1) / np.sqrt(20)
    header = ("method", "accuracy", "difference from vanilla")
    text = f"{100 * gaps.mean():+.2f} ± {100 * half:.2f} %"
    assert page.table(*header)[1][2:] == (text,)
    assert "not the randomness of training" in page.text
    assert "No metrics were logged." in page.text
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links == ["vanilla/report.html", "mlti/report.html"]
    by_domain = next(label for label in page.labels() if "Mean by group" in label)
    pool = fit.splits.test
    assert all(name in by_domain for name in pool.domains)


def test_comparison_of_several_seeds(runs, tmp_path):
    fit = runs[0]["images"]
    results = dict.fromkeys(("vanilla", "mlti"), fit.result)
    methods = dict.fromkeys(results, fit)
    verdicts = {"mlti": (0.0123, 0.0045, "helps")}
    mlti_jax.report.write_comparison(
        methods, results, tmp_path, verdicts=verdicts, runs=3
    )
    page = HtmlPage((tmp_path / "report.html").read_text())
    header = ("method", "accuracy", "difference from vanilla", "verdict")
    assert page.table(*header)[1][2:] == ("+1.23 ± 0.45 %", "helps")
    assert "trained 3 times" in page.text


@pytest.mark.slow
def test_compare_writes_all_reports(tmp_path):
    mlti_jax.compare(
        class_splits(),
        ("vanilla", "mlti"),
        ways=3,
        shots=3,
        steps=20,
        workdir=tmp_path,
        verbose=False,
        overrides=SMALL,
    )
    page = HtmlPage((tmp_path / "report.html").read_text())
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert all((tmp_path / link).is_file() for link in links)
    assert len(links) == 2
    result = json.loads((tmp_path / "mlti" / "results.json").read_text())
    assert f"{100 * result['mean']:.2f} ± {100 * result['ci95']:.2f} %" in page.text
    assert "compare(tasks, ('vanilla', 'mlti'), seed=0, seeds=1, overrides" in page.text
