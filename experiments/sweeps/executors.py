"""Where the jobs of a sweep run: on this machine or in SLURM, with submitit.

Both executors start jobs as processes that load a pickled function; SLURM decides when
and where. Shared by `experiments.tables`, `experiments.figures` and
`experiments.select`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from absl import flags

from experiments.sweeps import command
from experiments.sweeps.command import STOP_WITH_PARENT, Place
from experiments.tables.formats import pluralize
from mlti_jax._internal.extras import require
from mlti_jax._internal.progress import say
from mlti_jax._internal.storage import make_folder, read_json, write_json
from mlti_jax.errors import InputError

EXECUTOR = flags.DEFINE_enum(
    "executor", "local", ["local", "slurm"], "Where runs are executed."
)
JOBS = flags.DEFINE_integer(
    "jobs", None, "Number of parallel runs; default: 1, in SLURM no limit.", 1
)
PARTITION = flags.DEFINE_string("partition", None, "SLURM: partition of the jobs.")
TIME = flags.DEFINE_string(
    "time", "4h", "SLURM: time limit, such as 90min, 12h, 2d or 1-12:00:00."
)
CPUS = flags.DEFINE_integer("cpus", 4, "SLURM: CPU cores per job.", 1)
MEMORY = flags.DEFINE_string("mem", "8G", "SLURM: memory per job.")
GPUS = flags.DEFINE_integer("gpus", 0, "SLURM: GPUs per job.", 0)
SLURM = flags.DEFINE_list(
    "slurm", [], "SLURM: further options of sbatch, as in account=lab,qos=long."
)
SLURM_ONLY = ("partition", "time", "cpus", "mem", "gpus", "slurm")

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = "submitit"  # in a work directory: what submitit writes
SECONDS_BEFORE_KILL = 60.0
MINUTES_IN_A_YEAR = 365 * 24 * 60
# Seconds between SLURM's signal and the end of a job: enough to compile and to save.
SIGNAL_SECONDS = 120
MOST_REQUEUES = 1000  # at the time limit
LARGEST_ARRAY = 1000  # SLURM's default limit
# States of a job that will not run again, unless somebody requeues it.
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
WAITING, RUNNING = "PENDING", "RUNNING"


class Submission(NamedTuple):
    """A job that was submitted.

    Attributes:
      name: name of the job.
      job: submitit's job.
      slot: its position among the parallel jobs of this machine; 0 in SLURM.
    """

    name: str
    job: Any
    slot: int = 0

    @property
    def id(self) -> str:
        """Identifier in SLURM, or of the process."""
        return str(self.job.job_id)

    def answer(self) -> Any:
        """Return what the function returned; None if it did not end by itself.

        Raises:
          RuntimeError: if the function raised an exception, with its traceback.
        """
        if not self.job.paths.result_pickle.exists():
            return None
        if (error := self.job.exception()) is not None:
            raise RuntimeError(str(error))
        return self.job.result()

    def output(self) -> str:
        """Return what submitit's process has printed."""
        path = self.job.paths.stdout
        return path.read_text(errors="replace") if path.exists() else ""


class Local:
    """Runs jobs as processes of this machine, which end when this process ends.

    Args:
      folder: for submitit's files.
      at_once: number of parallel jobs, each on its share of the cores.
    """

    poll_seconds = 0.1
    is_slurm = False

    def __init__(self, folder: pathlib.Path, at_once: int) -> None:
        self._submitit = _import_submitit()
        self._folder, self.at_once = folder, at_once
        self._slots: dict[str, int] = {}

    def room(self, active: int) -> int:
        """Return how many more jobs can be submitted, next to `active` ones."""
        return self.at_once - active

    def find(self, names: Iterable[str]) -> list[Submission]:
        """Return the jobs with these names that an earlier process has submitted."""
        return []  # They end with that process.

    def submit(
        self, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]
    ) -> list[Submission]:
        """Start jobs.

        Args:
          function: a function or callable object that can be pickled; its last
            argument is the `Place` of the job.
          arguments: names of the jobs, and the other arguments of each.
        """
        return [self._start(name, function, given) for name, given in arguments.items()]

    def _start(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Submission:
        taken = set(self._slots.values())
        slot = next(n for n in range(self.at_once) if n not in taken)
        place = Place(
            tuple(sorted(cores_for_slot(slot, self.at_once))),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        # submitit names files after the process, whose number may have been used.
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        executor = self._submitit.LocalExecutor(folder)
        executor.update_parameters(timeout_min=MINUTES_IN_A_YEAR, stderr_to_stdout=True)
        with _by_value(), _tied_to_this_process():
            job = executor.submit(function, *arguments, place)
        self._slots[name] = slot
        return Submission(name, job, slot)

    def states(self, submissions: Iterable[Submission]) -> dict[str, str]:
        """Return the state of each job: `RUNNING`, or one of `ENDED`."""
        states = {}
        for each in submissions:
            states[each.name] = RUNNING
            if each.job.done():
                states[each.name] = "COMPLETED"
                self._slots.pop(each.name, None)
        return states

    def stop(self, submissions: list[Submission]) -> str:
        """Let all jobs save and end, and wait for them. Returns what happened."""
        say(f"stopping {pluralize(len(submissions), 'run')}")
        self._signal(submissions)
        _wait(submissions)
        return "stopped; progress is saved, run the same command again to resume"

    def end(self, submissions: list[Submission]) -> None:
        """Let all jobs save and end; kill those that do not."""
        self._signal(submissions)
        _wait(submissions, SECONDS_BEFORE_KILL)
        self._signal(submissions)  # the second time, a job kills its command
        _wait(submissions)

    def _signal(self, submissions: Iterable[Submission]) -> None:
        for each in submissions:
            if not each.job.done():
                # submitit's process passes it on to the job.
                os.kill(int(each.id), signal.SIGTERM)


class Slurm:
    """Submits jobs to SLURM as arrays; they do not end with this process.

    Args:
      folder: for submitit's files, on a disk that all nodes share.
      at_once: number of jobs of an array that may run at the same time; None: all.
      parameters: options of SLURM and submitit, by the names of submitit.
    """

    poll_seconds = 5.0
    is_slurm = True

    def __init__(
        self,
        folder: pathlib.Path,
        at_once: int | None,
        parameters: Mapping[str, Any],
    ) -> None:
        self._submitit = _import_submitit()
        missing = [
            name
            for name in ("sbatch", "squeue", "srun", "scontrol")
            if shutil.which(name) is None
        ]
        if missing:
            raise InputError(
                f"--executor=slurm needs SLURM's {', '.join(missing)} on this machine; "
                "run this command on a login node of the cluster"
            )
        self._folder, self.at_once = folder, at_once
        self._parameters = dict(parameters)

    def room(self, active: int) -> int:
        """Return how many more jobs can be submitted, next to `active` ones."""
        return LARGEST_ARRAY  # SLURM keeps to `at_once`.

    def find(self, names: Iterable[str]) -> list[Submission]:
        """Return the jobs with these names that wait or run in SLURM."""
        found = [
            self._submission(name, read_json(path, "remove it")["job"])
            for name in names
            if (path := self._record(name)).exists()
        ]
        states = self.states(found)
        return [each for each in found if states.get(each.name, "") not in ENDED]

    def _submission(self, name: str, number: str) -> Submission:
        return Submission(name, self._submitit.SlurmJob(self._folder, number))

    def _record(self, name: str) -> pathlib.Path:
        return self._folder / f"{name}.json"

    def submit(
        self, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]
    ) -> list[Submission]:
        """Submit jobs as one array; arguments as in `Local.submit`."""
        executor = self._submitit.SlurmExecutor(
            self._folder, max_num_timeout=MOST_REQUEUES
        )
        executor.update_parameters(
            **self._parameters, array_parallelism=self.at_once or LARGEST_ARRAY
        )
        inside = "SLURM_JOB_ID" in os.environ  # a job must not inherit our own size
        clean = self._submitit.helpers.clean_env if inside else contextlib.nullcontext
        place = Place(by_slurm=True)
        try:
            with _by_value(), clean(), executor.batch():
                jobs = [
                    executor.submit(function, *given, place)
                    for given in arguments.values()
                ]
        except self._submitit.core.utils.FailedJobError as error:
            raise InputError(f"SLURM refused the jobs: {error}") from error
        submissions = []
        for name, job in zip(arguments, jobs, strict=True):
            make_folder(self._record(name).parent)
            write_json(self._record(name), {"job": job.job_id})
            submissions.append(Submission(name, job))
        return submissions

    def states(self, submissions: Iterable[Submission]) -> dict[str, str]:
        """Return the states of jobs, by SLURM's names; none while SLURM is silent.

        Not from `sacct`, as submitit does, which needs a database of jobs.
        """
        submissions = list(submissions)
        if not submissions:
            return {}
        done = subprocess.run(
            ["squeue", "--noheader", "--states=all", "--array", "--format=%i|%T"]
            + [f"--user={os.getuid()}"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            say(f"squeue failed, trying again: {done.stderr.strip()}", once=True)
            return {}
        lines = [line.partition("|") for line in done.stdout.splitlines()]
        known = {number.strip(): state.strip() for number, _, state in lines}
        # SLURM forgets finished jobs after some minutes.
        return {each.name: known.get(each.id, "COMPLETED") for each in submissions}

    def stop(self, submissions: list[Submission]) -> str:
        """Leave the jobs to SLURM. Returns how to go on."""
        numbers = sorted({each.id.partition("_")[0] for each in submissions})
        if not numbers:
            return "stopped; run the same command again to go on"
        return (
            "stopped waiting; the jobs go on in SLURM. Run the same command again to "
            f"wait for them, or stop them with: scancel {' '.join(numbers)}"
        )

    def end(self, submissions: list[Submission]) -> None:
        """Leave the jobs to SLURM, and say so."""
        if submissions:
            say(self.stop(submissions))


def make_executor(workdir: pathlib.Path) -> Local | Slurm:
    """Return the executor that the flags choose, for a sweep in `workdir`."""
    folder = workdir / FOLDER
    if EXECUTOR.value == "local":
        return Local(folder, JOBS.value or 1)
    return Slurm(folder, JOBS.value, slurm_parameters())


def check_flags() -> None:
    """Raise `InputError` if a flag for SLURM is given without it, or is invalid."""
    if EXECUTOR.value == "slurm":
        slurm_parameters()
        return
    for name in SLURM_ONLY:
        if flags.FLAGS[name].present:
            raise InputError(f"--{name} requires --executor=slurm")


def slurm_parameters() -> dict[str, Any]:
    """Return the options of SLURM jobs by the names of submitit, from the flags."""
    parameters: dict[str, Any] = {
        "job_name": "mlti_jax",
        "time": minutes(TIME.value),
        "cpus_per_task": CPUS.value,
        "signal_delay_s": SIGNAL_SECONDS,
        "stderr_to_stdout": True,
        "setup": [f"export PYTHONPATH={shlex.quote(_python_path())}"],
    }
    if PARTITION.value:
        parameters["partition"] = PARTITION.value
    if GPUS.value:
        parameters["gpus_per_node"] = GPUS.value
    further = {"mem": MEMORY.value, "requeue": True}
    for option in SLURM.value:
        name, equals, value = option.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not name:
            raise InputError(f"--slurm has {option!r}; expected name=value")
        if name == "setup":  # a command in the job's shell
            parameters["setup"].append(value)
        elif name == "signal_delay_s":
            if not value.isdecimal():
                raise InputError(f"--slurm has {option!r}; expected seconds")
            parameters[name] = int(value)
        else:
            further[name] = value if equals else True
    return {**parameters, "additional_parameters": further}


def minutes(text: str) -> int:
    """Return a time limit in minutes, at least 1.

    Args:
      text: as in `90s`, `90min`, `12h` or `2d`, or in a format of SLURM: minutes,
        MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.
    """
    units = {"s": 1 / 60, "min": 1, "m": 1, "h": 60, "d": 24 * 60}
    if found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d)", text):
        total = float(found[1]) * units[found[2]]
    elif re.fullmatch(r"\d+-\d+(:\d+){0,2}", text):
        days, _, rest = text.partition("-")
        hours, minute, seconds = [*map(int, rest.split(":")), 0, 0][:3]
        total = int(days) * 24 * 60 + hours * 60 + minute + seconds / 60
    elif re.fullmatch(r"\d+(:\d+){0,2}", text):
        parts = [int(part) for part in text.split(":")]
        hours, minute, seconds = {
            1: [0, *parts, 0],
            2: [0, *parts],
            3: parts,
        }[len(parts)]
        total = hours * 60 + minute + seconds / 60
    else:
        total = 0
    if total <= 0:
        raise InputError(
            f"--time is {text!r}; expected a time such as 90min, 12h, 2d or 1-12:00:00"
        )
    return max(1, round(total))


def cores_for_slot(slot: int, slots: int) -> set[int]:
    """Return the cores of one of several parallel jobs.

    Disjoint sets of cores keep the thread pools of jobs from competing. Empty, for no
    restriction, if there are fewer cores than jobs or the platform has no CPU affinity.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = sorted(affinity(0)) if affinity else []
    return set(cores[slot::slots]) if len(cores) >= slots else set()


def _import_submitit() -> ModuleType:
    """Import submitit; `InputError` names the extra if it is missing.

    Without its configuration of `logging`, which closes the handlers of others.
    """
    with _environment({"SUBMITIT_LOG_LEVEL": "NOCONFIG"}):
        return require("submitit", "cluster")


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the context is open."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait(submissions: Iterable[Submission], seconds: float = float("inf")) -> None:
    deadline = time.monotonic() + seconds
    while any(not each.job.done() for each in submissions):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Pickle `command` by value, so a job starts without importing the package."""
    cloudpickle = require("cloudpickle", "cluster")
    cloudpickle.register_pickle_by_value(command)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(command)


@functools.cache
def _pipe() -> tuple[int, int]:
    """Return a pipe whose writing end is open until this process ends."""
    return os.pipe()


@contextlib.contextmanager
def _tied_to_this_process() -> Iterator[None]:
    """Start processes that stop with this process, but not at Ctrl-C.

    Their standard input is a pipe, which closes when this process ends, however it
    ends. `Place.enter` waits for that.
    """
    reading, _ = _pipe()
    try:
        standard_input = os.dup(0)
    except OSError:  # closed
        standard_input = None
    # Blocked signals stay blocked in the processes that start now; none is lost here.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.dup2(reading, 0)
        with _environment({STOP_WITH_PARENT: "1", "PYTHONPATH": _python_path()}):
            yield
    finally:
        if standard_input is None:
            os.close(0)
        else:
            os.dup2(standard_input, 0)
            os.close(standard_input)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _python_path() -> str:
    """Return a PYTHONPATH with which jobs find `experiments`."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
