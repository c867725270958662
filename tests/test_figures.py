"""The figures: points, vectors of tasks, mixtures, pictures, and the command."""

import json
import math
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from conftest import make_task
from table_files import leave_run
from test_command_line import forget_flags

from experiments import (
    command_line,
    figure_sheets,
    figure_task_numbers,
    figure_tsne,
    figures,
    finished_run,
)
from experiments.configs import huffpost, rainbow_mnist, tabula_muris
from experiments.figure_task_numbers import SHOWN, Figure, Panel
from experiments.figure_tsne import Features
from experiments.paper import TABLES
from experiments.results_store import Results, record
from experiments.table_jobs import Job, Place, paper_config, planned
from mlti_jax.data import ClassPool, RegressionPool, Splits
from mlti_jax.data.builders import dermnet, mini_imagenet
from mlti_jax.data.builders import rainbow_mnist as rainbow_builder
from mlti_jax.errors import InputError
from mlti_jax.training import build, train_and_evaluate
from mlti_jax.training.experiment import TEST
from mlti_jax.training.workdir import open_workdir
from mlti_jax.types import Batch

ROOT = pathlib.Path(__file__).parent.parent
RAINBOW = next(f for f in figure_task_numbers.FIGURES if f.name == "rainbow_mnist")
MAML, PROTONET = RAINBOW.panels


def assert_drawn(path):
    """Something is drawn, and it is legible at the width of a column."""
    picture = matplotlib.image.imread(path)
    assert picture.shape[1] == pytest.approx(5.2 * 200, abs=2)
    assert picture.shape[0] > 300
    assert picture[..., :3].std() > 0.05


# -------------------------------------------------------------------- task numbers


def leave_result(tmp_path, panel: Panel, strategy: str, number: int, **options):
    """A file of results as a run of this point leaves it."""
    job = Job(
        panel.run(strategy, number), options.pop("seed", 0), options.pop("steps", 10)
    )
    place = Place(tmp_path / "runs")
    checksums = {"train": number, "test": options.pop("test", 7)}
    source = options.pop("source", None)
    leave_run(
        place.of(job),
        job.seed,
        job.steps,
        checksums=checksums,
        source=source,
        **options,
    )
    record(tmp_path / "results", job, place.of(job))


def test_axes_begin_with_the_config_and_end_with_all_that_the_paper_lists():
    last = {
        "rainbow_mnist": len(rainbow_builder.SPLITS["train"]),
        "mini_imagenet": len(mini_imagenet.TRAIN + mini_imagenet.ADDITIONAL),
        "dermnet": len(dermnet.TRAIN + dermnet.ADDITIONAL),
    }
    shots = {2: 5, 4: 1, 5: 1}
    for figure in figure_task_numbers.FIGURES:
        for panel in figure.panels:
            config = paper_config(panel.run("vanilla", panel.numbers[0]))
            assert config.dataset.train_classes == panel.numbers[0]
            assert config.task.shots == shots[figure.number]
            assert panel.numbers[-1] == last[panel.config]
            assert list(panel.numbers) == sorted(set(panel.numbers))
            for number in panel.numbers:
                config = paper_config(panel.run("mlti", number))
                assert config.dataset.train_classes == number
                assert config.learner.name == panel.learner


def test_points_that_stand_in_tables_too_are_the_same_runs():
    in_tables = {
        cell.run for table in TABLES.values() for cell in table.cells() if cell.is_given
    }
    for figure in figure_task_numbers.FIGURES:
        for panel in figure.panels:
            for strategy in SHOWN:
                assert panel.run(strategy, panel.numbers[0]) in in_tables
            if panel.config != "rainbow_mnist":
                for strategy in ("vanilla", "mlti"):
                    assert panel.run(strategy, panel.numbers[-1]) in in_tables


def test_all_points_are_planned_once():
    cells = [c for figure in figure_task_numbers.FIGURES for c in figure.cells()]
    jobs = planned(cells, seeds=2)
    assert len(jobs) == len({job.name for job in jobs}) == 2 * (40 + 32 + 40)
    few = planned(cells, seeds=1, steps=7, only=["rainbow", "maml", "cross"])
    assert [job.name for job in few] == [
        "rainbow_mnist/maml-cross-steps7-seed0",
        "rainbow_mnist/maml-cross-train_classes24-steps7-seed0",
        "rainbow_mnist/maml-cross-train_classes32-steps7-seed0",
        "rainbow_mnist/maml-cross-train_classes40-steps7-seed0",
    ]


def test_points_and_intervals_by_hand(tmp_path):
    for seed, values in enumerate([(0.1, 0.3, 0.5), (0.3, 0.5, 0.7)]):
        leave_result(tmp_path, MAML, "vanilla", 16, seed=seed, per_task=values)
    for seed, values in enumerate([(0.2, 0.4, 0.9), (0.4, 0.6, 1.0)]):
        leave_result(tmp_path, MAML, "mlti", 16, seed=seed, per_task=values)
    leave_result(tmp_path, MAML, "cross", 24, per_task=(0.5, 0.5, 0.8))
    leave_result(tmp_path, PROTONET, "mlti", 40, per_task=(1.0, 1.0, 1.0))
    results = Results(tmp_path / "results")
    curves = figure_task_numbers.points(MAML, results)
    assert list(curves) == ["vanilla", "cross", "mlti"]
    (vanilla,), (cross,), (mlti,) = curves.values()
    # Means over seeds: 0.2, 0.4, 0.6 and 0.3, 0.5, 0.95.
    assert (vanilla.number, vanilla.difference) == (16, None)
    assert vanilla.summary.mean == pytest.approx(0.4)
    assert vanilla.summary.ci95 == pytest.approx(1.96 * 0.2 / math.sqrt(3))
    assert mlti.summary.mean == pytest.approx(1.75 / 3)
    # Differences 0.1, 0.1, 0.35: mean 0.55 / 3, variance (2 / 3) * 0.25^2 / 2.
    spread = math.sqrt(0.25**2 / 3)
    expected = (0.55 / 3, 1.96 * spread / math.sqrt(3))
    assert mlti.difference == pytest.approx(expected)
    # There is no vanilla with 24 to compare with.
    assert (cross.number, cross.difference) == (24, None)
    assert cross.summary.mean == pytest.approx(0.6)
    text = figure_task_numbers.table(MAML, curves).splitlines()
    assert text[0].split() == ["16", "24", "32", "40"]
    assert text[1].split() == ["Vanilla", "40.00", "±", "22.63", "-", "-", "-"]


def test_points_of_different_tests_are_neither_averaged_nor_compared(tmp_path, capsys):
    leave_result(tmp_path, MAML, "vanilla", 16)
    leave_result(tmp_path, MAML, "mlti", 16, test=8)
    for seed in (0, 1):
        leave_result(tmp_path, MAML, "cross", 16, seed=seed, test=seed)
    curves = figure_task_numbers.points(MAML, Results(tmp_path / "results"))
    assert list(curves) == ["vanilla", "mlti"]
    assert curves["mlti"][0].difference is None
    assert "maml-cross is not drawn: seeds with different" in capsys.readouterr().err


def test_one_panel_has_one_number_of_steps(tmp_path):
    folder = tmp_path / "results"
    assert figure_task_numbers.shown_steps(MAML, Results(folder)) is None
    assert figure_task_numbers.points(MAML, Results(folder)) == {}
    leave_result(tmp_path, MAML, "vanilla", 16, steps=10)
    leave_result(tmp_path, MAML, "vanilla", 24, steps=20)
    results = Results(folder)
    assert figure_task_numbers.shown_steps(MAML, results) == 20
    assert [p.number for p in figure_task_numbers.points(MAML, results)["vanilla"]] == [
        24
    ]
    ten = figure_task_numbers.points(MAML, results, steps=10)
    assert [p.number for p in ten["vanilla"]] == [16]
    assert figure_task_numbers.points(MAML, results, steps=11) == {}
    # The paper's steps come first, even if others are more.
    leave_result(tmp_path, MAML, "vanilla", 32, steps=30_000, source="builtin")
    leave_result(tmp_path, MAML, "mlti", 32, steps=40_000)
    results = Results(folder)
    assert figure_task_numbers.shown_steps(MAML, results) == 30_000
    notes = figure_task_numbers.notes(MAML, results)
    assert notes == "30,000 steps, 1 seed, built-in images"
    assert figure_task_numbers.notes(MAML, results, 20) == "20 of 30,000 steps, 1 seed"


def test_picture_of_task_numbers(tmp_path):
    path = tmp_path / "picture.png"
    assert not figure_task_numbers.draw(RAINBOW, Results(tmp_path / "results"), path)
    assert not path.exists()
    for shift, strategy in enumerate(SHOWN):
        for number in (16, 40):
            values = np.array([0.2, 0.4, 0.6]) + shift / 50 + number / 200
            leave_result(tmp_path, PROTONET, strategy, number, per_task=values.tolist())
    results = Results(tmp_path / "results")
    assert figure_task_numbers.draw(RAINBOW, results, path) == [PROTONET]
    assert_drawn(path)
    listing = figure_task_numbers.listing(results)
    assert "Fig. 4; 32 points, 8 with results" in listing
    assert "Fig. 2; 40 points, none with results" in listing
    assert "DermNet, 1-shot, ProtoNet: 30, 60, 90, 120, 150 training" in listing


# --------------------------------------------------------------------------- t-SNE


def numpy_mean_prototype(task, features):
    """Class by class, sample by sample."""
    samples = [*task.support.x, *task.query.x]
    labels = [*np.asarray(task.support.y), *np.asarray(task.query.y)]
    means = []
    for c in range(len(labels[0])):
        total, weight = 0.0, 0.0
        for sample, label in zip(samples, labels, strict=True):
            total = total + label[c] * np.ravel(features(sample))
            weight += label[c]
        means.append(total / weight)
    return np.mean(means, axis=0)


def test_a_task_is_the_mean_of_its_prototypes():
    task = make_task(0, ways=3, shots=1, queries=4, shape=(2, 5))
    expected = numpy_mean_prototype(task, lambda x: x)
    assert expected.shape == (10,)
    np.testing.assert_allclose(figure_tsne.mean_prototype(task), expected, rtol=1e-5)
    # Soft labels weigh, and classes of different size count alike.
    soft = jax.random.dirichlet(jax.random.key(1), jnp.ones(3), (12,))
    task = task.replace(query=task.query.replace(y=soft))
    expected = numpy_mean_prototype(task, lambda x: x)
    np.testing.assert_allclose(figure_tsne.mean_prototype(task), expected, rtol=1e-5)
    pooled = np.concatenate([task.support.x, task.query.x]).reshape(-1, 10).mean(axis=0)
    assert np.abs(expected - pooled).max() > 0.05
    vector = figure_tsne.mean_prototype(task, regression=True)
    np.testing.assert_allclose(vector, pooled, rtol=1e-5)


def test_padding_does_not_count():
    task = make_task(1, ways=2, shots=1, queries=2)
    query = task.query
    padded = Batch(
        x=jnp.concatenate([query.x, 9 * jnp.ones((3, 5))]),
        y=jnp.concatenate([query.y, jnp.eye(2)[jnp.array([0, 0, 1])]]),
        weight=jnp.array([1.0] * 4 + [0.0] * 3),
    )
    np.testing.assert_allclose(
        figure_tsne.mean_prototype(task.replace(query=padded)),
        figure_tsne.mean_prototype(task),
        rtol=1e-5,
    )


def small_config(learner="protonet", strategy="mlti", **changes):
    config = rainbow_mnist.get_config(f"learner={learner},strategy={strategy}")
    config.dataset.source = "builtin"
    config.backbone.conv4.filters = 4
    config.update_from_flattened_dict(changes)
    return config


def test_vectors_of_raw_tasks():
    experiment = build(small_config())
    raw = Features(None, "raw")
    originals, vectors = figure_tsne.task_vectors(experiment, raw, interpolated=9)
    assert originals.shape == (3, 28 * 28 * 3)
    assert vectors.shape == (9, 28 * 28 * 3)
    key = jax.random.split(jax.random.key(0))[0]
    tasks = figure_tsne.original_tasks(experiment.splits.train, key, experiment.episode)
    assert len(set(np.asarray(tasks.domain).tolist())) == 3
    for number, vector in enumerate(originals):
        task = jax.tree.map(lambda leaf, n=number: leaf[n], tasks)
        expected = numpy_mean_prototype(task, lambda x: x)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    # A task that is mixed with itself keeps its mean; others are far from all three.
    nearest = np.abs(vectors[:, None] - originals[None]).max(axis=-1).min(axis=1)
    assert ((nearest < 1e-5) | (nearest > 1e-2)).all()
    assert (nearest < 1e-5).any()
    assert (nearest > 1e-2).any()


def test_mixup_leads_from_one_task_to_the_other():
    config = small_config(strategy="cross")
    config.interpolation.method = "mixup"
    experiment = build(config)
    raw = Features(None, "raw")
    originals, vectors = figure_tsne.task_vectors(experiment, raw, interpolated=12)
    pairs = [(0, 1), (0, 2), (1, 2)]
    seen = set()
    for vector in vectors:
        # The mean is linear: each lies on the way between two originals.
        off_line = []
        for i, j in pairs:
            way = originals[j] - originals[i]
            share = ((vector - originals[i]) @ way / (way @ way)).clip(0, 1)
            off_line.append(np.abs(originals[i] + share * way - vector).max())
        assert min(off_line) < 1e-4
        seen.add(int(np.argmin(off_line)))
    assert len(seen) > 1


def test_features_of_a_sample_do_not_depend_on_its_task():
    experiment = build(small_config())
    variables = jax.jit(experiment.init_state)().variables
    # As after training: averages that are neither 0 nor 1.
    state = jax.tree.map(lambda leaf: leaf + 0.3, variables.state)
    variables = variables.replace(state=state)
    learner = experiment.learner
    assert figure_tsne.last_hidden_layer(learner) == len(learner.stack) == 4

    @jax.jit
    def alone(sample):
        return learner.stack.apply(
            variables.params["model"], state, sample[None], mode=figure_tsne.RUNNING
        )[0]

    key = jax.random.split(jax.random.key(0))[0]
    tasks = figure_tsne.original_tasks(experiment.splits.train, key, experiment.episode)
    originals, vectors = figure_tsne.task_vectors(
        experiment, Features(variables, "network"), interpolated=3
    )
    task = jax.tree.map(lambda leaf: leaf[1], tasks)
    expected = numpy_mean_prototype(task, alone)
    np.testing.assert_allclose(originals[1], expected, rtol=1e-4, atol=1e-5)
    assert vectors.shape == (3, expected.size)
    assert np.isfinite(vectors).all()


def test_the_head_of_a_gradient_based_learner_is_left_out():
    experiment = build(small_config("maml"))
    assert figure_tsne.last_hidden_layer(experiment.learner) == 4
    assert len(experiment.learner.stack) == 5
    variables = jax.jit(experiment.init_state)().variables
    originals, vectors = figure_tsne.task_vectors(
        experiment, Features(variables, ""), interpolated=2
    )
    assert originals.shape == (3, 4)
    assert vectors.shape == (2, 4)  # of three that a meta-batch gives


def test_what_has_no_interpolated_tasks_is_refused():
    raw = Features(None, "raw")
    with pytest.raises(InputError, match="'vanilla' interpolates no tasks"):
        figure_tsne.task_vectors(build(small_config(strategy="vanilla")), raw)
    config = small_config()
    config.interpolation = {"method": "mixup", "layers": (1,)}
    with pytest.raises(InputError, match=r"layers \(1,\).*--features=network"):
        figure_tsne.task_vectors(build(config), raw)
    few = small_config(**{"dataset.train_classes": 2})
    with pytest.raises(InputError, match="tasks of 3 sources, and here are 2"):
        figure_tsne.task_vectors(build(few), raw)


def test_nearness_by_hand():
    originals = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.5, 0.0], [0.0, 3.0]])
    share = figure_tsne.nearness(points, originals)
    np.testing.assert_allclose(share.sum(axis=1), 1)
    np.testing.assert_allclose(share[0], [1, 0, 0])  # it is the first original
    # Squared distances 1, 4 and 17.
    expected = np.array([1, 1 / 16, 1 / 289])
    np.testing.assert_allclose(share[1], expected / expected.sum())
    assert share[2, 0] == pytest.approx(share[2, 1])
    assert share.argmax(axis=1).tolist()[3] == 2


def test_distances_are_told():
    originals = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]])
    vectors = np.repeat([[0.5, 0.0]], 5, axis=0)
    assert "median 0.25, 80 % from 0.25 to 0.25" in figure_tsne.distances(
        originals, vectors
    )


def test_tsne_keeps_groups_together_and_is_the_same_again(tmp_path):
    rng = np.random.default_rng(0)
    originals = 20 * np.eye(3, 8)
    group = np.repeat(np.arange(3), 20)
    vectors = originals[group] + rng.normal(size=(60, 8))
    plane = figure_tsne.plane(np.concatenate([originals, vectors]), seed=1)
    np.testing.assert_array_equal(
        plane, figure_tsne.plane(np.concatenate([originals, vectors]), seed=1)
    )
    distance = np.linalg.norm(plane[3:, None] - plane[None, :3], axis=-1)
    assert (distance.argmin(axis=1) == group).all()
    path = tmp_path / "tsne.png"
    figure_tsne.draw(originals, vectors, path, "title\nfeatures")
    assert_drawn(path)
    picture = matplotlib.image.imread(path)[..., :3]
    for colour in figure_tsne.PALETTE:  # that of each star
        assert (np.abs(picture - colour).max(axis=-1) < 0.01).sum() > 100


# ------------------------------------------------------------------ finished runs


def vectors(validation=False):
    """A dataset of vectors of zeros and ones."""
    rng = np.random.default_rng(0)
    x = (rng.random((3 * 8, 40)) < 0.3).astype(np.float32)
    pool = ClassPool.from_arrays(x, np.repeat(np.arange(3), 8))
    chosen_on = pool if validation else None
    return Splits("bits", "non_label_sharing", pool, chosen_on, pool, "bits")


def vector_config():
    config = tabula_muris.get_config("learner=protonet,strategy=mlti")
    config.backbone.mlp.hidden = (8, 8)
    config.task.update({"ways": 2, "queries": 2})
    config.train.update({"steps": 6, "checkpoint_every": 2})
    config.eval.update({"every": 2, "queries": 2})
    config.eval.update({"num_tasks": 8, "validation_tasks": 8})
    return config


def use_data(monkeypatch, splits):
    monkeypatch.setattr(
        "mlti_jax.training.experiment.data.load", lambda *_, **__: splits
    )


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


def test_work_directories_that_hold_no_finished_run(tmp_path, monkeypatch):
    use_data(monkeypatch, vectors())
    experiment = build(vector_config())
    saved = json.loads(experiment.config.to_json_best_effort())
    open_workdir(tmp_path, {**saved, "data": experiment.data_facts()})
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"checkpoint": "last", "step": 3}))
    with pytest.raises(InputError, match="checkpoint of step 3 is not in"):
        finished_run.load(tmp_path)
    config = tmp_path / "config.json"
    saved = json.loads(config.read_text())
    saved["data"]["checksums"]["train"] += 1
    config.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="trained on other data"):
        finished_run.load(tmp_path)
    del saved["train"]["compute_dtype"]
    config.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="its config has no train.compute_dtype; run"):
        finished_run.load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="no results.json, so it holds no finished"):
        finished_run.load(tmp_path)


# -------------------------------------------------------------------------- sheets


def test_pairs_are_mixed_by_the_method():
    experiment = build(small_config())
    lambdas = (0.2, 0.5, 0.9)
    x, y, share = figure_sheets.mixed_pairs(experiment, lambdas)
    assert x.shape == (3, 3, 28, 28, 3)
    assert y.shape == (2, 3, 10)
    first, second, mixed = x
    for number in range(3):
        of_first = (mixed[number] == first[number]).all(axis=-1)
        of_second = (mixed[number] == second[number]).all(axis=-1)
        assert (of_first | of_second).all()
        assert of_first.mean() >= share[number] - 1e-6
        # The box may be cut off by the border, never grow.
        assert share[number] >= lambdas[number] - 1e-6
    config = small_config()
    config.interpolation.method = "mixup"
    x, _, share = figure_sheets.mixed_pairs(build(config), lambdas)
    expected = np.array(lambdas)[:, None, None, None]
    np.testing.assert_allclose(x[2], expected * x[0] + (1 - expected) * x[1], atol=1e-6)
    np.testing.assert_allclose(share, lambdas)


def test_features_of_a_strip():
    x_i = np.array([0, 1, 0, 1, 0, 1.0])
    x_j = np.array([0, 0, 1, 1, 0, 0.0])
    assert figure_sheets.features_shown(x_i, x_j).tolist() == [1, 5, 3, 2]
    many = np.arange(500.0)
    shown = figure_sheets.features_shown(many, np.zeros(500))
    assert shown.tolist() == list(range(499, 499 - figure_sheets.MOST_FEATURES, -1))


def grey_regression():
    """Grey images of four objects, as Pose has them; targets are their numbers."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (4 * 31, 128, 128, 1), dtype=np.uint8)
    objects = np.repeat(np.arange(4), 31)
    pool = RegressionPool.from_arrays(x, objects[:, None].astype(float), objects)
    return Splits("grey", "regression", pool, None, pool, "grey images")


def test_sheet_of_grey_images(tmp_path, monkeypatch):
    use_data(monkeypatch, grey_regression())
    experiment = figure_sheets.dataset_experiment("pose")
    assert figure_sheets.reason_to_skip(experiment) is None
    _, (first, second), _ = figure_sheets.mixed_pairs(experiment, (0.5,) * 8)
    assert (first != second).all()  # They are of two sources.
    assert len(np.unique(first)) > 1
    figure_sheets.sheet(experiment, tmp_path / "sheet.png")
    assert_drawn(tmp_path / "sheet.png")


def test_sheet_of_vectors(tmp_path, monkeypatch):
    use_data(monkeypatch, vectors())
    figure_sheets.sheet(build(vector_config()), tmp_path / "sheet.png")
    assert_drawn(tmp_path / "sheet.png")


# ------------------------------------------------------------------------- command


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs the command in this process: its exit code and what it printed."""
    monkeypatch.chdir(ROOT)

    def call(*args):
        folders = [f"--{name}={tmp_path / name}" for name in ("data_dir", "results")]
        monkeypatch.setattr(sys, "argv", ["figures", *folders, *args])
        forget_flags(figures.flags.FLAGS)
        code = command_line.run(figures.main, figures.__doc__)
        return code, capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--figure is missing; choose one of: task_numbers, tsne, sheets"),
        (["--figure=tsen"], "unknown figure 'tsen'; choose one of: sheets, task"),
        (["--figure=tsne"], "--output is missing"),
        (["--figure=tsne", "extra"], "unexpected argument 'extra'"),
        (["--figure=tsne", "--figuer=2"], "unknown flag --figuer"),
        (["--figure=tsne", "--features=pixels"], "features"),
        (["--figure=tsne", "--run"], "are for --figure=task_numbers; tsne needs"),
        (["--figure=task_numbers", "--run", "--dry_run"], "exclude each other"),
        (["--figure=task_numbers", "--run"], "--run needs --workdir"),
        (["--figure=task_numbers", "--dry_run", "--only=nsi"], "no run.*--only=nsi"),
        (["--figure=task_numbers", "--output=OUT"], "no results for task_numbers in"),
        (
            ["--figure=task_numbers", "--output=OUT", "--steps=5"],
            "no results of 5 steps",
        ),
        (["--figure=sheets", "--output=OUT", "--datasets=mnst"], "unknown dataset"),
        (
            ["--figure=sheets", "--output=OUT", "--datasets=pose"],
            "pose is not prepared",
        ),
        (["--figure=sheets", "--output=setup.py"], "setup.py is a file"),
        (["--figure=tsne", "--output=OUT", "--workdir=OUT"], "no config.json, so it"),
        (
            ["--figure=tsne", "--output=OUT", "--config=experiments/configs/no.py"],
            "there is no config file",
        ),
        (
            [
                "--figure=tsne",
                "--output=OUT",
                "--workdir=OUT",
                "--config=experiments/configs/isic.py",
            ],
            "leave out --config",
        ),
        (
            [
                "--figure=tsne",
                "--output=OUT",
                "--config=experiments/configs/isic.py:learner=protonet",
            ],
            "isic is not prepared",
        ),
    ],
)
def test_wrong_input_is_told_in_one_line(cli, tmp_path, args, message):
    code, printed = cli(*[arg.replace("OUT", str(tmp_path / "out")) for arg in args])
    assert code == 2
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(message, last), last


def test_help_and_list(cli, tmp_path):
    code, printed = cli("--help")
    assert code == 0
    for flag in ("--figure", "--datasets", "--features", "--data_dir"):
        assert flag in printed.out
    leave_result(tmp_path, MAML, "mlti", 24)
    code, printed = cli("--list")
    assert code == 0
    assert "rainbow_mnist   Fig. 4; 32 points, 1 with results" in printed.out


def test_task_numbers_by_command(cli, tmp_path):
    leave_result(tmp_path, MAML, "vanilla", 16)
    leave_result(tmp_path, MAML, "mlti", 16, per_task=(0.6, 0.8, 1.0, 0.9))
    code, printed = cli("--figure=task_numbers", f"--output={tmp_path / 'new'}")
    assert code == 0
    assert "classes_5_shot (Fig. 2) has no results" in printed.err
    assert "MLTI             82.50 ±" in printed.out
    assert [path.name for path in (tmp_path / "new").iterdir()] == [
        "task_numbers_rainbow_mnist.png"
    ]
    assert_drawn(tmp_path / "new" / "task_numbers_rainbow_mnist.png")
    code, printed = cli(
        "--figure=task_numbers", "--dry_run", "--only=rainbow,maml", "--steps=10"
    )
    assert code == 0
    assert "16 runs: 2 done, 14 missing" in printed.out


def test_tsne_by_command(cli, tmp_path):
    code, printed = cli(
        "--figure=tsne",
        f"--output={tmp_path}",
        "--features=inputs",
        "--config=experiments/configs/rainbow_mnist.py:learner=protonet",
        "--config.dataset.source=builtin",
    )
    assert code == 0, printed.err
    assert "that between originals being 1: median 0." in printed.out
    assert_drawn(tmp_path / "tsne_rainbow_mnist.png")


def test_sheets_by_command(cli, tmp_path):
    code, printed = cli("--figure=sheets", f"--output={tmp_path / 'out'}")
    assert code == 0, printed.err
    assert "isic: no sheet, isic is not prepared in" in printed.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        "sheet_rainbow_mnist.png"
    ]
    assert_drawn(tmp_path / "out" / "sheet_rainbow_mnist.png")


def test_text_has_no_sheet():
    class Text:
        config = huffpost.get_config()

    assert "hidden layers only (1)" in figure_sheets.reason_to_skip(Text)


@pytest.mark.slow
def test_runs_of_points_by_command(cli, tmp_path, monkeypatch):
    """A real run of a few steps, from planning to picture."""
    figure = Figure("small", 4, "combinations", (PROTONET,))
    monkeypatch.setattr(figure_task_numbers, "FIGURES", (figure,))
    args = ["--figure=task_numbers", "--steps=2", "--only=train_classes24,mlti"]
    code, printed = cli(*args, "--run", f"--workdir={tmp_path / 'runs'}")
    assert code == 0, printed.err
    code, printed = cli(*args[:2], f"--output={tmp_path}")
    assert code == 0, printed.err
    assert "2 of 30,000 steps, 1 seed, built-in images" in printed.out
    name = "rainbow_mnist/protonet-mlti-train_classes24-steps2-seed0"
    code, printed = cli(
        "--figure=tsne", f"--workdir={tmp_path / 'runs' / name}", f"--output={tmp_path}"
    )
    assert code == 0, printed.err
    assert_drawn(tmp_path / "tsne_rainbow_mnist.png")
