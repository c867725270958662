"""Runs jobs as processes of their own, several at a time; goes on where it stopped."""

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

from experiments.tables.formats import counted
from experiments.tables.jobs import Job, Place, arguments
from experiments.tables.state import (
    DONE,
    NO_DATA,
    format_left,
    logged,
    saved_step,
    seconds_left,
    state_of,
)
from experiments.tables.store import Results, record
from mlti_jax._internal.progress import format_metric, format_seconds, say, stop_signal
from mlti_jax.errors import InputError, Interrupted

ROOT = pathlib.Path(__file__).parents[2]
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_LINES = 60.0
SECONDS_TO_END = 60.0  # that a run is given when it is to end at once
TAIL = 12  # lines of the log of a run that failed


class Stopped(Interrupted):
    """A signal ended the runs; all is saved."""

    def __init__(self, signal_number: int):
        Exception.__init__(self, "stopped, saved; the same command goes on from there")
        self.exit_code = 128 + signal_number


class Failure(NamedTuple):
    """A job that came to nothing, and the end of what it said."""

    job: Job
    reason: str
    tail: str


class _Child(NamedTuple):
    """A job that is running."""

    job: Job
    process: subprocess.Popen
    log_start: int  # where in its log this attempt begins
    started: float
    slot: int  # of those that run at a time


def command_of(job: Job, place: Place) -> list[str]:
    """The command that runs a job."""
    return [
        sys.executable,
        *arguments(job, place.of(job), place.data_dir, place.albert),
    ]


def cores_of(slot: int, slots: int) -> set[int]:
    """A job's share of the cores, so that jobs don't wait for each other's threads.

    Empty for no restriction: where there are fewer cores than jobs, or cores can't be
    chosen.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = sorted(affinity(0)) if affinity else []
    return set(cores[slot::slots]) if len(cores) >= slots else set()


class Runner:
    """Runs what is missing of a list of jobs.

    Args:
      jobs: all that the tables need.
      place: where they find and leave things.
      folder: where results are recorded.
      at_once: how many run at a time, each on its share of the cores.
      command: makes the command of a job.
    """

    def __init__(
        self,
        jobs: list[Job],
        place: Place,
        folder: pathlib.Path,
        at_once: int = 1,
        command: Callable[[Job, Place], list[str]] = command_of,
    ):
        self._jobs, self._place, self._folder = jobs, place, folder
        self._at_once, self._command = at_once, command
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: list[_Child] = []
        self._failures: list[Failure] = []
        self._results = Results(folder)
        self._numbers: dict[Job, int] = {}  # of jobs that wait or run, for people
        self._total = 0
        self._last_line = 0.0

    def run(self) -> None:
        """Runs them; raises `Stopped` on a signal, `InputError` if any failed."""
        without_data = self._sort()
        with stop_signal() as stopped:
            try:
                self._run_waiting(stopped)
            except BaseException:
                self._end()
                raise
        if without_data:
            say(
                f"left out for want of data: {', '.join(sorted(without_data))} "
                f"({counted(without_data.total(), 'run')})"
            )
        if not self._total:
            raise InputError(
                "nothing can be run without data; see python -m mlti_jax.data.prepare"
                " --dataset=NAME, and --data_dir"
            )
        self._tell_failures()

    # ------------------------------------------------------------ before and after

    def _sort(self) -> collections.Counter[str]:
        """Finds what waits to be run, and of which datasets there is no data."""
        without_data: collections.Counter[str] = collections.Counter()
        done = 0
        for job in self._jobs:
            state = state_of(job, self._results, self._place)
            if state.kind == DONE:
                done += 1
            elif state.kind == NO_DATA:
                without_data[", ".join(state.absent)] += 1
            else:
                self._waiting.append(job)
        self._numbers = {job: done + n for n, job in enumerate(self._waiting, 1)}
        self._total = done + len(self._waiting)
        say(
            f"{counted(self._total, 'run')}: {done} done, {len(self._waiting)} to run; "
            f"{self._time_left()} left"
        )
        return without_data

    def _tell_failures(self) -> None:
        if not self._failures:
            return
        for job, reason, tail in self._failures:
            say(f"\n{job.name} failed ({reason}); the end of its log:\n{tail}")
        logs = self._place.workdir / "logs"
        raise InputError(
            f"{len(self._failures)} of {self._total} runs failed: "
            f"{', '.join(failure.job.name for failure in self._failures)}. Their logs "
            f"are in {logs}; the same command tries them again"
        )

    # ------------------------------------------------------------------ meanwhile

    def _run_waiting(self, stopped: Callable[[], int]) -> None:
        self._last_line = time.monotonic()
        while self._waiting or self._running:
            if number := stopped():
                self._stop(number)
            while self._waiting and len(self._running) < self._at_once:
                self._start(self._waiting.popleft())
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for child in [c for c in self._running if c.process.poll() is not None]:
                self._running.remove(child)
                self._settle(child)
            if time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
                for child in self._running:
                    step, _ = logged(self._place.of(child.job))
                    self._tell(child.job, f"step {step:,} of {child.job.steps:,}")

    def _start(self, job: Job) -> None:
        taken = {child.slot for child in self._running}
        slot = next(n for n in range(self._at_once) if n not in taken)
        cores = cores_of(slot, self._at_once)
        log = self._place.log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            log_start = file.tell()
            process = subprocess.Popen(
                self._command(job, self._place),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # A terminal's Ctrl-C would reach it too, and a second one ends a run
                # before it has saved.
                start_new_session=True,
            )
        if cores:
            # Before it has threads, which will have the same.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        self._running.append(_Child(job, process, log_start, time.monotonic(), slot))
        step = saved_step(self._place.of(job))
        self._tell(job, f"going on from step {step:,}" if step else "started")

    def _settle(self, child: _Child) -> None:
        """Records the result of a job that has ended, or its failure."""
        job, code = child.job, child.process.returncode
        if code == 0 and (self._place.of(job) / "results.json").exists():
            result = record(self._folder, job, self._place.of(job))
            self._results = Results(self._folder)
            seconds = format_seconds(time.monotonic() - child.started)
            metric = format_metric(result["metric"], result["mean"])
            self._tell(job, f"{metric} in {seconds}")
            return
        reason = f"exit code {code}" if code else "it left no results.json"
        text = self._place.log(job).read_bytes()[child.log_start :]
        lines = text.decode(errors="replace").splitlines()
        self._failures.append(Failure(job, reason, "\n".join(lines[-TAIL:])))
        self._tell(job, f"failed ({reason})")

    def _stop(self, number: int) -> None:
        """Lets all children save and end."""
        say(f"stopping {counted(len(self._running), 'run')}")
        for child in self._running:
            child.process.send_signal(signal.SIGINT)
        for child in self._running:
            child.process.wait()
        raise Stopped(number)

    def _end(self) -> None:
        """Ends children that still run, by force if need be."""
        for child in self._running:
            child.process.send_signal(signal.SIGINT)
        for child in self._running:
            try:
                child.process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def _tell(self, job: Job, text: str) -> None:
        self._last_line = time.monotonic()
        place = f"[{self._numbers[job]}/{self._total}]"
        say(f"{place} {job.name}: {text}; {self._time_left()} left")

    def _time_left(self) -> str:
        left = [
            seconds_left(job, saved_step(self._place.of(job)), self._results)
            for job in self._waiting
        ]
        for child in self._running:
            step, rate = logged(self._place.of(child.job))
            left.append(seconds_left(child.job, step, self._results, rate))
        return format_left(left, self._at_once)
