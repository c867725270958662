"""Run several strategies of one config and compare them on the same test tasks."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from mlti_jax import plotting, report
from mlti_jax._internal.distributed import is_first
from mlti_jax._internal.progress import say, without_repeats
from mlti_jax._internal.storage import write_json
from mlti_jax.errors import InputError
from mlti_jax.training import Experiment, build, paired_difference, train_and_evaluate
from mlti_jax.training._metrics import format_interval


def run_side_by_side(
    config: ConfigDict, workdir: str, data_dir: str | None = None
) -> dict[str, Any]:
    """Run every strategy of `config.compare` in its own work directory.

    All start from the same network and use the same data and test tasks. Writes
    `comparison.json`, plots and `report.html` into `workdir`, beside the runs.

    Returns:
      The content of `comparison.json`: `results` of each strategy, and the paired
      `difference` of each from the first.
    """
    if config.strategy.name:
        raise InputError(
            f"this config compares {', '.join(config.compare)}, so "
            f"strategy.name={config.strategy.name!r} cannot be set; set "
            "--config.compare, or use another config"
        )
    folder = pathlib.Path(workdir)
    experiments = {name: _build(config, name, data_dir) for name in config.compare}
    results = {}
    with without_repeats():
        for name, experiment in experiments.items():
            say(f"--- {name}")
            results[name] = train_and_evaluate(experiment, folder / name)
            if is_first():
                own = experiment.on_this_process()
                report.write_run(own, results[name], folder / name)
    first, *others = config.compare
    differences = {}
    for name in others:
        mean, ci95 = paired_difference(
            results[name]["per_task"], results[first]["per_task"]
        )
        differences[name] = {"mean": mean, "ci95": ci95}
    comparison = {"results": results, "difference": differences}
    if is_first():
        _print(comparison, first)
        write_json(folder / "comparison.json", comparison)
        plots = _plot(experiments, folder)
        print("\nplots: " + ", ".join(str(path) for path in plots))
        report.write_comparison(experiments, results, folder)
    return comparison


def _print(comparison: dict[str, Any], first: str) -> None:
    """Print the results, and their differences from the first."""
    results, differences = comparison["results"], comparison["difference"]
    print(f"\n{_title(results[first])}\n")
    for name, result in results.items():
        metric = result["metric"]
        line = f"  {name:10} {format_interval(metric, result['mean'], result['ci95'])}"
        if name in differences:
            difference = format_interval(metric, **differences[name], sign="+")
            line += f"   {difference} against {first}, paired"
        print(line)


def _build(config: ConfigDict, strategy: str, data_dir: str | None) -> Experiment:
    own = config.copy_and_resolve_references()
    with own.unlocked():
        del own.compare
        own.strategy.name = strategy
    return build(own, data_dir)


def _plot(
    experiments: dict[str, Experiment], folder: pathlib.Path
) -> list[pathlib.Path]:
    """Plot interpolated tasks, if samples are images, and learning curves."""
    paths = []
    mixing = [e for e in experiments.values() if e.strategy.changes_inputs]
    if mixing and len(np.shape(mixing[0].splits.train.x)) == 4:
        paths.append(folder / "tasks.png")
        plotting.interpolated_tasks(mixing[0], paths[-1])
    paths.append(folder / "learning_curves.png")
    runs = {name: folder / name for name in experiments}
    plotting.learning_curves(runs, paths[-1])
    return paths


def _title(result: dict[str, Any]) -> str:
    return (
        f"{result['dataset']}, {result['ways']}-way {result['shots']}-shot, "
        f"{result['learner']}, {result['train_classes']} training sources, "
        f"{result['train_steps']} steps; the same {result['num_tasks']} test tasks:"
    )
