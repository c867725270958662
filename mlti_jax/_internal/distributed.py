"""Runs of several processes: how they start, agree, and end.

All processes run the same program on the same config, each on its own devices. What
depends on a clock, a disk or a signal can differ between them, so process 0 decides it
and shares its decision. In a single process, all functions here do nothing or call
their argument, and JAX is not initialized earlier than without them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from mlti_jax.errors import InputError, Interrupted

T = TypeVar("T")
PyTree = Any
Describe = Callable[[Exception], str | None]

# Clusters whose processes JAX starts and numbers itself; see `jax._src.clusters`.
_CLUSTERS = ("slurm", "ompi", "gcetpu", "gketpu")
_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# A process that does not answer for so long is lost. Accelerators wait for it in a
# collective; on CPUs, a closed connection is noticed at once.
_HEARTBEAT_SECONDS = 30
# Waiting for the last process: it may still compile, load data or write a report.
_START_SECONDS = 300
_END_SECONDS = 600
# Bytes of a message that are sent together with its length.
_HEADER, _SHORT = 8, 1024


class Cluster(NamedTuple):
    """How a process joins the others; None for what JAX detects.

    Attributes:
      address: `HOST:PORT` of process 0.
      number: number of processes.
      process: index of this process, from 0.
    """

    address: str | None
    number: int | None
    process: int | None


# ------------------------------------------------------------------ start and end


def find_cluster(flag: str | None) -> Cluster | None:
    """Return how this process joins a run of several processes; None if it is alone.

    Looks at the flag, then at `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID`, then at JAX's own detection of SLURM, Open MPI and TPU pods.

    Args:
      flag: `HOST:PORT,NUM,ID`, or None.

    Raises:
      InputError: if a value is invalid or missing.
    """
    address, number, process = (os.environ.get(name) for name in _VARIABLES)
    if flag is not None:
        parts = flag.split(",")
        if len(parts) != 3:
            raise InputError(
                f"--distributed={flag}; expected HOST:PORT,NUM,ID: the address of "
                "process 0, the number of processes, and the index of this process"
            )
        address, number, process = parts
        return _alone_or(_checked(address, number, process, f"--distributed={flag}"))
    if number is not None or process is not None:
        given = dict(zip(_VARIABLES, (address, number, process), strict=True))
        missing = [name for name, value in given.items() if not value]
        if missing:
            raise InputError(
                f"{', '.join(missing)} must be set too, as "
                f"{' and '.join(set(given) - set(missing))} is; or give "
                "--distributed=HOST:PORT,NUM,ID"
            )
        values = (address or "", number or "", process or "")
        return _alone_or(_checked(*values, ", ".join(_VARIABLES)))
    return _detected()


def _checked(address: str, number: str, process: str, where: str) -> Cluster:
    host, _, port = address.rpartition(":")
    numbers = (port, number, process)
    if not host or not all(text.isascii() and text.isdigit() for text in numbers):
        raise InputError(
            f"{where}: the address is {address!r}, the number of processes {number!r} "
            f"and the index {process!r}; expected HOST:PORT and two integers"
        )
    if not int(process) < int(number) or not 0 < int(port) < 2**16:
        raise InputError(
            f"{where}: expected a port below 65536, and an index from 0 to the number "
            "of processes - 1"
        )
    return Cluster(address, int(number), int(process))


def _alone_or(cluster: Cluster) -> Cluster | None:
    return None if cluster.number == 1 else cluster


def _detected() -> Cluster | None:
    # Inside of an allocation, an interactive shell has the variables of all of its
    # tasks, but is a step of a single one.
    if os.environ.get("SLURM_STEP_NUM_TASKS") == "1":
        return None
    # Open MPI 5 does not set the variable by which JAX recognizes it.
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
    if size != "1" and "OMPI_MCA_orte_hnp_uri" not in os.environ:
        address = os.environ.get(_VARIABLES[0])
        if address is None:
            raise InputError(
                f"this is one of {size} processes of Open MPI, which does not give the "
                "address of process 0; set JAX_COORDINATOR_ADDRESS=HOST:PORT"
            )
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", "")
        return _checked(address, size, rank, "Open MPI")
    # What `jax.distributed.initialize` looks at, which has no public name.
    from jax._src import clusters

    for kind in clusters.ClusterEnv._cluster_types:
        if kind.name in _CLUSTERS and kind.is_env_present():
            if kind.get_process_count() == 1:
                return None
            return Cluster(None, None, None)
    return None


@contextlib.contextmanager
def joined(cluster: Cluster | None, describe: Describe) -> Iterator[None]:
    """Join the other processes while the context is open; nothing for None.

    Must be entered before JAX is used. If one process fails or is killed, the others
    cannot continue: each ends with one error.

    Args:
      cluster: see `find_cluster`.
      describe: returns the text of an error that a user or the machine causes; None
        for other errors, which are printed with their traceback.
    """
    if cluster is None:
        yield
        return
    _initialize(cluster)
    try:
        yield
    except Interrupted:  # on all processes at the same step
        _leave(describe)
        raise
    except KeyboardInterrupt:  # a second Ctrl-C
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    except Exception as error:
        _end(error, describe)
    else:
        _leave(describe)


def _initialize(cluster: Cluster) -> None:
    host = (cluster.address or "").rpartition(":")[0]
    loopback = host in ("localhost", "127.0.0.1")
    # A signal is handled here, not by JAX's own service.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            cluster.address,
            cluster.number,
            cluster.process,
            coordinator_bind_address=cluster.address if loopback else None,
            cluster_detection_method="deactivate" if cluster.address else None,
            initialization_timeout=_START_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_END_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes of this run did not find each other: {_first_line(error)}; "
            "start the same command on all of them, and check that process 0 can be "
            "reached"
        ) from error


def _leave(describe: Describe) -> None:
    """Wait for the others, and disconnect."""
    try:
        jax.distributed.shutdown()
    except Exception as error:
        _end(error, describe)


def _end(error: Exception, describe: Describe) -> None:
    """Print an error and end this process without waiting for the others.

    JAX waits at the end of a process for all others, of which one may be gone.
    """
    code = 2
    if _is_lost(error):
        _print_error(
            "lost the connection to another process of this run, which has failed or "
            "was killed; its own output has the reason. Run the same command on all "
            "processes to resume from the last checkpoint"
        )
    elif isinstance(error, _ElsewhereError):
        pass  # Process 0 prints it.
    elif (text := describe(error)) is not None:
        _print_error(text)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if jax.process_index() == 0:
        # The others may be about to print the same error; they end when this does.
        time.sleep(1)
    os._exit(code)


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed.
        print(f"error: {text}", file=sys.stderr)


def _is_lost(error: Exception) -> bool:
    """Whether JAX failed because another process does not answer."""
    if isinstance(error, InputError):
        return False
    text = str(error).lower()
    if "gloo" in text:  # a `ValueError` if the program has not been started
        return True
    signs = ("connection", "peer", "heartbeat", "unavailable", "coordination")
    is_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return is_jax and any(sign in text for sign in signs)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# ------------------------------------------------------------------------ agreeing


def number_of_processes() -> int:
    """Return the number of processes of this run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this is process 0, which writes all files and messages."""
    return number_of_processes() == 1 or jax.process_index() == 0


class _ElsewhereError(Exception):
    """Process 0 failed; it prints the reason."""


def from_first(function: Callable[..., T], *args: object) -> T:
    """Call a function on process 0 and return its result on all of them.

    All processes must call this at the same place.

    Args:
      function: returns something that can be pickled. If it raises an exception, this
        raises on all processes.
      *args: its arguments.
    """
    if number_of_processes() == 1:
        return function(*args)
    found: Any = None
    failure: Exception | None = None
    if is_first():
        try:
            found = function(*args)
        except Exception as error:
            failure = error
    message = pickle.dumps((found, None if failure is None else str(failure)))
    received, reason = pickle.loads(_broadcast(message))
    if failure is not None:
        raise failure
    if reason is not None:
        raise _ElsewhereError(reason)
    return found if is_first() else received


def arrays_of_first(tree: PyTree) -> PyTree:
    """Return the arrays of process 0, in place of those of each process.

    The same program can round differently on another type of processor.
    """
    if number_of_processes() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    leaves = from_first(lambda: [np.asarray(leaf) for leaf in leaves])
    # Into memory that JAX owns, since these arrays may be donated.
    leaves = [jnp.array(leaf, copy=True) for leaf in leaves]
    return jax.tree.unflatten(structure, leaves)


def largest(value: int) -> int:
    """Return the largest of the values of all processes."""
    if number_of_processes() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int32(value)).max())


def _broadcast(message: bytes) -> bytes:
    """Return the message of process 0; one exchange if it is short.

    Lengths are powers of two, so few programs are compiled for them.
    """
    data = np.frombuffer(message, np.uint8) if is_first() else np.zeros(0, np.uint8)
    start = np.zeros(_SHORT, np.uint8)
    start[:_HEADER] = np.frombuffer(np.int64(len(data)).tobytes(), np.uint8)
    head = data[: _SHORT - _HEADER]
    start[_HEADER : _HEADER + len(head)] = head
    start = multihost_utils.broadcast_one_to_all(start)
    length = int(np.frombuffer(start[:_HEADER].tobytes(), np.int64)[0])
    known = start[_HEADER : _HEADER + length]
    if length <= len(known):
        return known.tobytes()
    rest = np.zeros(1 << (length - len(known) - 1).bit_length(), np.uint8)
    tail = data[len(known) :]
    rest[: len(tail)] = tail
    rest = multihost_utils.broadcast_one_to_all(rest)
    return known.tobytes() + rest[: length - len(known)].tobytes()
