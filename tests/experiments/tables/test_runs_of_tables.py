"""What is run for tables: plans, states and times; runs that are stood in for."""

import contextlib
import json
import os
import pathlib
import signal
import sys

import pytest

from experiments.paper import TABLES
from experiments.tables import runs as table_runs
from experiments.tables import settings as run_settings
from experiments.tables.formats import markdown
from experiments.tables.jobs import Place, matches, planned
from experiments.tables.listing import dry_run
from experiments.tables.render import HOW, Renderer
from experiments.tables.runs import Runner, Stopped, command_of, cores_of
from experiments.tables.state import format_left, seconds_left, state_of
from experiments.tables.store import Results, path_of, record
from mlti_jax.errors import InputError
from tests.support import table_files
from tests.support.table_files import leave_run, leave_start

FAKE = pathlib.Path(table_files.__file__)
OVERALL = TABLES["overall_ls"].cells()
RAINBOW = [cell for cell in OVERALL if cell.column.config == "rainbow_mnist"]
METABOLISM = [cell for cell in OVERALL if cell.column.config == "metabolism"]


# ---------------------------------------------------------------------- planning


def test_each_run_is_planned_once():
    cells = OVERALL + TABLES["ablation_ls"].cells()
    jobs = planned(cells, seeds=2)
    assert len(jobs) == len(set(jobs)) == 2 * (44 + 14)
    assert [job.seed for job in jobs[:58]] == [0] * 58  # a whole table first
    assert {job.steps for job in jobs} == {10_000, 30_000}
    names = [job.name for job in jobs]
    assert "rainbow_mnist/maml-mlti-seed1" in names
    assert "metabolism/paper-protonet-cross-seed0" in names


def test_steps_stand_in_the_name_if_they_are_not_the_papers():
    job, *_ = planned(METABOLISM, seeds=1, steps=70, only=("mlti", "protonet"))
    assert job.name == "metabolism/paper-protonet-mlti-steps70-seed0"
    job, *_ = planned(METABOLISM, seeds=1, steps=10_000, only=("mlti", "protonet"))
    assert job.name == "metabolism/paper-protonet-mlti-seed0"


def test_the_other_ways_of_molecules_and_text():
    (job,) = planned(METABOLISM, seeds=1, disjoint=True, only=("maml", "mlti"))
    assert job.name == "metabolism/disjoint-maml-mlti-seed0"
    cells = TABLES["additional_datasets"].cells()
    for albert, encoder in ((False, "word_mean"), (True, "albert")):
        jobs = planned(cells, seeds=1, albert=albert, only=("huffpost", "metareg"))
        assert [f"encoder={encoder}" in job.run.argument for job in jobs] == [True] * 2
        adapted = dict(jobs[0].run.overrides).get("learner.maml.adapted_layers")
        assert adapted == (None if albert else (-1,))


def test_words_begin_parts_of_names():
    name = "dermnet/anil-vanilla-5shot-to_mini_imagenet-seed1"
    for word in ("dermnet", "anil", "van", "5shot", "mini", "to_mini", "seed1"):
        assert matches(name, word)
    for word in ("shot", "seed0", "net", "vanila"):
        assert not matches(name, word)
    assert not matches("isic/maml-vanilla-5shot-seed0", "anil")


# ---------------------------------------------------------------- states and times


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "work", tmp_path / "data")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results"


def test_states(place, folder):
    done, interrupted, missing = planned(RAINBOW, seeds=3, only=("maml", "mlti"))
    leave_run(place.of(done), 0, done.steps, strategy="mlti", source="idx")
    record(folder, done, place.of(done))
    leave_start(place.of(interrupted), step=500)
    (no_data,) = planned(METABOLISM, seeds=1, only=("maml", "mlti"))
    results = Results(folder)
    expected = {
        done: "done",
        interrupted: "interrupted at step 500",
        missing: "missing",
        no_data: "no data: metabolism",
    }
    for job, text in expected.items():
        assert str(state_of(job, results, place)) == text
    text = dry_run(list(expected), results, place, at_once=1)
    assert text.splitlines()[1] == (
        "rainbow_mnist.py:learner=maml,strategy=mlti  seed 1  30,000 steps  "
        "interrupted at step 500  unknown time"
    )
    assert text.splitlines()[-1] == (
        "4 runs: 1 done, 1 interrupted, 1 missing, 1 no data; 2 runs of unknown time "
        "left"
    )


def test_times_are_those_of_like_runs(place, folder):
    def job(*only, cells=METABOLISM):
        return planned(cells, seeds=1, only=only)[0]

    def keep(job, learner, strategy, rate, shots=5, backbone="mlp"):
        leave_run(
            place.of(job),
            steps=job.steps,
            learner=learner,
            strategy=strategy,
            shots=shots,
            backbone=backbone,
        )
        lines = [
            {"step": step, "split": "train", "steps_per_second": step_rate}
            for step, step_rate in ((5, 0.1), (10, rate))  # the first compiles
        ]
        text = "\n".join(map(json.dumps, lines))
        (place.of(job) / "metrics.jsonl").write_text(text)
        record(folder, job, place.of(job))

    mlti, metamix = job("maml", "mlti"), job("maml", "metamix")
    assert seconds_left(mlti, 0, Results(folder)) is None
    keep(job("protonet", "maxup"), "protonet", "maxup", 4.0)
    assert seconds_left(mlti, 0, Results(folder)) == 10_000 / 4  # any of the config
    keep(metamix, "maml", "metamix", 20.0)
    assert seconds_left(mlti, 0, Results(folder)) == 10_000 / 20
    assert seconds_left(mlti, 5_000, Results(folder)) == 5_000 / 20
    assert seconds_left(mlti, 5_000, Results(folder), rate=10.0) == 500
    assert seconds_left(job("protonet", "mlti"), 0, Results(folder)) == 10_000 / 12
    # Another network or another config says nothing.
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
    text = dry_run([mlti, resnet], Results(folder), place, 1)
    assert "no data: metabolism  8 min 20 s" in text


def test_time_left():
    assert format_left([]) == "nothing"
    assert format_left([30.0, 60.0]) == "about 1 min 30 s"
    assert format_left([30.0, 60.0], at_once=2) == "about 45 s"
    assert format_left([30.0, None]) == "about 30 s and 1 run of unknown time"
    assert format_left([None, None]) == "2 runs of unknown time"


# ------------------------------------------------------------------------ running


class StandIn:
    """Makes commands of the stand-in, and remembers which jobs were started."""

    def __init__(self, **behaviours):
        self.behaviours, self.started = behaviours, []

    def __call__(self, job, place):
        self.started.append(job.name)
        words = [word for word in self.behaviours if matches(job.name, word)]
        behaviour = self.behaviours[words[0]] if words else "finish"
        workdir = place.of(job)
        return [sys.executable, FAKE, behaviour, workdir, str(job.seed), str(job.steps)]


def test_what_is_missing_is_run_and_recorded(place, folder, capsys):
    jobs = planned(RAINBOW, seeds=2, steps=10, only=("protonet",))
    command = StandIn()
    Runner(jobs[:3], place, folder, command=command).run()
    assert command.started == [job.name for job in jobs[:3]]
    Runner(jobs, place, folder, at_once=2, command=command).run()
    assert command.started == [job.name for job in jobs]  # none of them twice
    results = Results(folder)
    for job in jobs:
        assert results.of(job)["seed"] == job.seed
        assert path_of(folder, job).exists()
        assert place.log(job).exists()
    Runner(jobs, place, folder, command=command).run()
    assert len(command.started) == len(jobs)
    said = capsys.readouterr().err
    assert "8 runs: 3 done, 5 to run; " in said
    assert f"[1/3] {jobs[0].name}: started; " in said
    assert f"[8/8] {jobs[7].name}: accuracy 75.00 % in 0 s; nothing left" in said
    assert "8 runs: 8 done, 0 to run; nothing left" in said


def test_a_failure_does_not_stop_the_others(place, folder, capsys):
    jobs = planned(RAINBOW, seeds=1, steps=10, only=("protonet",))
    command = StandIn(metamix="fail", maxup="nothing")
    with pytest.raises(
        InputError, match="2 of 4 runs failed: .*metamix.*maxup"
    ) as error:
        Runner(jobs, place, folder, command=command).run()
    assert str(place.workdir / "logs") in str(error.value)
    assert len(command.started) == 4
    assert [Results(folder).of(job) is None for job in jobs] == [
        False,
        True,
        True,
        False,
    ]
    said = capsys.readouterr().err
    assert "metamix-steps10-seed0 failed (exit code 2); the end of its log:" in said
    assert "line 29\nerror: this one fails" in said
    assert "line 10\n" not in said  # the end alone
    assert "maxup-steps10-seed0 failed (it left no results.json)" in said
    Runner(jobs, place, folder, command=StandIn()).run()  # tries again
    assert all(Results(folder).of(job) for job in jobs)


def test_a_signal_is_passed_on_once_and_the_same_command_goes_on(
    place, folder, monkeypatch, capsys
):
    jobs = planned(RAINBOW, seeds=1, steps=10, only=("protonet",))
    waiting = jobs[1:3]

    @contextlib.contextmanager
    def stop_when_all_wait():
        configs = [place.of(job) / "config.json" for job in waiting]
        yield lambda: signal.SIGINT if all(map(pathlib.Path.exists, configs)) else 0

    monkeypatch.setattr(table_runs, "stop_signal", stop_when_all_wait)
    monkeypatch.setattr(table_runs, "SECONDS_BETWEEN_LINES", 0.0)
    command = StandIn(metamix="wait", maxup="wait")
    with pytest.raises(Stopped, match="the same command goes on") as stopped:
        Runner(jobs, place, folder, at_once=2, command=command).run()
    assert stopped.value.exit_code == 130
    assert jobs[3].name not in command.started
    for job in waiting:  # each was given the time to save
        assert str(state_of(job, Results(folder), place)) == "interrupted at step 7"
    monkeypatch.undo()
    command = StandIn()
    Runner(jobs, place, folder, command=command).run()
    assert command.started == [job.name for job in jobs[1:]]
    said = capsys.readouterr().err
    assert "metamix-steps10-seed0: step 10 of 10; " in said
    assert "stopping 2 runs" in said
    assert "metamix-steps10-seed0: going on from step 7; " in said
    assert all(Results(folder).of(job) for job in jobs)


def test_runs_without_data_are_left_out(place, folder, capsys):
    jobs = planned(METABOLISM, seeds=1, only=("protonet",))
    command = StandIn()
    with pytest.raises(InputError, match="nothing can be run without data"):
        Runner(jobs, place, folder, command=command).run()
    jobs += planned(RAINBOW, seeds=1, steps=10, only=("protonet", "mlti"))
    Runner(jobs, place, folder, command=command).run()
    assert command.started == ["rainbow_mnist/protonet-mlti-steps10-seed0"]
    said = capsys.readouterr().err
    assert "left out for want of data: metabolism (4 runs)" in said


# ------------------------------------------------------------------- the real thing


@pytest.mark.slow
def test_from_nothing_to_a_table(place, folder, monkeypatch):
    """ProtoNet on the built-in images: run, recorded, and shown."""
    # It is made small in a way that the table does not know.
    monkeypatch.setattr(run_settings, "why_outdated", lambda *_: "")
    small = {
        "eval.num_tasks": 8,
        "eval.validation_tasks": 2,
        "backbone.conv4.filters": 4,
    }

    def command(job, place):
        fields = [f"--config.{name}={value}" for name, value in small.items()]
        return [*command_of(job, place), *fields]

    jobs = planned(RAINBOW, seeds=1, steps=2, only=("protonet", "mlti"))
    Runner(jobs, place, folder, command=command).run()
    result = Results(folder).of(jobs[0])
    assert (result["num_tasks"], result["train_steps"]) == (8, 2)
    assert result["train_seconds"] > 0
    assert "steps_per_second" not in result  # so few steps tell of compiling alone
    assert set(result["checksums"]) == {"train", "validation", "test"}
    report = Renderer(Results(folder), lambda run: []).report(TABLES["overall_ls"])
    lines = markdown([report], HOW).splitlines()
    line = next(line for line in lines if "70.14 ± 0.92" in line)
    mean, ci95 = 100 * result["mean"], 100 * result["ci95"]
    assert f"| {mean:.2f} ± {ci95:.2f} | {mean - 70.14:+.2f} ± " in line
    assert "1 seed, 2 of 30,000 steps, built-in images" in line


def test_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3, 5}, raising=False)
    assert cores_of(0, 1) == {1, 3, 5}
    assert [cores_of(slot, 2) for slot in range(2)] == [{1, 5}, {3}]
    assert cores_of(0, 4) == set()  # of fewer cores than jobs nobody gets one
