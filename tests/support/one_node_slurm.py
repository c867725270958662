"""A SLURM cluster of this machine alone, with its own daemons, ports and files.

`python -m tests.support.one_node_slurm COMMAND...` runs a command inside of it, and
stops it afterwards. It needs Debian's packages `slurm-wlm` and `munge` (or the same
programs from elsewhere), but no systemd, cgroups or database; a node in a container is
enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scontrol")
SECONDS = 30.0  # in which the node becomes idle
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

# `cred_expire` also is the time for which a requeued job waits: 5 s is the least,
# instead of 2 minutes.
CONFIG = """\
ClusterName=one_node
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
InactiveLimit=0
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=100000 State=UNKNOWN
PartitionName=tests Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs of SLURM and MUNGE that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


@contextlib.contextmanager
def one_node_slurm(cpus: int = 4) -> Iterator[dict[str, str]]:
    """Run a cluster of one node while the context is open.

    Args:
      cpus: the number of jobs with one core that it runs at the same time, whatever
        the machine has.

    Yields:
      The environment variables of its commands (`PATH`, `SLURM_CONF`).

    Raises:
      RuntimeError: if the node is not idle within half a minute, with the logs.
    """
    # Not pytest's folder: a socket's path has at most 107 characters.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))
    variables = {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    environment = {**os.environ, **variables}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _write_files(folder, cpus)
        for number, command in enumerate(_daemons(folder)):
            log = open(folder / f"daemon{number}.log", "wb")
            daemons.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            )
            log.close()
            _wait_for(folder, environment, number)
        yield variables
    finally:
        if len(daemons) == 3:
            # Ends all jobs, which are not children of these daemons.
            subprocess.run(
                ["scancel", "--quiet", "--full", f"--user={_user()}"],
                env=environment,
                capture_output=True,
                timeout=SECONDS,
            )
            _wait_for_no_jobs(environment)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    """Let the process that starts now end when this one is killed (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _write_files(folder: pathlib.Path, cpus: int) -> None:
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    text = CONFIG.format(
        node=socket.gethostname().partition(".")[0],
        controller_port=_free_port(),
        node_port=_free_port(),
        user=_user(),
        folder=folder,
        cpus=cpus,
    )
    (folder / "slurm.conf").write_text(text)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _daemons(folder: pathlib.Path) -> list[list[str]]:
    """Return the commands of the daemons, which stay in the foreground."""
    munge = folder / "munge"
    names = {"key": "key", "log": "log", "pid": "pid", "seed": "seed"}
    config = str(folder / "slurm.conf")
    return [
        ["munged", "--foreground", "--force", f"--socket={munge / 'socket'}"]
        + [f"--{option}-file={munge / name}" for option, name in names.items()],
        ["slurmctld", "-D", "-c", "-f", config],
        ["slurmd", "-D", "-c", "-f", config],
    ]


def _wait_for(folder: pathlib.Path, environment: dict[str, str], number: int) -> None:
    """Wait until a daemon answers."""
    deadline = time.monotonic() + SECONDS
    while not _answers(folder, environment, number):
        if time.monotonic() > deadline:
            logs = sorted([*folder.glob("*.log"), folder / "munge" / "log"])
            ends = [
                f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}"
                for path in logs
                if path.exists()
            ]
            raise RuntimeError("SLURM does not start\n" + "\n".join(ends))
        time.sleep(0.1)


def _answers(folder: pathlib.Path, environment: dict[str, str], number: int) -> bool:
    if number == 0:
        return (folder / "munge" / "socket").exists()
    command = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode == 0 and (number == 1 or done.stdout.split() == ["idle"])


def _wait_for_no_jobs(environment: dict[str, str]) -> None:
    deadline = time.monotonic() + SECONDS
    command = ["squeue", "--noheader", "--format=%i"]
    while time.monotonic() < deadline:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode or not done.stdout.strip():
            return
        time.sleep(0.2)


def main(command: list[str]) -> int:
    """Run a command with the cluster; return its exit code."""
    if missing := missing_programs():
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    with one_node_slurm() as variables:
        environment = {**os.environ, **variables}
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
