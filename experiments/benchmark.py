"""Times whole training steps: `python -m experiments.benchmark`.

A step draws a meta-batch of four tasks from a pool on the device, interpolates it
(MLTI), runs the learner, takes the meta-gradient and updates by Adam. Where PyTorch is
installed (`pip install -e '.[torch]'`), the same step written plainly in PyTorch
(`experiments/torch_steps.py`) is timed beside it, for images also with PyTorch's
channels-last memory layout, which is faster on CPU but which few use. The sides
alternate in one process, and a ratio is that of the medians. `others` is the share of
the machine that other processes took meanwhile: above 5 % a ratio means little, since
PyTorch's threads wait for each other. `--output=FILE` also writes JSON. The case
`sampling` draws tasks alone, from pools of two sizes.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import jax
import numpy as np
from absl import flags

from experiments import benchmark_sampling, command_line, timing
from mlti_jax import backbones, learners, strategies
from mlti_jax.data import ClassPool, DomainPool
from mlti_jax.errors import InputError, unknown_name
from mlti_jax.training import Episode, adam, init_state, make_run_steps

CASES = flags.DEFINE_list("cases", None, "Names of the cases; all if not given.")
ROUNDS = flags.DEFINE_integer("rounds", 7, "How often each side is timed.")
SECONDS = flags.DEFINE_float("seconds", 1.0, "How long a side is timed in a round.")
OUTPUT = flags.DEFINE_string("output", None, "A JSON file for the results.")


@dataclass(frozen=True)
class Case:
    """A training step; the names are those that `torch_steps` reads."""

    learner: str
    backbone: str
    setting: str
    image_shape: tuple[int, ...]
    ways: int
    shots: int
    queries: int
    interpolation: str | None
    layers: tuple[int, ...] = (0,)
    first_adapted: int = 3
    filters: int = 32
    hidden: tuple[int, ...] = (500, 500)
    tasks: int = 4
    inner_steps: int = 5
    inner_lr: float = 0.01
    outer_lr: float = 1e-3
    alpha: float = 2.0


_RAINBOW = Case(
    "maml", "conv4", "label_sharing", (28, 28, 3), 10, 1, 1, interpolation="cutmix"
)
_MINI = replace(
    _RAINBOW, setting="non_label_sharing", image_shape=(84, 84, 3), ways=5, queries=15
)
_BIO = Case(
    "maml",
    "mlp",
    "label_sharing",
    (1024,),
    ways=2,
    shots=5,
    queries=10,
    interpolation="mixup",
    layers=(0, 1),
    first_adapted=1,
)
ALL_CASES = {
    "maml_28": _RAINBOW,
    "maml_84": _MINI,
    "maml_bio": _BIO,
    "protonet_28": replace(_RAINBOW, learner="protonet"),
    "protonet_28_15q": replace(_RAINBOW, learner="protonet", queries=15),
    "protonet_84": replace(_MINI, learner="protonet"),
    "protonet_bio": replace(_BIO, learner="protonet"),
}
SAMPLING = "sampling"  # the drawing of tasks alone


def make_pool(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random samples of the size of the real data, and the rows of each class.

    Returns:
      `x` uint8 `[M, ...]` and `index` `[16, C, 20]` (label-sharing) or `[12, 600]`.
    """
    groups = (16, case.ways, 20) if case.setting == "label_sharing" else (12, 600)
    rng = np.random.default_rng(seed)
    index = np.arange(np.prod(groups)).reshape(groups)
    x = rng.integers(0, 256, (index.size, *case.image_shape), dtype=np.uint8)
    return x, index


def make_learner(case: Case) -> learners.Learner:
    """Our learner of a case."""
    network = (
        backbones.conv4(case.filters)
        if case.backbone == "conv4"
        else backbones.mlp(case.hidden)
    )
    options = {}
    if case.learner == "maml":
        adapted = tuple(range(case.first_adapted, len(network) + 1))
        options = {
            "adapted_layers": adapted,
            "inner_learning_rate": case.inner_lr,
            "steps": case.inner_steps,
        }
    return learners.make(case.learner, network, case.ways, **options)


def jax_step(case: Case) -> Callable[[int], None]:
    """Our side: a function that runs so many steps and waits for the last."""
    x, index = make_pool(case)
    arrays = {
        "x": jax.numpy.asarray(x),
        "index": jax.numpy.asarray(index, np.int32),
        "count": jax.numpy.full(index.shape[:-1], index.shape[-1], np.int32),
        "classes": tuple(map(str, range(index.shape[-2]))),
    }
    if case.setting == "label_sharing":
        pool = DomainPool(**arrays, domains=tuple(map(str, range(index.shape[0]))))
    else:
        pool = ClassPool(**arrays)
    learner = make_learner(case)
    strategy = strategies.vanilla()
    if case.interpolation:
        pairs = case.setting == "non_label_sharing" or learner.class_pairs
        strategy = strategies.mlti(
            form="non_label_sharing" if pairs else "label_sharing",
            method=case.interpolation,
            layers=case.layers,
            alpha=case.alpha,
        )
    optimiser = adam(case.outer_lr)
    run = make_run_steps(
        learner,
        strategy,
        optimiser,
        Episode(case.ways, case.shots, case.queries),
        case.tasks,
    )
    example = np.zeros((2, *case.image_shape), np.float32)
    state = init_state(learner, strategy, optimiser, jax.random.key(0), example)
    done = 0

    def steps(count: int) -> None:
        nonlocal state, done
        done += count
        state, bad_step = run(state, pool, jax.random.key(1), done)
        if int(bad_step) >= 0:
            raise FloatingPointError(f"the loss is not finite at step {int(bad_step)}")

    return steps


def torch_steps(case: Case) -> dict[str, Callable[[int], None]]:
    """PyTorch's sides; none where it is not installed."""
    try:
        from experiments import torch_steps
    except ImportError:
        return {}

    def side(channels_last: bool) -> Callable[[int], None]:
        step = torch_steps.make_step(
            case, *make_pool(case), channels_last=channels_last
        )

        def steps(count: int) -> None:
            for _ in range(count):
                step()

        return steps

    sides = {"torch": side(channels_last=False)}
    if case.backbone == "conv4":
        sides["torch_channels_last"] = side(channels_last=True)
    return sides


def measure(name: str, rounds: int, seconds: float) -> dict:
    """Times one case; compilation apart."""
    case = ALL_CASES[name]
    ours = jax_step(case)
    start = time.perf_counter()
    ours(1)
    result = {
        "case": name,
        "setting": asdict(case),
        "compile_s": time.perf_counter() - start,
        "ratio": {},
    }
    share = timing.CpuShare()
    sides = {"jax": ours, **torch_steps(case)}
    for side, times in timing.time_sides(sides, rounds, seconds).items():
        result[side] = timing.spread(times)
        if side != "jax":
            median = result[side]["median_ms"]
            result["ratio"][side] = median / result["jax"]["median_ms"]
    result["others"] = share.of_others()
    return result


COLUMNS = (
    ("case", 17), ("ours, ms", 25), ("PyTorch, ms", 25), ("ratio", 7),
    ("channels last, ms", 25), ("ratio", 7), ("compile, s", 12), ("others", 8),
)  # fmt: skip


def table_row(result: dict) -> str:
    """A result as a line: median (fastest - slowest round) of each side, and ratio."""

    def milliseconds(side: str) -> str:
        return timing.format_spread(result[side]) if side in result else "-"

    def ratio(side: str) -> str:
        return f"{result['ratio'][side]:.2f}" if side in result["ratio"] else "-"

    cells = (
        result["case"],
        milliseconds("jax"),
        milliseconds("torch"),
        ratio("torch"),
        milliseconds("torch_channels_last"),
        ratio("torch_channels_last"),
        f"{result['compile_s']:.1f}",
        timing.format_share(result["others"]),
    )
    return _line(cells)


def _line(cells: tuple[str, ...]) -> str:
    widths = [width for _, width in COLUMNS]
    first = f"{cells[0]:{widths[0]}}"
    return first + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True)
    )


def main(argv: list[str]) -> None:
    """Measures the cases and prints the table, row by row."""
    if len(argv) > 1 or ROUNDS.value < 1:
        raise InputError("give --rounds of 1 or more, and no other arguments")
    known = [*ALL_CASES, SAMPLING]
    names = CASES.value or known
    for name in names:
        if name not in known:
            raise unknown_name("case", name, known)
    print(f"{jax.devices()[0].platform}, JAX {jax.__version__}; a step of four tasks")
    print(_line(tuple(name for name, _ in COLUMNS)))
    results = []
    for name in names:
        if name == SAMPLING:
            result = benchmark_sampling.measure(ROUNDS.value, SECONDS.value)
            row = benchmark_sampling.table(result)
        else:
            result = measure(name, ROUNDS.value, SECONDS.value)
            row = table_row(result)
        results.append(result)
        print(row, flush=True)
    if OUTPUT.value:
        text = json.dumps(results, indent=2)
        pathlib.Path(OUTPUT.value).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
