"""Work directories as runs leave them, and a stand-in for a run that leaves one.

As a program: `table_files.py BEHAVIOUR WORKDIR SEED STEPS`. It needs no more than
Python, so that it starts at once.
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
import time

PER_TASK = (0.5, 0.75, 1.0, 0.75)


def leave_run(workdir, seed=0, steps=10, per_task=PER_TASK, **changes) -> None:
    """Makes what a finished run leaves; `changes` are fields of its result."""
    workdir = pathlib.Path(workdir)
    checksums = changes.pop("checksums", {"train": 1, "test": 2})
    eval_seed = changes.pop("eval_seed", 0)
    leave_start(workdir, eval_seed=eval_seed, checksums=checksums)
    result = {
        "dataset": "metabolism",
        "learner": "maml",
        "strategy": "vanilla",
        "backbone": "mlp",
        "ways": 2,
        "shots": 5,
        "queries": 10,
        "seed": seed,
        "metric": "accuracy",
        "source": "paper",
        "train_steps": steps,
        "mean": sum(per_task) / len(per_task),
        "ci95": 0.1,
        "num_tasks": len(per_task),
        "per_task": list(per_task),
    }
    (workdir / "results.json").write_text(json.dumps(result | changes))


def leave_start(workdir: pathlib.Path, step=0, eval_seed=0, checksums=None) -> None:
    """Makes what a run leaves that was interrupted after some steps."""
    (workdir / "checkpoints" / "last" / str(step)).mkdir(parents=True, exist_ok=True)
    config = {"eval": {"seed": eval_seed}, "data": {"checksums": checksums}}
    (workdir / "config.json").write_text(json.dumps(config))
    lines = [
        {"step": 5, "split": "train", "steps_per_second": 0.5},
        {"step": 5, "split": "validation", "accuracy": 0.5},
        {"step": 10, "split": "train", "steps_per_second": 2.5},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text)


def main(behaviour: str, workdir: str, seed: str, steps: str) -> int:
    """Finishes, fails, waits for Ctrl-C, or does nothing."""
    if behaviour == "finish":
        leave_run(workdir, int(seed), int(steps))
    if behaviour == "fail":
        print("\n".join(f"line {n}" for n in range(30)))
        print("error: this one fails", file=sys.stderr)
        return 2
    if behaviour == "wait":
        signals = []
        signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
        leave_start(pathlib.Path(workdir))
        while not signals:
            time.sleep(0.01)
        time.sleep(0.3)  # a second signal would come in this time
        leave_start(pathlib.Path(workdir), step=7)
        return 130 if len(signals) == 1 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
