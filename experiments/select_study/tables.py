"""Markdown tables of the study and of selections, for `docs/selecting.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def simulated(rows: list[Mapping[str, Any]]) -> str:
    """Return false alarms for equal candidates, and power by the size of a gap."""
    gaps = sorted({row["gap"] for row in rows if row["gap"]})
    heads = [
        "tasks",
        "candidates",
        "false alarms",
        "percentiles instead",
        *(f"power for +{100 * gap:.0f} points" for gap in gaps),
    ]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for null in (row for row in rows if not row["gap"]):
        same = {
            row["gap"]: row
            for row in rows
            if (row["tasks"], row["candidates"]) == (null["tasks"], null["candidates"])
        }
        cells = [
            str(null["tasks"]),
            str(null["candidates"]),
            _percent(null["false_alarms"]),
            _percent(null["percentile_false_alarms"]),
            *(_percent(same[gap]["power"]) for gap in gaps),
        ]
        lines.append(_row(cells))
    return "\n".join(lines)


def trained(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the study with trained networks."""
    heads = [
        "candidates",
        "selections",
        "false alarms",
        "power",
        "accuracy on new tasks",
        "trained with a task less",
        "best mean, bias",
        "nested estimate, bias",
        "standard error of the estimate",
    ]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, found in studies.items():
        power = "" if found["power"] is None else _percent(found["power"])
        lines.append(
            _row(
                [
                    name,
                    str(found["repetitions"]),
                    _percent(found["false_alarms"]),
                    power,
                    _percent(found["accuracy_on_new_tasks"]),
                    _percent(found["accuracy_with_a_task_less"]),
                    f"{100 * found['bias_of_cross_validation']:+.1f}",
                    f"{100 * found['bias_of_nested']:+.1f}",
                    f"{100 * found['standard_error_of_nested']:.1f}",
                ]
            )
        )
    return "\n".join(lines)


def selection(found: Mapping[str, Any]) -> str:
    """Return the table of a `selection.json` whose metric is the accuracy."""
    reference = found["reference"]
    heads = ["candidate", "accuracy", f"against `{reference}`", "steps", "verdict"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, result in found["candidates"].items():
        difference, verdict = "", "reference"
        if result["difference"] is not None:
            difference = _interval(result["difference"], "+")
            stopped = result["steps"] < found["steps"]
            verdict = "stopped early" if stopped else result["verdict"]
        score = _interval(result["score"])
        cells = [f"`{name}`", score, difference, str(result["steps"]), verdict]
        lines.append(_row(cells))
    return "\n".join(lines)


def _interval(value: Mapping[str, float], sign: str = "") -> str:
    return f"{100 * value['mean']:{sign}.1f} ± {100 * value['half_width']:.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
