"""Run jobs in parallel processes; interrupted jobs are resumed."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from experiments.tables.formats import pluralize
from experiments.tables.jobs import Job, Paths, command_arguments
from experiments.tables.results import Results, record
from experiments.tables.status import (
    DONE,
    NO_DATA,
    format_left,
    job_status,
    logged_progress,
    saved_step,
    seconds_left,
)
from mlti_jax._internal.locks import is_locked
from mlti_jax._internal.processes import STOP_WITH_PARENT
from mlti_jax._internal.progress import format_metric, format_seconds, say, stop_signal
from mlti_jax.errors import InputError, Interrupted

ROOT = pathlib.Path(__file__).parents[2]
POLL_SECONDS = 0.1
SECONDS_BETWEEN_MESSAGES = 60.0
SECONDS_BEFORE_KILL = 60.0
TAIL = 12  # lines of the log of a failed run that are printed


class Stopped(Interrupted):
    """A signal stopped the runs. All progress is saved and can be resumed."""

    def __init__(self, signal_number: int) -> None:
        Exception.__init__(
            self, "stopped; progress is saved, run the same command again to resume"
        )
        self.exit_code = 128 + signal_number


class Failure(NamedTuple):
    """A failed job, why it failed, and the end of its log."""

    job: Job
    reason: str
    tail: str


class _RunningJob(NamedTuple):
    """A job and its process."""

    job: Job
    process: subprocess.Popen[bytes]
    log_start: int  # position in its log where this attempt begins
    started: float  # time
    slot: int  # index among the parallel jobs


def job_command(job: Job, paths: Paths) -> list[str]:
    """Return the command that runs a job."""
    return [
        sys.executable,
        *command_arguments(job, paths.work(job), paths.data_dir, paths.albert),
    ]


def cores_for_slot(slot: int, slots: int) -> set[int]:
    """Return the cores of one of several parallel jobs.

    Disjoint sets of cores keep the thread pools of jobs from competing. Empty, for no
    restriction, if there are fewer cores than jobs or the platform has no CPU affinity.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = sorted(affinity(0)) if affinity else []
    return set(cores[slot::slots]) if len(cores) >= slots else set()


class Runner:
    """Runs the jobs of a list that have no result yet.

    Args:
      jobs: the jobs.
      paths: folders that they read from and write to.
      folder: folder in which results are recorded.
      at_once: number of parallel jobs, each on its share of the cores.
      command: returns the command of a job.
    """

    def __init__(
        self,
        jobs: list[Job],
        paths: Paths,
        folder: pathlib.Path,
        at_once: int = 1,
        command: Callable[[Job, Paths], list[str]] = job_command,
    ) -> None:
        self._jobs, self._paths, self._folder = jobs, paths, folder
        self._at_once, self._command = at_once, command
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: list[_RunningJob] = []
        self._failures: list[Failure] = []
        self._announced: set[Job] = set()  # that another process runs
        self._results = Results(folder)
        self._numbers: dict[Job, int] = {}  # positions of the jobs to run
        self._total = 0
        self._last_message = 0.0

    def run(self) -> None:
        """Run the jobs; raise `Stopped` on a signal, `InputError` if any failed."""
        without_data = self._select()
        with stop_signal() as stopped:
            try:
                self._run_waiting(stopped)
            except BaseException:
                self._terminate()
                raise
        if without_data:
            say(
                f"skipped, dataset not prepared: {', '.join(sorted(without_data))} "
                f"({pluralize(without_data.total(), 'run')})"
            )
        if not self._total:
            raise InputError(
                "no dataset of these runs is prepared; see python -m "
                "mlti_jax.data.prepare --dataset=NAME, and --data_dir"
            )
        self._report_failures()

    def _select(self) -> collections.Counter[str]:
        """Queue the jobs to run. Counts the others by their unprepared datasets."""
        without_data: collections.Counter[str] = collections.Counter()
        done = 0
        for job in self._jobs:
            status = job_status(job, self._results, self._paths)
            if status.kind == DONE:
                done += 1
            elif status.kind == NO_DATA:
                without_data[", ".join(status.unprepared)] += 1
            else:
                self._waiting.append(job)
        self._numbers = {job: done + n for n, job in enumerate(self._waiting, 1)}
        self._total = done + len(self._waiting)
        say(
            f"{pluralize(self._total, 'run')}: {done} done, {len(self._waiting)} to "
            f"run; {self._time_left()} left"
        )
        return without_data

    def _report_failures(self) -> None:
        if not self._failures:
            return
        for job, reason, tail in self._failures:
            say(f"\n{job.name} failed ({reason}); the end of its log:\n{tail}")
        raise InputError(
            f"{len(self._failures)} of {self._total} runs failed: "
            f"{', '.join(failure.job.name for failure in self._failures)}. Their logs "
            f"are in {self._paths.workdir}/logs; run the same command again to retry"
        )

    def _run_waiting(self, stopped: Callable[[], int]) -> None:
        self._last_message = time.monotonic()
        while self._waiting or self._running:
            if number := stopped():
                self._stop(number)
            while len(self._running) < self._at_once and (job := self._next_job()):
                self._start(job)
            time.sleep(POLL_SECONDS)
            for child in [c for c in self._running if c.process.poll() is not None]:
                self._running.remove(child)
                self._finish(child)
            if time.monotonic() - self._last_message > SECONDS_BETWEEN_MESSAGES:
                for child in self._running:
                    step, _ = logged_progress(self._paths.work(child.job))
                    self._report(child.job, f"step {step:,} of {child.job.steps:,}")

    def _next_job(self) -> Job | None:
        """Return a waiting job whose work directory is free; None if there is none.

        The run of an earlier process that was killed still saves its state.
        """
        for job in self._waiting:
            if not is_locked(self._paths.work(job)):
                self._waiting.remove(job)
                self._announced.discard(job)
                return job
            if job not in self._announced:
                self._announced.add(job)
                self._report(job, "another process is still running it; waiting")
        return None

    def _start(self, job: Job) -> None:
        taken = {child.slot for child in self._running}
        slot = next(n for n in range(self._at_once) if n not in taken)
        cores = cores_for_slot(slot, self._at_once)
        log = self._paths.log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            log_start = file.tell()
            process = subprocess.Popen(
                self._command(job, self._paths),
                cwd=ROOT,
                # The job stops when this pipe closes, however this process ends.
                stdin=subprocess.PIPE,
                env={**os.environ, STOP_WITH_PARENT: "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                # Otherwise Ctrl-C in the terminal would also reach the job, and a
                # second signal ends a job before it has saved.
                start_new_session=True,
            )
        if cores:
            # Set before the process starts threads, which inherit it.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        self._running.append(
            _RunningJob(job, process, log_start, time.monotonic(), slot)
        )
        step = saved_step(self._paths.work(job))
        self._report(job, f"resumed at step {step:,}" if step else "started")

    def _finish(self, child: _RunningJob) -> None:
        """Record the result of a job that has ended, or its failure."""
        job, code = child.job, child.process.returncode
        if code == 0 and (self._paths.work(job) / "results.json").exists():
            result = record(self._folder, job, self._paths.work(job))
            self._results = Results(self._folder)
            seconds = format_seconds(time.monotonic() - child.started)
            metric = format_metric(result["metric"], result["mean"])
            self._report(job, f"{metric} in {seconds}")
            return
        reason = f"exit code {code}" if code else "it wrote no results.json"
        text = self._paths.log(job).read_bytes()[child.log_start :]
        lines = text.decode(errors="replace").splitlines()
        self._failures.append(Failure(job, reason, "\n".join(lines[-TAIL:])))
        self._report(job, f"failed ({reason})")

    def _stop(self, number: int) -> None:
        """Let all running jobs save and exit."""
        say(f"stopping {pluralize(len(self._running), 'run')}")
        for child in self._running:
            child.process.send_signal(signal.SIGINT)
        for child in self._running:
            child.process.wait()
        raise Stopped(number)

    def _terminate(self) -> None:
        """End jobs that are still running; kill those that do not react."""
        for child in self._running:
            child.process.send_signal(signal.SIGINT)
        for child in self._running:
            try:
                child.process.wait(SECONDS_BEFORE_KILL)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def _report(self, job: Job, text: str) -> None:
        self._last_message = time.monotonic()
        position = f"[{self._numbers[job]}/{self._total}]"
        say(f"{position} {job.name}: {text}; {self._time_left()} left")

    def _time_left(self) -> str:
        left = [
            seconds_left(job, saved_step(self._paths.work(job)), self._results)
            for job in self._waiting
        ]
        for child in self._running:
            step, rate = logged_progress(self._paths.work(child.job))
            left.append(seconds_left(child.job, step, self._results, rate))
        return format_left(left, self._at_once)
