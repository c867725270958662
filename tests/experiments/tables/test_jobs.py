"""Jobs of tables: selection, status, remaining time, and running them."""

import contextlib
import json
import pathlib
import re
import signal
import sys
import threading
import time

import pytest

from experiments.paper import TABLES
from experiments.sweeps.executors import Local
from experiments.tables import numerics, runner
from experiments.tables import results as table_results
from experiments.tables.formats import markdown
from experiments.tables.jobs import Paths, make_jobs, matches
from experiments.tables.launch import dry_run
from experiments.tables.render import LEGEND, Renderer
from experiments.tables.results import Results, record, result_path
from experiments.tables.runner import Runner, Stopped, job_command
from experiments.tables.status import format_left, job_status, seconds_left
from mlti_jax._internal.locks import locked
from mlti_jax._internal.revision import revision
from mlti_jax.errors import InputError
from tests.support import table_files
from tests.support.table_files import write_run, write_start

FAKE = pathlib.Path(table_files.__file__)
OVERALL = TABLES["overall_ls"].cells()
RAINBOW = [cell for cell in OVERALL if cell.column.config == "rainbow_mnist"]
METABOLISM = [cell for cell in OVERALL if cell.column.config == "metabolism"]


# --------------------------------------------------------------------------- jobs


def test_each_run_is_one_job_per_seed():
    cells = OVERALL + TABLES["ablation_ls"].cells()
    jobs = make_jobs(cells, seeds=2)
    assert len(jobs) == len(set(jobs)) == 2 * (44 + 14)
    assert [job.seed for job in jobs[:58]] == [0] * 58  # all runs with one seed first
    assert {job.steps for job in jobs} == {10_000, 30_000}
    names = [job.name for job in jobs]
    assert "rainbow_mnist/maml-mlti-seed1" in names
    assert "metabolism/paper-protonet-cross-seed0" in names


def test_name_has_the_steps_if_they_are_not_the_papers():
    job, *_ = make_jobs(METABOLISM, seeds=1, steps=70, only=("mlti", "protonet"))
    assert job.name == "metabolism/paper-protonet-mlti-steps70-seed0"
    job, *_ = make_jobs(METABOLISM, seeds=1, steps=10_000, only=("mlti", "protonet"))
    assert job.name == "metabolism/paper-protonet-mlti-seed0"


def test_alternative_split_and_encoder():
    (job,) = make_jobs(METABOLISM, seeds=1, disjoint=True, only=("maml", "mlti"))
    assert job.name == "metabolism/disjoint-maml-mlti-seed0"
    cells = TABLES["additional_datasets"].cells()
    for albert, encoder in ((False, "word_mean"), (True, "albert")):
        jobs = make_jobs(cells, seeds=1, albert=albert, only=("huffpost", "metareg"))
        assert [f"encoder={encoder}" in job.run.argument for job in jobs] == [True] * 2
        adapted = dict(jobs[0].run.overrides).get("learner.maml.adapted_layers")
        assert adapted == (None if albert else (-1,))


def test_a_job_on_other_test_tasks_takes_over_a_finished_training(tmp_path):
    cells = TABLES["cross_domain"].cells()
    only = ("maml", "mlti", "5shot", "to_dermnet")
    (job,) = make_jobs(cells, seeds=1, steps=70, only=only)
    assert job.name == "mini_imagenet/maml-mlti-5shot-to_dermnet-steps70-seed0"
    assert job.training.name == "mini_imagenet/maml-mlti-5shot-steps70-seed0"
    assert job.training.training is None
    paths = Paths(tmp_path)
    assert not any("--trained" in word for word in job_command(job, paths))
    write_start(paths.work(job.training))  # not finished
    assert not any("--trained" in word for word in job_command(job, paths))
    write_run(paths.work(job.training))
    assert job_command(job, paths)[-1] == f"--trained={paths.work(job.training)}"
    assert not any("--trained" in word for word in job_command(job.training, paths))


def test_words_match_the_beginning_of_name_parts():
    name = "dermnet/anil-vanilla-5shot-to_mini_imagenet-seed1"
    for word in ("dermnet", "anil", "van", "5shot", "mini", "to_mini", "seed1"):
        assert matches(name, word)
    for word in ("shot", "seed0", "net", "vanila"):
        assert not matches(name, word)
    assert not matches("isic/maml-vanilla-5shot-seed0", "anil")


# --------------------------------------------------------------- status and time


@pytest.fixture
def paths(tmp_path):
    return Paths(tmp_path / "work", tmp_path / "data")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results"


def test_job_status(paths, folder):
    done, interrupted, missing = make_jobs(RAINBOW, seeds=3, only=("maml", "mlti"))
    write_run(paths.work(done), 0, done.steps, strategy="mlti", source="idx")
    record(folder, done, paths.work(done))
    write_start(paths.work(interrupted), step=500)
    (no_data,) = make_jobs(METABOLISM, seeds=1, only=("maml", "mlti"))
    results = Results(folder)
    expected = {
        done: "done",
        interrupted: "interrupted at step 500",
        missing: "missing",
        no_data: "no data: metabolism",
    }
    for job, text in expected.items():
        assert str(job_status(job, results, paths)) == text
    text = dry_run(list(expected), results, paths, at_once=1)
    assert text.splitlines()[1] == (
        "rainbow_mnist.py:learner=maml,strategy=mlti  seed 1  30,000 steps  "
        "interrupted at step 500  unknown time"
    )
    assert text.splitlines()[-1] == (
        "4 runs: 1 done, 1 interrupted, 1 missing, 1 no data; 2 runs of unknown time "
        "left"
    )


def test_time_is_estimated_from_similar_runs(paths, folder):
    def job(*only, cells=METABOLISM):
        return make_jobs(cells, seeds=1, only=only)[0]

    def keep(job, learner, strategy, rate, shots=5, backbone="mlp"):
        write_run(
            paths.work(job),
            steps=job.steps,
            learner=learner,
            strategy=strategy,
            shots=shots,
            backbone=backbone,
        )
        lines = [
            {"step": step, "split": "train", "steps_per_second": step_rate}
            for step, step_rate in (
                (5, 0.1),
                (10, rate),
            )  # the first compiles
        ]
        text = "\n".join(map(json.dumps, lines))
        (paths.work(job) / "metrics.jsonl").write_text(text)
        record(folder, job, paths.work(job))

    mlti, metamix = job("maml", "mlti"), job("maml", "metamix")
    assert seconds_left(mlti, 0, Results(folder)) is None
    keep(job("protonet", "maxup"), "protonet", "maxup", 4.0)
    assert seconds_left(mlti, 0, Results(folder)) == 10_000 / 4  # any run of the config
    keep(metamix, "maml", "metamix", 20.0)
    assert seconds_left(mlti, 0, Results(folder)) == 10_000 / 20
    assert seconds_left(mlti, 5_000, Results(folder)) == 5_000 / 20
    assert seconds_left(mlti, 5_000, Results(folder), rate=10.0) == 500
    assert seconds_left(job("protonet", "mlti"), 0, Results(folder)) == 10_000 / 12
    # Runs with another backbone or config are not used.
    resnet = job("maml", "mlti", cells=TABLES["resnet12"].cells())
    keep(
        job("mini", "maml", "mlti", cells=TABLES["overall_nls"].cells()),
        "maml",
        "mlti",
        1.0,
        1,
        "conv4",
    )
    assert seconds_left(resnet, 0, Results(folder)) is None
    text = dry_run([mlti, resnet], Results(folder), paths, 1)
    assert "no data: metabolism  8 min 20 s" in text


def test_time_left():
    assert format_left([]) == "nothing"
    assert format_left([30.0, 60.0]) == "about 1 min 30 s"
    assert format_left([30.0, 60.0], at_once=2) == "about 45 s"
    assert format_left([30.0, None]) == "about 30 s and 1 run of unknown time"
    assert format_left([None, None]) == "2 runs of unknown time"


# ------------------------------------------------------------------------ running


class FakeCommand:
    """Returns commands of the fake run, and records which jobs were started."""

    def __init__(self, **behaviours):
        self.behaviours, self.started = behaviours, []

    def __call__(self, job, paths):
        self.started.append(job.name)
        words = [word for word in self.behaviours if matches(job.name, word)]
        behaviour = self.behaviours[words[0]] if words else "finish"
        workdir = paths.work(job)
        return [sys.executable, FAKE, behaviour, workdir, str(job.seed), str(job.steps)]


def run(jobs, paths, folder, command, at_once=1):
    """Run jobs on this machine."""
    executor = Local(paths.workdir / "submitit", at_once)
    Runner(jobs, paths, folder, executor, command).run()


def test_missing_results_are_run_and_recorded(paths, folder, capsys):
    jobs = make_jobs(RAINBOW, seeds=2, steps=10, only=("protonet",))
    command = FakeCommand()
    run(jobs[:3], paths, folder, command)
    assert command.started == [job.name for job in jobs[:3]]
    run(jobs, paths, folder, command, at_once=2)
    assert command.started == [job.name for job in jobs]  # none of them twice
    results = Results(folder)
    for job in jobs:
        assert results.get(job)["seed"] == job.seed
        assert result_path(folder, job).exists()
        assert paths.log(job).exists()
    run(jobs, paths, folder, command)
    assert len(command.started) == len(jobs)
    said = capsys.readouterr().err
    assert "8 runs: 3 done, 5 to run; " in said
    assert f"[1/3] {jobs[0].name}: started; " in said
    line = rf"\[8/8\] {jobs[7].name}: accuracy 75\.00 % in \d+ s; "
    assert re.search(line, said)
    assert "8 runs: 8 done, 0 to run; nothing left" in said


def test_failed_job_does_not_stop_the_others(paths, folder, capsys):
    jobs = make_jobs(RAINBOW, seeds=1, steps=10, only=("protonet",))
    command = FakeCommand(metamix="fail", maxup="nothing")
    with pytest.raises(
        InputError, match="2 of 4 runs failed: .*metamix.*maxup"
    ) as error:
        run(jobs, paths, folder, command)
    assert str(paths.workdir / "logs") in str(error.value)
    assert len(command.started) == 4
    assert [Results(folder).get(job) is None for job in jobs] == [
        False,
        True,
        True,
        False,
    ]
    said = capsys.readouterr().err
    assert "metamix-steps10-seed0 failed (exit code 2); the end of its log:" in said
    assert "line 29\nerror: this one fails" in said
    assert "line 10\n" not in said  # only the end
    assert "maxup-steps10-seed0 failed (it wrote no results.json)" in said
    run(jobs, paths, folder, FakeCommand())  # retries
    assert all(Results(folder).get(job) for job in jobs)


def test_signal_is_forwarded_once_and_the_same_command_resumes(
    paths, folder, monkeypatch, capsys
):
    jobs = make_jobs(RAINBOW, seeds=1, steps=10, only=("protonet",))
    waiting = jobs[1:3]

    @contextlib.contextmanager
    def stop_when_all_are_waiting():
        configs = [paths.work(job) / "config.json" for job in waiting]
        yield lambda: signal.SIGINT if all(map(pathlib.Path.exists, configs)) else 0

    monkeypatch.setattr(runner, "stop_signal", stop_when_all_are_waiting)
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_MESSAGES", 0.0)
    command = FakeCommand(metamix="wait", maxup="wait")
    with pytest.raises(Stopped, match="same command again to resume") as stopped:
        run(jobs, paths, folder, command, at_once=2)
    assert stopped.value.exit_code == 130
    assert jobs[3].name not in command.started
    for job in waiting:  # each had time to save
        assert str(job_status(job, Results(folder), paths)) == "interrupted at step 7"
    monkeypatch.undo()
    command = FakeCommand()
    run(jobs, paths, folder, command)
    assert command.started == [job.name for job in jobs[1:]]
    said = capsys.readouterr().err
    assert "metamix-steps10-seed0: step 10 of 10; " in said
    assert "stopping 2 runs" in said
    assert "metamix-steps10-seed0: resumed at step 7; " in said
    assert all(Results(folder).get(job) for job in jobs)


def test_result_of_a_run_that_nobody_waited_for_is_recorded(paths, folder, capsys):
    (job,) = make_jobs(RAINBOW, seeds=1, steps=10, only=("protonet", "mlti"))
    write_run(paths.work(job), 0, 10)
    command = FakeCommand()
    run([job], paths, folder, command)
    assert command.started == []
    assert Results(folder).get(job)["mean"] == 0.75
    assert "1 run: 1 done, 0 to run; nothing left" in capsys.readouterr().err


def test_a_run_of_another_process_is_waited_for(paths, folder, capsys):
    (job,) = make_jobs(RAINBOW, seeds=1, steps=10, only=("protonet", "mlti"))
    paths.work(job).mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(paths.work(job), "--workdir"))
        timer = threading.Timer(0.5, stack.close)
        timer.start()
        start = time.monotonic()
        command = FakeCommand()
        run([job], paths, folder, command)
        assert time.monotonic() - start > 0.4
        timer.join()
    assert command.started == [job.name]
    said = capsys.readouterr().err
    assert said.count("another process is still running it; waiting") == 1
    assert Results(folder).get(job)


def test_jobs_without_data_are_skipped(paths, folder, capsys):
    jobs = make_jobs(METABOLISM, seeds=1, only=("protonet",))
    command = FakeCommand()
    with pytest.raises(InputError, match="no dataset of these runs is prepared"):
        run(jobs, paths, folder, command)
    jobs += make_jobs(RAINBOW, seeds=1, steps=10, only=("protonet", "mlti"))
    run(jobs, paths, folder, command)
    assert command.started == ["rainbow_mnist/protonet-mlti-steps10-seed0"]
    said = capsys.readouterr().err
    assert "skipped, dataset not prepared: metabolism (4 runs)" in said


# ----------------------------------------------------------------------- real run


@pytest.mark.slow
def test_run_record_and_render(paths, folder, monkeypatch):
    """Runs ProtoNet on the built-in images."""
    # The small settings below are not those of the table.
    monkeypatch.setattr(table_results, "changed_setting", lambda *_: "")
    small = {
        "eval.num_tasks": 8,
        "eval.validation_tasks": 2,
        "backbone.conv4.filters": 4,
    }

    def command(job, paths):
        fields = [f"--config.{name}={value}" for name, value in small.items()]
        return [*job_command(job, paths), *fields]

    jobs = make_jobs(RAINBOW, seeds=1, steps=2, only=("protonet", "mlti"))
    run(jobs, paths, folder, command)
    result = Results(folder).get(jobs[0])
    assert (result["num_tasks"], result["train_steps"]) == (8, 2)
    assert result["train_seconds"] > 0
    assert "steps_per_second" not in result  # all steps include compilation
    assert set(result["checksums"]) == {"train", "validation", "test"}
    assert result["revision"] == revision()
    assert numerics.state(result) == numerics.State.CURRENT
    report = Renderer(Results(folder), lambda run: []).report(TABLES["overall_ls"])
    lines = markdown([report], LEGEND).splitlines()
    line = next(line for line in lines if "70.14 ± 0.92" in line)
    mean, ci95 = 100 * result["mean"], 100 * result["ci95"]
    assert f"| {mean:.2f} ± {ci95:.2f} | {mean - 70.14:+.2f} ± " in line
    assert "1 seed, 2 of 30,000 steps, built-in images" in line
