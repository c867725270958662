"""Run one small job of the tables; a program that a test kills.

`table_driver.py WORKDIR RESULTS STEPS`
"""

from __future__ import annotations

import pathlib
import sys

from experiments.paper import TABLES
from experiments.sweeps.executors import Local
from experiments.tables.jobs import Job, Paths, make_jobs
from experiments.tables.runner import Runner, job_command
from tests.support.runs_to_break import SMALL

FIELDS = {**SMALL, "dataset.source": "builtin", "eval.every": "200"}


def command(job: Job, paths: Paths) -> list[str]:
    """Return the command of a job at a small size."""
    return [*job_command(job, paths), *(f"--config.{n}={v}" for n, v in FIELDS.items())]


def main(workdir: str, results: str, steps: str) -> None:
    """Run the job of ProtoNet with MLTI on RainbowMNIST."""
    cells = TABLES["overall_ls"].cells()
    only = ("rainbow_mnist", "protonet", "mlti")
    jobs = make_jobs(cells, seeds=1, steps=int(steps), only=only)
    paths = Paths(pathlib.Path(workdir))
    executor = Local(pathlib.Path(workdir) / "submitit", at_once=1)
    Runner(jobs, paths, pathlib.Path(results), executor, command).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
