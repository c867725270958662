"""Run the jobs of a list that have no result; interrupted jobs are resumed."""

from __future__ import annotations

import collections
import itertools
import pathlib
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from experiments.sweeps.command import RunCommand
from experiments.sweeps.executors import (
    ENDED,
    ROOT,
    RUNNING,
    WAITING,
    Local,
    Slurm,
    Submission,
)
from experiments.tables.formats import pluralize
from experiments.tables.jobs import Job, Paths, command_arguments
from experiments.tables.results import Result, Results, record
from experiments.tables.status import (
    DONE,
    NO_DATA,
    STALE,
    format_left,
    job_status,
    logged_progress,
    saved_step,
    seconds_left,
)
from mlti_jax._internal.locks import is_locked
from mlti_jax._internal.progress import format_metric, format_seconds, say, stop_signal
from mlti_jax._internal.revision import revision
from mlti_jax.errors import InputError, Interrupted

SECONDS_BETWEEN_MESSAGES = 60.0
SECONDS_TO_APPEAR = 15.0  # of a file that another node has written
TAIL = 12  # lines of the log of a failed run that are printed


class Stopped(Interrupted):
    """A signal stopped the runs. All progress is saved and can be resumed."""

    def __init__(
        self,
        signal_number: int,
        message: str = "stopped; progress is saved, run the same command again to "
        "resume",
    ) -> None:
        Exception.__init__(self, message)
        self.exit_code = 128 + signal_number


class Failure(NamedTuple):
    """A failed job, why it failed, and the end of its log."""

    job: Job
    reason: str
    tail: str


class _Active:
    """A job that was submitted and has not ended."""

    def __init__(self, job: Job, submission: Submission, log_start: int) -> None:
        self.job, self.submission = job, submission
        self.log_start = log_start  # position in its log where this attempt begins
        self.started: float | None = None  # time; None while it waits


def job_command(job: Job, paths: Paths) -> list[str]:
    """Return the command that runs a job.

    A job that tests on another dataset takes over the training of the job without it,
    if that is finished.
    """
    words = command_arguments(job, paths.work(job), paths.data_dir, paths.albert)
    training = job.training
    if training is not None and (paths.work(training) / "results.json").exists():
        words.append(f"--trained={paths.work(training)}")
    return [sys.executable, *words]


class Runner:
    """Runs the jobs of a list that have no result yet.

    Args:
      jobs: the jobs.
      paths: folders that they read from and write to.
      folder: folder in which results are recorded.
      executor: runs them.
      command: returns the command of a job.
      is_stale: whether a result is to be replaced. The work directory of its run, if it
        is still there, is kept under another name.
    """

    def __init__(
        self,
        jobs: list[Job],
        paths: Paths,
        folder: pathlib.Path,
        executor: Local | Slurm,
        command: Callable[[Job, Paths], list[str]] = job_command,
        is_stale: Callable[[Result], bool] = lambda result: False,
    ) -> None:
        revision()  # of the code that this process has, before files change
        self._jobs, self._paths, self._folder = jobs, paths, folder
        self._executor, self._command = executor, command
        self._is_stale = is_stale
        self._waiting: list[Job] = []
        self._active: list[_Active] = []
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
            except Stopped:
                raise
            except BaseException:
                self._executor.end([each.submission for each in self._active])
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
            status = job_status(job, self._results, self._paths, self._is_stale)
            if status.kind == STALE:
                self._set_aside(job)
                self._waiting.append(job)
            elif status.kind == DONE or self._record_finished(job):
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

    def _set_aside(self, job: Job) -> None:
        """Rename the work directory of a run that is run again, if it exists."""
        work = self._paths.work(job)
        if not (work / "config.json").exists() or is_locked(work):
            return
        names = (work.with_name(f"{work.name}.stale{n}") for n in itertools.count())
        new = next(path for path in names if not path.exists())
        work.rename(new)
        say(f"{job.name} is stale and runs again; its work directory is now {new}")

    def _record_finished(self, job: Job) -> bool:
        """Record the result of a job that finished when nobody waited for it.

        Returns whether it is a result of the current settings.
        """
        work = self._paths.work(job)
        if not (work / "results.json").exists() or is_locked(work):
            return False
        record(self._folder, job, work)
        self._results = Results(self._folder)
        return self._results.get(job) is not None

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
        self._attach()
        while self._waiting or self._active:
            if number := stopped():
                self._stop(number)
            self._submit(self._free_jobs(self._executor.room(len(self._active))))
            self._pause(stopped)
            self._update()
            if time.monotonic() - self._last_message > SECONDS_BETWEEN_MESSAGES:
                self._report_progress()

    def _pause(self, stopped: Callable[[], int]) -> None:
        """Wait until the executor is to be asked again, or a signal arrives."""
        end = time.monotonic() + self._executor.poll_seconds
        while (left := end - time.monotonic()) > 0 and not stopped():
            time.sleep(min(left, 0.1))

    def _attach(self) -> None:
        """Find the jobs that an earlier process has submitted."""
        by_name = {job.name: job for job in self._waiting}
        for submission in self._executor.find(by_name):
            job = by_name[submission.name]
            self._waiting.remove(job)
            self._active.append(_Active(job, submission, 0))
            self._report(job, f"already submitted (job {submission.id})")

    def _free_jobs(self, most: int) -> list[Job]:
        """Take up to `most` waiting jobs whose work directories are free.

        The run of an earlier process that was killed still saves its state.
        """
        found: list[Job] = []
        for job in list(self._waiting):
            if len(found) == most:
                break
            if not is_locked(self._paths.work(job)):
                self._waiting.remove(job)
                self._announced.discard(job)
                found.append(job)
            elif job not in self._announced:
                self._announced.add(job)
                self._report(job, "another process is still running it; waiting")
        return found

    def _submit(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        arguments = {
            job.name: (
                list(map(str, self._command(job, self._paths))),
                str(ROOT),
                str(self._paths.log(job)),
            )
            for job in jobs
        }
        logs = [self._paths.log(job) for job in jobs]
        starts = [log.stat().st_size if log.exists() else 0 for log in logs]
        submissions = self._executor.submit(RunCommand(), arguments)
        self._active += map(_Active, jobs, submissions, starts)
        if self._executor.is_slurm:
            number = submissions[0].id.partition("_")[0]
            say(f"submitted {pluralize(len(jobs), 'run')} as SLURM job {number}")
        else:
            self._update()

    def _update(self) -> None:
        """Ask the executor for the states of all jobs, and report what changed."""
        states = self._executor.states(each.submission for each in self._active)
        for each in list(self._active):
            state = states.get(each.submission.name)
            if state in ENDED:
                self._active.remove(each)
                self._finish(each, state)
            elif state == RUNNING and each.started is None:
                each.started = time.monotonic()
                step = saved_step(self._paths.work(each.job))
                text = f"resumed at step {step:,}" if step else "started"
                self._report(each.job, text)
            elif state == WAITING and each.started is not None:
                each.started = None
                self._report(each.job, "requeued")

    def _finish(self, ended: _Active, state: str) -> None:
        """Record the result of a job that has ended, or its failure."""
        job = ended.job
        result, reason, said = self._outcome(ended, state)
        if result is not None:
            self._results = Results(self._folder)
            metric = format_metric(result["metric"], result["mean"])
            seconds = ""
            if ended.started is not None:
                seconds = f" in {format_seconds(time.monotonic() - ended.started)}"
            self._report(job, f"{metric}{seconds}")
            return
        log = self._paths.log(job)
        text = log.read_bytes()[ended.log_start :] if log.exists() else b""
        texts = (text.decode(errors="replace"), said)
        tail = [line for each in texts for line in each.splitlines()[-TAIL:]]
        self._failures.append(Failure(job, reason, "\n".join(tail)))
        self._report(job, f"failed ({reason})")

    def _outcome(self, ended: _Active, state: str) -> tuple[Result | None, str, str]:
        """Return a job's result, or why it failed and what submitit says about it."""
        work = self._paths.work(ended.job)
        by_itself = self._executor.is_slurm and state == "COMPLETED"
        deadline = time.monotonic() + SECONDS_TO_APPEAR * by_itself
        while True:
            try:
                code = ended.submission.answer()
            except RuntimeError as error:
                return None, "the job failed", str(error)
            if (work / "results.json").exists() and code in (0, None):
                return record(self._folder, ended.job, work), "", ""
            if code is not None or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if code:
            return None, f"exit code {code}", ""
        if code is None:
            by = f"SLURM job {ended.submission.id}: {state}"
            reason = by if self._executor.is_slurm else "it was killed"
            return None, reason, ended.submission.output()
        return None, "it wrote no results.json", ""

    def _stop(self, number: int) -> None:
        """Let all running jobs save and exit, or leave them to SLURM."""
        done = self._executor.stop([each.submission for each in self._active])
        raise Stopped(number, done)

    def _report_progress(self) -> None:
        """Report the step of each run, and how many wait in SLURM."""
        for each in self._active:
            if each.started is not None:
                step, _ = logged_progress(self._paths.work(each.job))
                self._report(each.job, f"step {step:,} of {each.job.steps:,}")
        waiting = sum(each.started is None for each in self._active)
        if waiting:
            self._last_message = time.monotonic()
            say(f"{pluralize(waiting, 'run')} waiting in SLURM, see squeue")

    def _report(self, job: Job, text: str) -> None:
        self._last_message = time.monotonic()
        position = f"[{self._numbers[job]}/{self._total}]"
        say(f"{position} {job.name}: {text}; {self._time_left()} left")

    def _time_left(self) -> str:
        left = [
            seconds_left(job, saved_step(self._paths.work(job)), self._results)
            for job in self._waiting
        ]
        for each in self._active:
            step, rate = logged_progress(self._paths.work(each.job))
            left.append(seconds_left(each.job, step, self._results, rate))
        running = sum(each.started is not None for each in self._active)
        return format_left(left, self._executor.at_once or max(running, 1))
