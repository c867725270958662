"""Start many runs in one work directory at once; a program for a test.

`many_starts.py WORKDIR NUMBER`: forks NUMBER processes, which open the work directory
as a run does, with one of four configs. Prints what happened to each as JSON lines.
Forking is possible because JAX has started no threads here.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
import time
import traceback

from mlti_jax._internal.locks import locked
from mlti_jax._internal.storage import make_folder, write_json
from mlti_jax.errors import InputError
from mlti_jax.training._workdir import open_workdir, read_config


def start(workdir: pathlib.Path, seed: int, begin: float) -> dict[str, object]:
    """Open a work directory like `training._loop`, hold it for a moment, finish."""
    time.sleep(max(0.0, begin - time.time()))
    outcome: dict[str, object] = {"seed": seed}
    try:
        make_folder(workdir)
        with locked(workdir, "--workdir") as check_lock:
            open_workdir(workdir, {"seed": seed})
            outcome["entered"] = time.monotonic()
            time.sleep(random.Random(os.getpid()).uniform(0, 0.01))
            outcome["config"] = read_config(workdir)["seed"]
            check_lock()
            write_json(workdir / "state.json", {"seed": seed}, seal=True)
            outcome["left"] = time.monotonic()
    except InputError as error:
        outcome["refused"] = str(error)
    except BaseException:
        outcome["crash"] = traceback.format_exc()
    return outcome


def main(workdir: str, number: str) -> None:
    """Start all processes at the same moment and print their outcomes."""
    begin = time.time() + 0.3
    children = []
    for index in range(int(number)):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            outcome = start(pathlib.Path(workdir), index % 4, begin)
            os.write(writing, json.dumps(outcome).encode())
            os._exit(0)
        os.close(writing)
        children.append((pid, reading))
    for pid, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            print(pipe.read().decode() or '{"crash": "no outcome"}')
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
