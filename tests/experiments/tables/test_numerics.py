"""Probes: which changes of the code make which results stale."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import report
from experiments.paper import TABLES
from experiments.sweeps.executors import Local
from experiments.tables import numerics
from experiments.tables.jobs import Job, Paths, load_config, make_jobs
from experiments.tables.launch import dry_run
from experiments.tables.numerics import State
from experiments.tables.results import Results, record
from experiments.tables.runner import Runner
from experiments.tables.status import job_status
from experiments.tables.variations import ALL_TABLES
from mlti_jax import interpolation
from mlti_jax._internal.revision import revision
from mlti_jax.learners import _metric
from mlti_jax.strategies import _mixing
from tests.support.table_files import write_run, write_start

OVERALL = TABLES["overall_ls"].cells()
JOBS = {
    (config, learner, strategy): make_jobs(
        OVERALL, seeds=1, only=(config, learner, strategy)
    )[0]
    for config in ("rainbow_mnist", "metabolism")
    for learner in ("maml", "protonet")
    for strategy in ("vanilla", "mlti")
}
CUTMIX_MAML = ("rainbow_mnist", "maml", "mlti")
CUTMIX_PROTONET = ("rainbow_mnist", "protonet", "mlti")
MIXUP_PROTONET = ("metabolism", "protonet", "mlti")
MIXUP_MAML = ("metabolism", "maml", "mlti")
JOB = JOBS[MIXUP_PROTONET]
ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _forget():
    numerics.forget()
    jax.clear_caches()
    yield
    numerics.forget()
    jax.clear_caches()  # programs of changed functions


def result_of(job: Job, **changes) -> dict:
    """The fields of a recorded result that say which code it is of."""
    run = job.run
    return {
        "config": run.config,
        "arguments": run.argument,
        "overrides": {field: str(value) for field, value in run.overrides},
        numerics.FIELD: numerics.probe(load_config(run)),
        **changes,
    }


def states(results: dict) -> dict:
    numerics.forget()
    jax.clear_caches()
    return {name: numerics.state(result) for name, result in results.items()}


# ---------------------------------------------------------------------- sensitivity


@pytest.mark.slow
def test_changes_make_only_the_results_that_use_them_stale(monkeypatch):
    names = (CUTMIX_MAML, CUTMIX_PROTONET, MIXUP_PROTONET, MIXUP_MAML)
    results = {name: result_of(JOBS[name]) for name in names}
    assert set(states(results).values()) == {State.CURRENT}

    def label_weight_is_lambda(key, lam, x):
        return interpolation.cutmix(key, lam, x)._replace(label_weight=lam)

    with monkeypatch.context() as patch:
        patch.setitem(_mixing.METHODS, "cutmix", label_weight_is_lambda)
        # ProtoNet makes a new class of each pair, so it has no label weights.
        assert states(results) == {
            CUTMIX_MAML: State.STALE,
            CUTMIX_PROTONET: State.CURRENT,
            MIXUP_PROTONET: State.CURRENT,
            MIXUP_MAML: State.CURRENT,
        }

    def a_little_larger(a, b, original=_metric.squared_euclidean):
        return 1.01 * original(a, b)

    with monkeypatch.context() as patch:
        patch.setitem(_metric.DISTANCES, "squared_euclidean", a_little_larger)
        assert states(results) == {
            CUTMIX_MAML: State.CURRENT,
            CUTMIX_PROTONET: State.STALE,
            MIXUP_PROTONET: State.STALE,
            MIXUP_MAML: State.CURRENT,
        }


def test_rounding_changes_no_state(monkeypatch):
    result = result_of(JOBS[MIXUP_PROTONET])

    def other_order(a, b):
        # Without centering, and summed directly.
        return jnp.square(a[:, None] - b[None]).sum(axis=-1)

    monkeypatch.setitem(_metric.DISTANCES, "squared_euclidean", other_order)
    assert states({0: result}) == {0: State.CURRENT}
    numerics.forget()
    present = numerics.probe(load_config(JOBS[MIXUP_PROTONET].run))
    np.testing.assert_allclose(present["loss"], result["numerics"]["loss"], rtol=1e-4)


def test_a_probe_is_repeated_exactly_and_computed_once(monkeypatch):
    config = load_config(JOBS[MIXUP_PROTONET].run)
    first = numerics.probe(config)
    measured = []
    monkeypatch.setattr(numerics, "_measure", measured.append)
    with config.copy_and_resolve_references().unlocked() as other:
        # Fields that a probe replaces, and options of other methods.
        other.seed, other.train.steps, other.dataset.seed = 5, 7, 3
        other.learner.maml.inner_learning_rate = 0.5
        assert numerics.probe(other) is first
        assert not measured
        other.train.learning_rate = 0.5
        numerics.probe(other)
    assert len(measured) == 1
    monkeypatch.undo()
    numerics.forget()
    assert numerics.probe(config) == first


@pytest.mark.parametrize("name", list(ALL_TABLES))
def test_every_run_has_a_small_config(name):
    for cell in ALL_TABLES[name].cells():
        for run in (cell.run, cell.alternative_run):
            if cell.is_applicable and run is not None:
                small = numerics.small_config(load_config(run))
                kind, _, groups = small.dataset.name.partition("_")
                assert kind in ("image", "vector", "text")
                assert groups in ("domains", "classes", "objects")


# ----------------------------------------------------------------------- comparing


def test_tolerances_by_hand():
    stored = {"loss": [1.0, 2.0], "accuracy": [0.5]}
    assert numerics.difference(stored, {"loss": [1.0002, 2.0], "accuracy": [0.5]}) == ""
    # Two of 24 samples on the other side.
    assert numerics.difference(stored, {"loss": [1.0, 2.0], "accuracy": [7 / 12]}) == ""
    text = numerics.difference(stored, {"loss": [1.0, 2.0006], "accuracy": [0.5]})
    assert text == "loss[1] was 2 and is now 2.0006"
    text = numerics.difference(stored, {"loss": [1.0, 2.0], "accuracy": [0.75]})
    assert text == "accuracy[0] was 0.5 and is now 0.75"
    assert "has 1 numbers" in numerics.difference(
        stored, {"loss": [1.0], "accuracy": [0.5]}
    )
    assert numerics.difference(stored, {"loss": [1.0, 2.0]})
    nan = float("nan")
    assert numerics.difference(stored, {"loss": [nan, 2.0], "accuracy": [0.5]})


def test_results_without_numerics_or_config_are_unknown():
    result = result_of(JOBS[MIXUP_PROTONET])
    del result["numerics"]
    assert numerics.state(result) == State.UNKNOWN
    result["numerics"] = {"loss": [1.0]}
    assert numerics.state(result) == State.STALE
    assert numerics.state(result | {"config": "gone"}) == State.UNKNOWN
    assert numerics.state(result | {"overrides": {"no.field": "1"}}) == State.UNKNOWN


def test_config_of_a_result_has_its_overrides():
    for table in ALL_TABLES.values():
        for cell in table.cells():
            if cell.is_applicable:
                run = cell.run
                expected = load_config(run)
                result = {
                    "config": run.config,
                    "arguments": run.argument,
                    "overrides": {name: str(value) for name, value in run.overrides},
                }
                assert numerics.config_of(result).to_dict() == expected.to_dict()


# ------------------------------------------------------- recorded, shown, run again


@pytest.fixture
def code(monkeypatch):
    """The code: what a probe of every config gives; a test may change it."""
    numbers = {"loss": [0.25]}
    monkeypatch.setattr(numerics, "probe", lambda config: dict(numbers))
    return numbers


@pytest.fixture
def keep(tmp_path, code):
    """Records a result of ProtoNet with MLTI and returns it."""

    def call(**changes):
        write_run(
            tmp_path / "work" / JOB.name, 0, JOB.steps, strategy="mlti", **changes
        )
        return record(tmp_path / "results", JOB, tmp_path / "work" / JOB.name)

    return call


@pytest.fixture
def page(tmp_path):
    return lambda: report.page(tmp_path / "results", tmp_path / "figures")


def test_result_has_the_revision_and_numerics(keep, page):
    result = keep(revision=revision())
    assert result["revision"] == revision()
    assert result["numerics"] == {"loss": [0.25]}
    assert list(result)[-1] == "per_task"  # the long one
    assert numerics.state(result) == State.CURRENT
    assert "Of 1 results, 1 are confirmed" in page()
    assert "| 1 seed |" in page()


def test_a_failed_probe_does_not_lose_the_result(keep, monkeypatch):
    def fail(config):
        raise RuntimeError("no memory")

    monkeypatch.setattr(numerics, "probe", fail)
    result = keep(revision=revision())
    assert "numerics" not in result
    assert result["mean"] == 0.75


@pytest.mark.parametrize("changes", [{}, {"revision": "of another commit"}])
def test_results_of_other_or_unknown_revisions_have_no_numerics(keep, page, changes):
    assert "numerics" not in keep(**changes)
    assert "Of 1 results, 0 are confirmed" in page()
    assert "1 cannot be checked (°)" in page()
    assert "| 1 seed ° |" in page()


def test_stale_results_are_marked(keep, page, code):
    keep(revision=revision())
    code["loss"] = [0.5]
    assert "1 are stale (†)" in page()
    assert "| 1 seed † |" in page()


def test_only_stale_results_run_again(keep, code, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("experiments.tables.status.unprepared_datasets", lambda *_: [])
    keep(revision=revision())
    folder, paths = tmp_path / "results", Paths(tmp_path / "work")

    def is_stale(result):
        return numerics.state(result) == State.STALE

    def status(stale=is_stale):
        return str(job_status(JOB, Results(folder), paths, stale))

    assert status() == "done"
    code["loss"] = [0.5]
    assert status() == "stale"
    assert status(lambda result: False) == "done"
    printed = dry_run([JOB], Results(folder), paths, 1, is_stale)
    assert "10,000 steps  stale  " in printed
    assert printed.splitlines()[-1].startswith("1 run: 1 stale; about 1 h ")
    started = []

    def command(job, paths):
        started.append(job.name)
        workdir = paths.work(job)
        assert not workdir.exists()
        text = (
            "import sys; sys.path.insert(0, sys.argv[1]); "
            "from tests.support.table_files import write_run; "
            f"write_run({str(workdir)!r}, 0, {job.steps}, (0.0, 0.0, 0.5, 0.5), "
            f"strategy='mlti', revision={revision()!r})"
        )
        return [sys.executable, "-c", text, str(ROOT)]

    for _ in range(2):  # the second time there is nothing to do
        executor = Local(tmp_path / "submitit", at_once=1)
        Runner([JOB], paths, folder, executor, command, is_stale).run()
        assert started == [JOB.name]
    assert status() == "done"
    assert Results(folder).get(JOB)["mean"] == 0.25
    aside = paths.work(JOB).with_name(f"{paths.work(JOB).name}.stale0")
    assert (aside / "results.json").exists()
    assert f"its work directory is now {aside}" in capsys.readouterr().err


def test_an_interrupted_rerun_is_resumed(keep, code, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.tables.status.unprepared_datasets", lambda *_: [])
    keep(revision=revision())
    work = Paths(tmp_path / "work").work(JOB)
    work.rename(tmp_path / "elsewhere")
    write_start(work, step=70)
    args = JOB, Results(tmp_path / "results"), Paths(tmp_path / "work")
    assert str(job_status(*args, lambda result: True)) == "interrupted at step 70"
