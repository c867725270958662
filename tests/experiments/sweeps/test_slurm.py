"""Sweeps on a real SLURM: a cluster of this machine alone, where it is installed."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments.paper import TABLES
from experiments.sweeps.executors import Slurm
from experiments.tables import runner
from experiments.tables.jobs import Paths, make_jobs
from experiments.tables.results import Results
from experiments.tables.runner import Runner, Stopped
from mlti_jax.errors import InputError
from tests.support import table_files
from tests.support.one_node_slurm import missing_programs, one_node_slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing_programs()),
        reason=f"not installed: {', '.join(missing_programs())}",
    ),
]
SECONDS = 60.0
RAINBOW = [
    cell
    for cell in TABLES["overall_ls"].cells()
    if cell.column.config == "rainbow_mnist"
]
PARAMETERS = {
    "job_name": "sweep",
    "time": 30,
    "cpus_per_task": 1,
    "stderr_to_stdout": True,
    "additional_parameters": {"mem": "100M", "requeue": True},
}


@pytest.fixture(scope="module")
def cluster():
    with one_node_slurm(cpus=4) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


class Sweep:
    """Eight runs that count, see `table_files.count`."""

    def __init__(self, folder: pathlib.Path, steps: int) -> None:
        self.paths, self.folder = Paths(folder / "work"), folder / "results"
        self.jobs = make_jobs(RAINBOW, seeds=2, steps=steps, only=("protonet",))
        assert len(self.jobs) == 8

    def run(self, at_once: int | None = None) -> None:
        executor = Slurm(self.paths.workdir / "submitit", at_once, PARAMETERS)
        executor.poll_seconds = 0.3
        Runner(self.jobs, self.paths, self.folder, executor, command).run()

    def history(self, job) -> list[str]:
        path = self.paths.work(job) / "history.txt"
        return path.read_text().splitlines() if path.exists() else []

    def steps(self, job) -> list[int]:
        lines = [line.split() for line in self.history(job)]
        return [int(words[1]) for words in lines if words[0] == "step" and words[1:]]

    def starts(self, job) -> int:
        return sum(line.startswith("start") for line in self.history(job))

    def number(self, job) -> str:
        """The number of a job in SLURM."""
        (found,) = Slurm(self.paths.workdir / "submitit", None, PARAMETERS).find(
            [job.name]
        )
        return found.id

    def check(self) -> None:
        """Each run has one result, and has finished once."""
        assert len(list(self.folder.rglob("*.json"))) == len(self.jobs)
        for job in self.jobs:
            assert Results(self.folder).get(job)["seed"] == job.seed
            assert self.history(job).count("finish") == 1
            assert self.history(job)[-1] == "finish"
            assert sorted(set(self.steps(job))) == list(range(1, job.steps + 1))


def command(job, paths):
    program = [sys.executable, table_files.__file__, "count", paths.work(job)]
    return [*program, str(job.seed), str(job.steps)]


def wait_for(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def slurm(*commands: list[str]) -> None:
    """Run commands of SLURM at the same time."""
    # Not checked: `scancel` fails if the job reacts before it has looked again.
    for process in [
        subprocess.Popen(words, stderr=subprocess.DEVNULL) for words in commands
    ]:
        process.wait(SECONDS)


@contextlib.contextmanager
def in_background(action):
    """Run `action` in a thread; raise its exception at the end of the context."""
    errors = []

    def run():
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(SECONDS)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_killed_jobs_are_requeued_and_all_runs_finish_once(cluster, tmp_path, capsys):
    sweep = Sweep(tmp_path, steps=80)
    preempted, requeued, *others = sweep.jobs

    def disturb():
        for job in (preempted, requeued):
            wait_for(lambda job=job: len(sweep.steps(job)) > 10)
        # What SLURM sends before the time limit, and what an administrator does.
        slurm(
            ["scancel", "--signal=USR2", sweep.number(preempted)],
            ["scontrol", "requeue", sweep.number(requeued)],
        )

    with in_background(disturb):
        sweep.run(at_once=4)
    sweep.check()
    for job in (preempted, requeued):
        assert sweep.starts(job) == 2
        # The state was saved at the signal: no step was lost, none is there twice.
        assert sweep.steps(job) == list(range(1, 81))
    assert [sweep.starts(job) for job in others] == [1] * 6
    said = capsys.readouterr().err
    assert "submitted 8 runs as SLURM job " in said
    for job in (preempted, requeued):
        assert f"{job.name}: requeued; " in said
        assert f"{job.name}: resumed at step " in said
        log = sweep.paths.log(job).read_text()
        assert log.count("SLURM job ") == 2
        assert "progress is saved" in log


def test_jobs_outlive_the_sweep_and_the_same_command_waits(
    cluster, tmp_path, monkeypatch, capsys
):
    sweep = Sweep(tmp_path, steps=80)

    @contextlib.contextmanager
    def stop_when_some_run():
        yield lambda: signal.SIGINT if sweep.steps(sweep.jobs[3]) else 0

    monkeypatch.setattr(runner, "stop_signal", stop_when_some_run)
    with pytest.raises(Stopped, match="jobs go on in SLURM.*scancel") as stopped:
        sweep.run(at_once=4)
    assert stopped.value.exit_code == 130
    assert "submitted 8 runs" in capsys.readouterr().err
    assert not sweep.folder.exists()
    monkeypatch.undo()
    sweep.run()
    sweep.check()
    assert [sweep.starts(job) for job in sweep.jobs] == [1] * 8  # none submitted twice
    said = capsys.readouterr().err
    assert said.count("already submitted (job ") == 8
    assert "submitted 8 runs" not in said


def test_killed_and_cancelled_jobs_are_reported_and_resumed(cluster, tmp_path, capsys):
    sweep = Sweep(tmp_path, steps=80)
    killed, cancelled = sweep.jobs[:2]

    def disturb():
        for job in (killed, cancelled):
            wait_for(lambda job=job: len(sweep.steps(job)) > 10)
        slurm(
            ["scancel", "--signal=KILL", sweep.number(killed)],
            ["scancel", sweep.number(cancelled)],
        )

    with (
        pytest.raises(InputError, match="2 of 8 runs failed"),
        in_background(disturb),
    ):
        sweep.run()
    said = capsys.readouterr().err
    assert f"{cancelled.name}: failed (SLURM job " in said
    assert ": CANCELLED); " in said
    assert "progress is saved" in sweep.paths.log(cancelled).read_text()
    sweep.run()
    sweep.check()
    assert sweep.starts(cancelled) == sweep.starts(killed) == 2
    assert sweep.steps(cancelled) == list(range(1, 81))


def test_failures_have_the_end_of_the_log(cluster, tmp_path, capsys):
    sweep = Sweep(tmp_path, steps=10)
    sweep.jobs = sweep.jobs[:2]

    def failing(job, paths):
        behavior = "fail" if job == sweep.jobs[0] else "finish"
        words = [behavior, paths.work(job), str(job.seed), str(job.steps)]
        return [sys.executable, table_files.__file__, *words]

    executor = Slurm(sweep.paths.workdir / "submitit", None, PARAMETERS)
    executor.poll_seconds = 0.3
    with pytest.raises(InputError, match="1 of 2 runs failed"):
        Runner(sweep.jobs, sweep.paths, sweep.folder, executor, failing).run()
    said = capsys.readouterr().err
    assert f"{sweep.jobs[0].name} failed (exit code 2); the end of its log:" in said
    assert "error: this one fails" in said
    refused = Slurm(
        sweep.paths.workdir / "submitit", None, PARAMETERS | {"partition": "no"}
    )
    with pytest.raises(InputError, match="SLURM refused the jobs: .*partition"):
        Runner(sweep.jobs, sweep.paths, sweep.folder, refused, command).run()
