"""The figure in docs/concepts.md: how two tasks are interpolated to a new one.

    python -m experiments.figures.concept --output=docs/concepts.png

Shows two tasks of RainbowMNIST's built-in images, mixed with the package's functions.
"""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from mlti_jax import data, interpolation
from mlti_jax._internal import command_line
from mlti_jax._internal.figures import COLORS, new_figure
from mlti_jax.types import Batch, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTPUT = flags.DEFINE_string("output", "concepts.png", "The PNG file to write.")

WIDTH, HEIGHT, SIDE = 8.0, 3.3, 0.62  # inches
LAMBDA = 0.6
DIGITS = (2, 4, 7)  # the classes shown
DOMAINS = (0, 2)  # the tasks shown: red and blue, rotated differently


def tasks_and_mixtures() -> tuple[Task, Task, Task, Task]:
    """Task i, task j, and their mixtures by Eqs. 5 and 6; one image per class."""
    pool = data.load("rainbow_mnist", source="builtin").train
    rows = np.asarray(pool.index)[:, list(DIGITS), 0]

    def task(domain: int) -> Task:
        x = jnp.asarray(pool.x[rows[domain]], jnp.float32) / 255
        batch = Batch(x=x, y=jnp.eye(len(DIGITS)))
        return Task(support=batch, query=batch, domain=jnp.int32(domain))

    one, other = map(task, DOMAINS)
    key = jax.random.key(3)  # with this key no digit is paired with itself
    shared = interpolation.label_sharing(key, one, other, LAMBDA)
    paired = interpolation.non_label_sharing(key, one, other, LAMBDA)
    return one, other, shared, paired


def format_soft_label(y: np.ndarray) -> str:
    """Format a soft label `[C]`, the largest share first."""
    order = [c for c in np.argsort(-y) if y[c] > 0]
    return "\n".join(f"{y[c]:.1f} “{DIGITS[c]}”" for c in order)


def draw(path: pathlib.Path) -> None:
    """Draw the figure and save it."""
    one, other, shared, paired = tasks_and_mixtures()
    fig = new_figure(WIDTH, HEIGHT)
    digits = [f"“{digit}”" for digit in DIGITS]
    soft = [format_soft_label(np.asarray(y)) for y in shared.support.y]
    classes = [f"class {letter}" for letter in "ABC"]
    _row(fig, one, (0.1, 2.1), "task i", digits)
    _row(fig, other, (0.1, 0.55), "task j", digits)
    _row(fig, shared, (3.4, 2.1), "label-sharing: labels are mixed too", soft)
    _row(fig, paired, (3.4, 0.55), "non-label-sharing: each pair is a class", classes)
    mixing = f"λ ~ Beta(α, α)\nhere {LAMBDA}\n\nλ i + (1 – λ) j"
    _arrow(fig, (2.2, 3.3), mixing)
    _arrow(fig, (5.5, 6.2), "")
    fig.text(
        7.05 / WIDTH,
        0.5,
        "learner\n\nadapts to the\nsupport set,\nlearns from the\nloss on the\nqueries",
        ha="center",
        va="center",
        fontsize=9,
        linespacing=1.35,
        bbox={"boxstyle": "round,pad=0.7", "fc": "#eef2f7", "ec": COLORS[0]},
    )
    fig.savefig(path, dpi=160)


def _row(
    fig: Figure,
    task: Task,
    corner: tuple[float, float],
    title: str,
    labels: list[str],
) -> None:
    """Draw the images of a task with labels below; `corner` is in inches."""
    left, bottom = corner
    fig.text(left / WIDTH, (bottom + SIDE + 0.1) / HEIGHT, title, fontsize=9)
    for column, label in enumerate(labels):
        start = left + column * (SIDE + 0.08)
        box = [start, bottom, SIDE, SIDE]
        axis = fig.add_axes(np.divide(box, [WIDTH, HEIGHT] * 2))
        axis.imshow(np.asarray(task.support.x[column]).clip(0, 1))
        axis.set_axis_off()
        fig.text(
            (start + SIDE / 2) / WIDTH,
            (bottom - 0.06) / HEIGHT,
            label,
            ha="center",
            va="top",
            fontsize=8,
        )


def _arrow(fig: Figure, ends: tuple[float, float], text: str) -> None:
    """Draw an arrow at half height with text above it; `ends` are in inches."""
    start, end = (x / WIDTH for x in ends)
    style = {"arrowstyle": "-|>", "color": COLORS[0], "lw": 1.5}
    axis = fig.add_axes([0, 0, 1, 1], zorder=-1)
    axis.set_axis_off()
    axis.annotate("", (end, 0.5), (start, 0.5), arrowprops=style)
    middle = (start + end) / 2
    fig.text(middle, 0.54, text, ha="center", va="bottom", fontsize=8.5)


def main() -> None:
    """Write the figure to `--output`."""
    path = pathlib.Path(OUTPUT.value)
    draw(path)
    print(f"figure: {path}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
