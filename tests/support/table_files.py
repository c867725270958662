"""Write the work directory of a run, and a fake run that does so.

As a program: `table_files.py BEHAVIOR WORKDIR SEED STEPS`. It imports only the standard
library, to start fast.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
import time

PER_TASK = (0.5, 0.75, 1.0, 0.75)


def write_run(workdir, seed=0, steps=10, per_task=PER_TASK, **changes) -> None:
    """Write the work directory of a finished run; `changes` are result fields."""
    workdir = pathlib.Path(workdir)
    checksums = changes.pop("checksums", {"train": 1, "test": 2})
    eval_seed = changes.pop("eval_seed", 0)
    write_start(workdir, eval_seed=eval_seed, checksums=checksums)
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
        "step": steps,
        "checkpoint": "last",
        "mean": sum(per_task) / len(per_task),
        "ci95": 0.1,
        "num_tasks": len(per_task),
        "per_task": list(per_task),
    }
    (workdir / "results.json").write_text(json.dumps(result | changes))


def write_start(workdir: pathlib.Path, step=0, eval_seed=0, checksums=None) -> None:
    """Write the work directory of a run that was interrupted at a step."""
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


def count(workdir: pathlib.Path, seed: int, steps: int) -> int:
    """Count steps of 50 ms; each is a line of `history.txt`, as is each start.

    Checkpoints are written every 5 steps and at SIGTERM. Ends with its parent, as
    `experiments.run` does.
    """
    signals = []

    def wait_for_parent():
        sys.stdin.read()
        signals.append(0)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    saved = workdir / "checkpoints" / "last"
    step = max((int(path.name) for path in saved.glob("*")), default=0)
    write_start(workdir, step)
    with open(workdir / "history.txt", "a", buffering=1) as history:
        history.write(f"start {step} {os.getpid()}\n")
        while step < steps:
            time.sleep(0.05)
            step += 1
            history.write(f"step {step}\n")
            if signals or step % 5 == 0:
                write_start(workdir, step)
            if signals:
                print(f"stopped at step {step}; progress is saved")
                return 143
        history.write("finish\n")
    write_run(workdir, seed, steps)
    return 0


def main(behavior: str, workdir: str, seed: str, steps: str) -> int:
    """Finishes, fails, waits for SIGTERM, counts, or does nothing."""
    if behavior == "count":
        return count(pathlib.Path(workdir), int(seed), int(steps))
    if behavior == "finish":
        write_run(workdir, int(seed), int(steps))
    if behavior == "fail":
        print("\n".join(f"line {n}" for n in range(30)))
        print("error: this one fails", file=sys.stderr)
        return 2
    if behavior == "wait":
        signals = []
        signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
        write_start(pathlib.Path(workdir))
        while not signals:
            time.sleep(0.01)
        time.sleep(0.3)  # a second signal would arrive in this time
        write_start(pathlib.Path(workdir), step=7)
        return 143 if len(signals) == 1 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
