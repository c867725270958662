"""Jobs of sweeps on this machine: flags, cores, requeue, and no orphans."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments.sweeps import executors
from experiments.sweeps.command import Place, RunCommand
from experiments.sweeps.executors import (
    Local,
    Slurm,
    cores_for_slot,
    minutes,
    slurm_parameters,
)
from experiments.tables import __main__ as tables
from mlti_jax.errors import InputError
from tests.support import table_files
from tests.support.cli import ROOT, command, reset_flags

SECONDS = 30.0


def wait_for(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(number: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"


@pytest.fixture
def counting(tmp_path):
    """The arguments of a job that counts, and its history."""

    def arguments(steps):
        words = [sys.executable, table_files.__file__, "count", str(tmp_path / "work")]
        return [*words, "0", str(steps)], str(ROOT), str(tmp_path / "logs" / "a.txt")

    history = tmp_path / "work" / "history.txt"
    return arguments, lambda: history.read_text() if history.exists() else ""


# --------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90min", 90),
        ("12h", 720),
        ("1.5h", 90),
        ("2d", 2880),
        ("30s", 1),
        ("10:30", 10),
        ("01:30:00", 90),
        ("2-12", 3600),
        ("1-00:10:00", 1450),
    ],
)
def test_time_limits(text, expected):
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "0", "-1h", "1:2:3:4", "1-", "3w"])
def test_invalid_time_limits(text):
    with pytest.raises(InputError, match="--time is .*; expected a time such as"):
        minutes(text)


def parse(*arguments):
    reset_flags()
    executors.flags.FLAGS(["sweep", *arguments])


def sbatch_lines(tmp_path, *arguments) -> set[str]:
    """The options in the file that submitit gives to sbatch."""
    submitit = pytest.importorskip("submitit")
    parse("--executor=slurm", *arguments)
    text = submitit.slurm.slurm._make_sbatch_string(
        command="run", folder=tmp_path, **slurm_parameters()
    )
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    return {line.removeprefix("#SBATCH --") for line in lines}, text


def test_options_reach_sbatch(tmp_path):
    lines, text = sbatch_lines(
        tmp_path,
        "--partition=gpu",
        "--time=1-12:00:00",
        "--cpus=3",
        "--mem=20G",
        "--gpus=2",
        "--slurm=account=lab,exclude=n1,mail-type=END,exclusive,setup=module load cuda",
    )
    assert {
        "partition=gpu",
        "time=2160",
        "cpus-per-task=3",
        "mem=20G",
        "gpus-per-node=2",
        "account=lab",
        "exclude=n1",
        "mail-type=END",
        "exclusive",
        "requeue",
        "signal=USR2@120",
    } <= lines
    assert "\nmodule load cuda\n" in text
    lines, _ = sbatch_lines(tmp_path)
    assert {"time=240", "cpus-per-task=4", "mem=8G"} <= lines
    assert not any(line.startswith(("partition", "gpus", "account")) for line in lines)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--partition=gpu", "--run"], "--partition requires --executor=slurm"),
        (["--gpus=1", "--dry_run"], "--gpus requires --executor=slurm"),
        (["--executor=slurm"], "--executor requires --run or --dry_run"),
        (["--executor=slurm", "--time=soon", "--dry_run"], "--time is 'soon'"),
        (["--executor=slurm", "--slurm==1", "--dry_run"], "--slurm has '=1'"),
        (
            ["--executor=slurm", "--slurm=signal_delay_s=x", "--dry_run"],
            "--slurm has 'signal_delay_s=x'; expected seconds",
        ),
        (["--executor=cloud", "--run"], "executor.*local.*slurm"),
        (["--executor=slurm", "--run"], "needs SLURM's sbatch, .*on a login node"),
    ],
)
def test_invalid_flags(args, message, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    folders = (f"--results={tmp_path}", f"--workdir={tmp_path / 'work'}")
    call = command(tables, monkeypatch, capsys, ("--table=overall_ls", *folders))
    code, printed = call(*args)
    assert code == 2
    assert printed.err.startswith("error: ")
    assert re.search(message, printed.err)


# ------------------------------------------------------------------------- machine


def test_parallel_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3, 5}, raising=False)
    assert cores_for_slot(0, 1) == {1, 3, 5}
    assert [cores_for_slot(slot, 2) for slot in range(2)] == [{1, 5}, {3}]
    assert cores_for_slot(0, 4) == set()  # fewer cores than jobs: no restriction


def finish(executor, submissions):
    wait_for(lambda: executor.states(submissions)[submissions[0].name] != "RUNNING")


def test_job_has_its_cores_and_the_environment_of_the_sweep(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    program = (
        "import os; names = sorted(n for n in os.environ if 'SLURM' in n or "
        "'SUBMITIT' in n); print(sorted(os.sched_getaffinity(0)), "
        "os.environ['CUDA_VISIBLE_DEVICES'], names)"
    )
    executor = Local(tmp_path / "submitit", at_once=2)
    words = [sys.executable, "-c", program]
    arguments = {
        name: (words, str(tmp_path), str(tmp_path / "logs" / name)) for name in "ab"
    }
    submissions = executor.submit(RunCommand(), arguments)
    for each in submissions:
        finish(executor, [each])
        assert each.answer() == 0
    cores = [sorted(cores_for_slot(slot, 2)) for slot in range(2)]
    if not all(cores):  # one core for two jobs
        cores = [sorted(os.sched_getaffinity(0))] * 2
    printed = [(tmp_path / "logs" / name).read_text().splitlines()[-1] for name in "ab"]
    assert printed == [f"{each} 3 []" for each in cores]


def test_preempted_job_saves_and_continues(tmp_path, counting):
    """The signal that SLURM sends; submitit's local executor requeues, too."""
    pytest.importorskip("submitit")
    arguments, history = counting
    executor = Local(tmp_path / "submitit", at_once=1)
    (job,) = executor.submit(RunCommand(), {"a": arguments(30)})
    wait_for(lambda: "step 7\n" in history())
    (wrapper,) = children(int(job.id))
    os.kill(wrapper, signal.SIGUSR2)
    finish(executor, [job])
    assert job.answer() == 0
    lines = history().splitlines()
    assert sum(line.startswith("start") for line in lines) == 2
    assert [line for line in lines if line.startswith("step")] == [
        f"step {n}" for n in range(1, 31)
    ]  # none lost, none twice
    assert lines.count("finish") == 1


def children(number: int) -> list[int]:
    """The processes that a process has started."""
    text = pathlib.Path(f"/proc/{number}/task/{number}/children").read_text()
    return [int(word) for word in text.split()]


DRIVER = """
import pathlib, signal, sys, time
from experiments.sweeps.command import RunCommand
from experiments.sweeps.executors import Local

folder, *words = sys.argv[1:]
executor = Local(pathlib.Path(folder) / "submitit", at_once=1)
log = str(pathlib.Path(folder) / "log.txt")
executor.submit(RunCommand(), {"a": (words, folder, log)})
print("submitted", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["sweep", "job"])
def test_no_run_is_left_behind(tmp_path, counting, victim):
    """Neither if the sweep's process is killed, nor if that of the job is."""
    pytest.importorskip("submitit")
    arguments, history = counting
    words, *_ = arguments(10_000)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    try:
        wait_for(lambda: "step 3\n" in history())
        run = int(history().split()[2])
        assert is_running(run)
        (controller,) = children(driver.pid)
        (job,) = children(controller)
        os.kill(driver.pid if victim == "sweep" else job, signal.SIGKILL)
        for number in (run, job, controller):
            wait_for(lambda number=number: not is_running(number))
    finally:
        driver.kill()
        driver.wait()
    last = history().splitlines()[-1].split()[-1]
    saved = [path.name for path in (tmp_path / "work/checkpoints/last").iterdir()]
    assert last in saved  # it had time to save


def test_ctrl_c_in_the_terminal_reaches_no_run(tmp_path, counting):
    pytest.importorskip("submitit")
    arguments, history = counting
    words, *_ = arguments(25)
    driver = subprocess.Popen(
        [sys.executable, "-c", "import signal\nsignal.signal(2, print)\n" + DRIVER]
        + [str(tmp_path), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        wait_for(lambda: "step 3\n" in history())
        os.killpg(driver.pid, signal.SIGINT)
        wait_for(lambda: "finish\n" in history())
    finally:
        driver.kill()
        driver.wait()
    assert history().count("start") == 1


def test_slurm_states_come_from_squeue(tmp_path, monkeypatch):
    """With a program that prints what squeue prints."""
    pytest.importorskip("submitit")
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("sbatch", "srun", "scontrol", "squeue"):
        (fake / name).write_text("#!/bin/sh\necho '7_0|RUNNING'\necho '8|TIMEOUT'\n")
        (fake / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    executor = Slurm(tmp_path / "submitit", None, {})
    folder = tmp_path / "submitit" / "config"
    folder.mkdir(parents=True)
    for name, number in (("a", "7_0"), ("b", "8"), ("c", "9")):
        (folder / f"{name}.json").write_text(f'{{"job": "{number}"}}')
    names = [f"config/{name}" for name in "abcd"]
    assert [(each.name, each.id) for each in executor.find(names)] == [
        ("config/a", "7_0")
    ]
    submissions = [
        executor._submission(*pair) for pair in zip("abc", "789", strict=True)
    ]
    assert executor.states(submissions[1:]) == {"b": "TIMEOUT", "c": "COMPLETED"}
    (fake / "squeue").write_text("#!/bin/sh\necho 'no connection' >&2\nexit 1\n")
    assert executor.states(submissions) == {}  # unknown, not ended


def test_place_waits_for_the_end_in_slurm_only(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    Place().wait_for_the_end()
    assert slept == []
    Place(by_slurm=True).wait_for_the_end()
    assert len(slept) == 1
    assert slept[0] > 60
