"""Several strategies on the same tasks, side by side: the quickstart."""

from __future__ import annotations

import pathlib

import numpy as np
from ml_collections import ConfigDict

from mlti_jax import plotting
from mlti_jax._internal.progress import say
from mlti_jax.errors import InputError
from mlti_jax.training import (
    Experiment,
    build,
    format_interval,
    paired_difference,
    train_and_evaluate,
)
from mlti_jax.training._workdir import write_json


def compare(config: ConfigDict, workdir: str, data_dir: str | None = None) -> dict:
    """Runs every strategy of `config.compare` in its own part of the work directory.

    All see the same data, the same initial network and the same test tasks. Leaves
    `comparison.json` and two pictures beside the runs.

    Returns:
      For each strategy its result, and the paired difference from the first.
    """
    if config.strategy.name:
        raise InputError(
            f"this config compares {', '.join(config.compare)}, so "
            f"strategy.name={config.strategy.name!r} can't be set; set "
            "--config.compare, or use another config"
        )
    folder = pathlib.Path(workdir)
    experiments = {name: _build(config, name, data_dir) for name in config.compare}
    results = {}
    for name, experiment in experiments.items():
        say(f"--- {name}")
        results[name] = train_and_evaluate(experiment, folder / name)
    first = config.compare[0]
    comparison = {"results": results, "difference": {}}
    print(f"\n{_title(results[first])}\n")
    for name, result in results.items():
        line = f"  {name:10} {format_interval(result, result['mean'], result['ci95'])}"
        if name != first:
            mean, ci95 = paired_difference(
                result["per_task"], results[first]["per_task"]
            )
            comparison["difference"][name] = {"mean": mean, "ci95": ci95}
            difference = format_interval(result, mean, ci95, sign="+")
            line += f"   {difference} against {first}, paired"
        print(line)
    write_json(folder / "comparison.json", comparison)
    written = _pictures(experiments, folder)
    print("\npictures: " + ", ".join(str(path) for path in written))
    return comparison


def _build(config: ConfigDict, strategy: str, data_dir: str | None) -> Experiment:
    own = config.copy_and_resolve_references()
    with own.unlocked():
        del own.compare
        own.strategy.name = strategy
    return build(own, data_dir)


def _pictures(
    experiments: dict[str, Experiment], folder: pathlib.Path
) -> list[pathlib.Path]:
    paths = []
    mixing = [e for e in experiments.values() if e.strategy.transform is not None]
    image = len(np.shape(mixing[0].splits.train.x)) == 4 if mixing else False
    if image:
        paths.append(folder / "tasks.png")
        plotting.interpolated_tasks(mixing[0], paths[-1])
    paths.append(folder / "learning_curves.png")
    runs = {name: folder / name for name in experiments}
    plotting.learning_curves(runs, paths[-1])
    return paths


def _title(result: dict) -> str:
    return (
        f"{result['dataset']}, {result['ways']}-way {result['shots']}-shot, "
        f"{result['learner']}, {result['train_classes']} training sources, "
        f"{result['train_steps']} steps; the same {result['num_tasks']} test tasks:"
    )
