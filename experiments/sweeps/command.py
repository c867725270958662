"""A job of a sweep that runs a command.

This module is pickled by value (`executors._by_value`) and uses the standard library
only. So a job's own process does not import the package, which takes 200 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from types import FrameType
from typing import Any, NamedTuple

STOP_WITH_PARENT = "MLTI_STOP_WITH_PARENT"  # as in `mlti_jax._internal.processes`
# What a scheduler tells the processes of a job. The command is a single process, and
# JAX or MPI must not take it for a part of something larger.
SCHEDULER_VARIABLES = ("SLURM", "SBATCH_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_")
PREEMPT_SIGNAL = "SUBMITIT_PREEMPT_SIGNAL"  # without "SIG"; read by submitit
SECONDS_TO_BE_ENDED = 900.0


class Place(NamedTuple):
    """Where a job runs.

    Attributes:
      cores: the only cores that it uses; none: no restriction.
      visible_gpus: the value of `CUDA_VISIBLE_DEVICES` for it, None to unset it. Only
        if it is not `by_slurm`, which chooses the GPUs.
      by_slurm: whether SLURM runs it, which ends a job after a signal, and perhaps
        starts it again.
    """

    cores: tuple[int, ...] = ()
    visible_gpus: str | None = None
    by_slurm: bool = False

    def enter(self) -> None:
        """Set up this process, and receive a signal when the sweep's process ends."""
        if self.cores:
            # Before threads start, which inherit it.
            os.sched_setaffinity(0, self.cores)
        if not self.by_slurm:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # submitit hides all GPUs
            if self.visible_gpus is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = self.visible_gpus
        # Ctrl-C in a terminal reaches all processes; the sweep's process decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if os.environ.pop(STOP_WITH_PARENT, ""):
            threading.Thread(target=_stop_at_end_of_input, daemon=True).start()

    def wait_for_the_end(self) -> None:
        """Wait until SLURM ends this process, after a signal that it has sent.

        If the process returned first, SLURM would take the job for a finished one, and
        not start it again.
        """
        if self.by_slurm:
            time.sleep(SECONDS_TO_BE_ENDED)


def _stop_at_end_of_input() -> None:
    """Send SIGTERM to this process when the other end of its input closes."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class RunCommand:
    """Runs a command as a job of submitit, which can requeue it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: threading.Thread | None = None
        self._signals = 0
        self._may_kill = False

    def __call__(self, command: list[str], folder: str, log: str, place: Place) -> int:
        """Run the command and return its exit code.

        Args:
          command: the words of the command. It saves its state and ends on SIGTERM.
          folder: where it runs.
          log: the file to which its output is appended.
          place: where this job runs.
        """
        self._may_kill = not place.by_slurm  # SLURM may signal several times
        signal.signal(signal.SIGTERM, self._stop_command)
        place.enter()
        prefixes = SCHEDULER_VARIABLES
        kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        array, number = (os.environ.get(f"SLURM_ARRAY_{n}_ID") for n in ("JOB", "TASK"))
        job = f"{array}_{number}" if array else os.environ.get("SLURM_JOB_ID")
        requeues = signal.Signals[f"SIG{os.environ.get(PREEMPT_SIGNAL, 'USR2')}"]
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "ab") as file:
            if job is not None:
                file.write(f"SLURM job {job} on {os.uname().nodename}\n".encode())
                file.flush()
            # SLURM sends this signal to all processes of the job. It is for this one
            # only, which stops the command and requeues the job.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {requeues})
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**kept, STOP_WITH_PARENT: "1"},
                # The command stops when this pipe closes, however this process ends.
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # In a thread, because `Popen.wait` holds a lock for which a signal handler
            # in this thread would wait forever.
            self._waiting = threading.Thread(target=self._process.wait)
            self._waiting.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._signals:  # before the command started
            self._process.terminate()
        self._waiting.join()
        code = self._process.wait()
        if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            place.wait_for_the_end()
        return code

    def checkpoint(self, *arguments: Any) -> Any:
        """Stop the command, and return the submission that resumes it."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None and self._waiting is not None:
            self._process.terminate()
            self._waiting.join()
        return DelayedSubmission(RunCommand(), *arguments)

    def _stop_command(self, number: int, frame: FrameType | None) -> None:
        """Let the command save and end; a second signal may end it at once."""
        self._signals += 1
        if self._process is not None:
            if self._signals > 1 and self._may_kill:
                self._process.kill()
            else:
                self._process.terminate()
