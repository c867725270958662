"""Learning curves: accuracy on training and on validation tasks by step.

Training tasks of MLTI are interpolated, so its accuracy on them is that of a harder
problem, and not comparable with that of vanilla. Validation tasks are the same for all.
"""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

from experiments.paper.tables import LEARNERS, STRATEGIES
from experiments.tables.results import Result, Results
from mlti_jax._internal.figures import COLORS, COLUMN_WIDTH, new_figure, style_axes

SHOWN = ("vanilla", "mlti")
PER_ROW = 2
STYLES = {"train": {"lw": 0.8, "alpha": 0.6}, "validation": {"lw": 1.4, "ls": "--"}}


class Panel(NamedTuple):
    """Runs whose curves are in one panel.

    Attributes:
      learner: the learner.
      shots: support samples per class.
      steps: training steps.
    """

    learner: str
    shots: int
    steps: int

    @property
    def title(self) -> str:
        """Learner and shots."""
        return f"{LEARNERS[self.learner]}, {self.shots}-shot"


def panels(results: Results, config: str) -> dict[Panel, dict[str, Result]]:
    """Return the runs of each panel by strategy: seed 0, without overrides.

    Panels lack a strategy if it has no curves; those without vanilla are left out.
    """
    found: dict[Panel, dict[str, Result]] = {}
    for result in results.all:
        if (
            result["config"] == config
            and "curves" in result
            and result["metric"] == "accuracy"
            and result["strategy"] in SHOWN
            and result["seed"] == 0
            and not result["overrides"]
            and "test_on" not in result["arguments"]
        ):
            panel = Panel(result["learner"], result["shots"], result["train_steps"])
            found.setdefault(panel, {})[result["strategy"]] = result
    return {
        panel: {name: runs[name] for name in SHOWN if name in runs}
        for panel, runs in sorted(found.items())
        if SHOWN[0] in runs
    }


def draw_all(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw one figure per config with curves; return the files."""
    configs = sorted({result["config"] for result in results.all})
    paths = {config: folder / f"curves_{config}.png" for config in configs}
    return [path for config, path in paths.items() if draw(results, config, path)]


def draw(results: Results, config: str, path: pathlib.Path) -> bool:
    """Draw the curves of a config; return whether it has any."""
    some = panels(results, config)
    if not some:
        return False
    rows = -(-len(some) // PER_ROW)
    figure = new_figure(COLUMN_WIDTH, 1.9 * rows + 0.5, layout="constrained")
    axes = figure.subplots(rows, min(PER_ROW, len(some)), squeeze=False)
    for axis, (panel, runs) in zip(axes.flat, some.items(), strict=False):
        for strategy, run in runs.items():
            _draw_run(axis, strategy, run)
        axis.set_title(panel.title, fontsize=8)
    for axis in axes.flat[len(some) :]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy, %")
    for axis in axes.flat[max(0, len(some) - PER_ROW) : len(some)]:
        axis.set_xlabel("training steps")
    style_axes(axes)
    handles: dict[str, Any] = {}
    for axis in axes.flat[: len(some)]:
        handles.update(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=7,
        ncols=len(handles),
        loc="outside lower center",
    )
    figure.savefig(path, dpi=200)
    return True


def _draw_run(axis: Any, strategy: str, run: Result) -> None:
    for split, curve in run["curves"].items():
        steps, values = zip(*curve, strict=True)
        axis.plot(
            steps,
            [100 * value for value in values],
            color=COLORS[SHOWN.index(strategy)],
            label=f"{STRATEGIES[strategy]}, {split}",
            **STYLES[split],
        )
