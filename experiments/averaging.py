"""Does a moving average of the variables help? `python -m experiments.averaging`.

Trains MAML and ProtoNet with vanilla and MLTI on NCI and Metabolism (both splits),
RainbowMNIST and Huffpost, several seeds each. A moving average does not influence
training, so one training gives the variables without an average and those of every
decay (`train.ema`). All are evaluated on the same test tasks: on the way, and at the
end, with the checkpoint that is best on validation tasks, or the last one if the
dataset has none.

Each training writes one file into `--results` and is skipped if that exists:

  python -m experiments.averaging --data_dir=DATA
  python -m experiments.averaging --data_dir=DATA --only=nci,maml

`--list` prints the trainings. `experiments.report` adds the results to its page.
"""

from __future__ import annotations

import importlib
import itertools
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags, logging

from experiments import cli
from experiments.tables.formats import Section
from experiments.tables.jobs import matches, no_match
from experiments.tables.runner import Stopped
from mlti_jax import parallel
from mlti_jax._internal.command_line import DATA_DIR, absolute
from mlti_jax._internal.figures import new_figure
from mlti_jax._internal.progress import Progress, format_metric, say, stop_signal
from mlti_jax._internal.storage import make_folder, read_json, write_json
from mlti_jax.errors import InputError
from mlti_jax.report._repeat import versions
from mlti_jax.training import Experiment, build, make_run_steps, paired_difference
from mlti_jax.training._evaluation import mean_and_interval
from mlti_jax.training._experiment import INIT, TEST, TRAIN, VALIDATION
from mlti_jax.training._step import TrainState, init_state

FOLDER = pathlib.Path(__file__).parent / "results" / "averaging"
DECAYS = (0.99, 0.999)
SEEDS = 3
STRATEGIES = ("vanilla", "mlti")
LEARNERS = ("maml", "protonet")
CURVE = (0.04, 0.1, 0.2, 0.4, 1.0)  # fractions of the steps with a test on the way
CURVE_TASKS = 200
STEPS_PER_CALL = 100
COLORS = ("#2471a3", "#c0392b", "#7fb3d5", "#e59866")  # of methods in the figure

flags.declare_key_flag("data_dir")
RESULTS = flags.DEFINE_string(
    "results", str(FOLDER), "Folder of the results.", allow_override=True
)
ONLY = flags.DEFINE_list(
    "only", [], "Words; each must begin a part of a name.", allow_override=True
)
LIST = flags.DEFINE_bool(
    "list", False, "Print the trainings, and exit.", allow_override=True
)


class Case(NamedTuple):
    """A dataset of the study.

    Attributes:
      title: its name in tables.
      config: name of its config file.
      arguments: further arguments of the config file.
      steps: training steps.
      curve: whether to test on the way too; slow for images.
    """

    title: str
    config: str
    arguments: str
    steps: int
    curve: bool = True


CASES = {
    "nci": Case("NCI", "nci", "split=paper", 5_000),
    "nci_disjoint": Case("NCI, disjoint", "nci", "split=disjoint", 5_000),
    "metabolism": Case("Metabolism", "metabolism", "split=paper", 5_000),
    "metabolism_disjoint": Case(
        "Metabolism, disjoint", "metabolism", "split=disjoint", 5_000
    ),
    "rainbow_mnist": Case("RainbowMNIST", "rainbow_mnist", "", 3_000, curve=False),
    "huffpost": Case("Huffpost", "huffpost", "shots=5,encoder=word_mean", 5_000),
}


class Training(NamedTuple):
    """One training of the study."""

    case: str
    learner: str
    strategy: str
    seed: int

    @property
    def name(self) -> str:
        """Its name, of words for `--only`."""
        return f"{self.case}/{self.learner}-{self.strategy}-seed{self.seed}"

    @property
    def command(self) -> str:
        """The command that repeats it, with a placeholder for the data."""
        words = ",".join([self.name.rpartition("-")[0], f"seed{self.seed}"])
        return f"python -m experiments.averaging --data_dir=DATA --only={words}"

    def build(self, data_dir: str | None) -> Experiment:
        """Build its experiment."""
        case = CASES[self.case]
        module = importlib.import_module(f"experiments.configs.{case.config}")
        method = f"learner={self.learner},strategy={self.strategy}"
        config = module.get_config(",".join(filter(None, [method, case.arguments])))
        config.seed, config.train.steps = self.seed, case.steps
        return build(config, data_dir)


def trainings(only: list[str]) -> list[Training]:
    """Return the trainings whose names match all words; seeds vary slowest."""
    found = [
        Training(case, learner, strategy, seed)
        for seed in range(SEEDS)
        for case, learner, strategy in itertools.product(CASES, LEARNERS, STRATEGIES)
    ]
    chosen = [each for each in found if all(matches(each.name, word) for word in only)]
    if not chosen:
        raise no_match(only, found[0].name)
    return chosen


# ------------------------------------------------------------------------- measuring


def variants(state: TrainState) -> dict[str, Any]:
    """Return the variables without an average, and those of each decay."""
    names = ("off", *map(str, DECAYS))
    return dict(zip(names, (state.variables, *state.averages), strict=True))


def measure(
    experiment: Experiment,
    steps: int,
    curve: Sequence[float] = CURVE,
    stopped: Callable[[], int] = lambda: 0,
) -> dict[str, Any]:
    """Train once, and evaluate all variants on the way and at the end.

    Args:
      experiment: the experiment; its `train.ema` is not used.
      steps: number of training steps.
      curve: fractions of the steps after which to test on the way.
      stopped: returns the number of a signal to stop, or 0.

    Returns:
      For each variant: `curve`, the test metric by step on the first tasks; `step`, the
      step of the tested checkpoint; `per_task`, `mean` and `ci95` of its test.
    """
    config, splits = experiment.config, experiment.splits
    state = init_state(
        experiment.learner,
        experiment.strategy,
        experiment.optimiser,
        experiment.key(INIT),
        experiment.sample_task().support.x,
        DECAYS,
    )
    run_steps = make_run_steps(
        experiment.learner,
        experiment.strategy,
        experiment.optimiser,
        experiment.episode,
        config.train.meta_batch_size,
        experiment.plan,
        DECAYS,
        config.train.precision,
    )
    pool, key = experiment.plan.replicate((splits.train, experiment.key(TRAIN)))
    state = experiment.plan.replicate(state)
    sign = 1 if experiment.learner.objective.higher_is_better else -1
    found: dict[str, Any] = {name: {"curve": {}} for name in variants(state)}
    best: dict[str, Any] = {}
    on_the_way = {max(1, round(fraction * steps)) for fraction in curve}
    bar = Progress("train", steps)
    for stop in _stops(steps, config.eval.every, on_the_way):
        before = int(state.step)
        state, bad = run_steps(state, pool, key, stop)
        if int(bad) >= 0:
            raise InputError(f"the loss is not finite at step {int(bad)}")
        bar.update(stop - before)
        if signal := stopped():
            raise Stopped(signal)
        for name, variables in variants(state).items():
            if stop in on_the_way:
                values = _evaluate(experiment, variables, TEST, CURVE_TASKS)
                found[name]["curve"][stop] = round(float(values.mean()), 6)
            score = math.inf  # without validation tasks the last one is tested
            if splits.validation is not None:
                if stop % config.eval.every and stop != steps:
                    continue
                number = config.eval.validation_tasks
                values = _evaluate(experiment, variables, VALIDATION, number)
                score = sign * float(values.mean())
            elif stop != steps:
                continue
            if name not in best or score > best[name][0]:
                # Copied, since the training step reuses these buffers.
                best[name] = score, stop, jax.tree.map(np.array, variables)
    bar.close()
    for name, (_, step, variables) in best.items():
        values = _evaluate(experiment, variables, TEST, config.eval.num_tasks)
        mean, ci95 = mean_and_interval(values)
        found[name] |= {"step": step, "mean": mean, "ci95": ci95}
        found[name]["per_task"] = [round(float(value), 5) for value in values]
    return found


def _stops(steps: int, every: int, further: set[int]) -> Iterator[int]:
    """Yield the steps at which calls of the compiled loop end, ascending."""
    ends = {*range(STEPS_PER_CALL, steps, STEPS_PER_CALL), *range(every, steps, every)}
    yield from sorted({end for end in ends | further | {steps} if end <= steps})


def _evaluate(
    experiment: Experiment, variables: Any, purpose: int, number: int
) -> np.ndarray:
    splits = experiment.splits
    pool = splits.test if purpose == TEST else splits.validation
    assert pool is not None
    return experiment.evaluator(variables, pool, experiment.eval_key(purpose), number)


def record(
    training: Training, data_dir: str | None, stopped: Callable[[], int]
) -> dict[str, Any]:
    """Run a training and return the content of its file."""
    experiment = training.build(data_dir)
    start = time.monotonic()
    case = CASES[training.case]
    found = measure(experiment, case.steps, CURVE if case.curve else (), stopped)
    return {
        "name": training.name,
        "command": training.command,
        "steps": CASES[training.case].steps,
        "metric": experiment.learner.objective.metric_name,
        "checksums": experiment.data_facts()["checksums"],
        "versions": versions(),
        "seconds": round(time.monotonic() - start, 1),
        "variants": found,
    }


# -------------------------------------------------------------------------- showing


def read_results(folder: pathlib.Path) -> dict[Training, dict[str, Any]]:
    """Return the recorded trainings."""
    found = {}
    for training in trainings([]):
        path = folder / f"{training.name}.json"
        if path.exists():
            found[training] = read_json(path, "delete it and run it again")
    return found


def sections(results: dict[Training, dict[str, Any]]) -> list[Section]:
    """Return tables: the metric without an average, and what each decay changes.

    A difference is the mean over seeds of the paired difference from the same training
    without an average, with the 95 % interval over test tasks of the mean over seeds,
    and the standard deviation over seeds in parentheses.
    """
    header = ("method", "seeds", "off", *(f"ema {decay}" for decay in DECAYS))
    made = []
    for case in CASES:
        lines = []
        for learner, strategy in itertools.product(LEARNERS, STRATEGIES):
            runs = _variants_of(results, case, learner, strategy)
            if not runs:
                continue
            values = {
                name: np.array([run[name]["per_task"] for run in runs])
                for name in ("off", *map(str, DECAYS))
            }
            mean, ci95 = mean_and_interval(values["off"].mean(axis=0))
            cells = [f"{100 * mean:.2f} ± {100 * ci95:.2f}"]
            cells += [
                _difference(values[str(decay)], values["off"]) for decay in DECAYS
            ]
            lines.append((f"{learner}, {strategy}", str(len(runs)), *cells))
        if lines:
            steps = CASES[case].steps
            title = f"{CASES[case].title}, {steps:,} steps"
            made.append(Section(title, header, tuple(lines)))
    return made


def seeds_section(results: dict[Training, dict[str, Any]]) -> Section:
    """Return a table of the standard deviations over seeds, with and without averages.

    Each is the root mean square over the methods with two or more seeds. Without
    validation tasks it includes the choice of the last checkpoint, which is one of many
    equally good ones.
    """
    names = ("off", *map(str, DECAYS))
    lines = []
    for case in CASES:
        variances = []
        for learner, strategy in itertools.product(LEARNERS, STRATEGIES):
            runs = _variants_of(results, case, learner, strategy)
            if len(runs) > 1:
                means = [
                    [np.mean(run[name]["per_task"]) for name in names] for run in runs
                ]
                variances.append(np.var(means, axis=0, ddof=1))
        if variances:
            deviations = 100 * np.sqrt(np.mean(variances, axis=0))
            cells = (f"{deviation:.2f}" for deviation in deviations)
            lines.append((CASES[case].title, str(len(variances)), *cells))
    header = ("dataset", "methods", "off", *(f"ema {decay}" for decay in DECAYS))
    return Section("Standard deviation over seeds", header, tuple(lines))


def _variants_of(
    results: dict[Training, dict[str, Any]], case: str, learner: str, strategy: str
) -> list[dict[str, Any]]:
    """Return the variants of each seed of a method."""
    return [
        result["variants"]
        for training, result in results.items()
        if training[:3] == (case, learner, strategy)
    ]


def _difference(one: np.ndarray, other: np.ndarray) -> str:
    """Format the difference of accuracies `[seeds, tasks]`, in percentage points."""
    mean, ci95 = paired_difference(one.mean(axis=0), other.mean(axis=0))
    by_seed = (one - other).mean(axis=1)
    spread = f" ({100 * by_seed.std(ddof=1):.2f})" if len(by_seed) > 1 else ""
    return f"{100 * mean:+.2f} ± {100 * ci95:.2f}{spread}"


def draw(results: dict[Training, dict[str, Any]], path: pathlib.Path) -> None:
    """Plot what each decay changes against the training step, a panel per dataset."""
    shown = [case for case in {key.case: None for key in results} if CASES[case].curve]
    fig = new_figure(9.0, 2.7 * math.ceil(len(shown) / 3), layout="constrained")
    axes = fig.subplots(math.ceil(len(shown) / 3), 3, squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    methods = list(itertools.product(LEARNERS, STRATEGIES))
    for ax, case in zip(axes.flat, shown, strict=False):
        ax.axhline(0.0, color="0.6", linewidth=0.8)
        steps: list[int] = []
        for (learner, strategy), color in zip(methods, COLORS, strict=True):
            runs = _variants_of(results, case, learner, strategy)
            if not runs:
                continue
            steps = [int(step) for step in runs[0]["off"]["curve"]]
            for decay, dashes in zip(DECAYS, ("--", "-"), strict=True):
                gain = [
                    100
                    * np.mean(
                        [
                            run[str(decay)]["curve"][str(step)]
                            - run["off"]["curve"][str(step)]
                            for run in runs
                        ]
                    )
                    for step in steps
                ]
                label = f"{learner}, {strategy}, {decay}" if ax is axes[0, 0] else None
                ax.plot(steps, gain, dashes, color=color, linewidth=1.2, label=label)
        ax.set_title(CASES[case].title, fontsize=9)
        ax.set_xscale("log")
        ax.set_xticks(steps, [f"{step:,}" for step in steps])
        ax.minorticks_off()
        ax.tick_params(labelsize=7)
        ax.set_xlabel("training step", fontsize=8)
        ax.set_ylabel("accuracy, change in points", fontsize=8)
    fig.legend(loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    fig.savefig(path, dpi=110)


def main() -> None:
    """Run the trainings that have no result yet."""
    chosen = trainings(ONLY.value)
    folder = absolute(RESULTS.value) or FOLDER
    if LIST.value:
        print("\n".join(training.name for training in chosen))
        return
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing optional parts.
    parallel.use_all_cores()
    cli.use_compilation_cache("user")
    with stop_signal() as stopped:
        for number, training in enumerate(chosen, 1):
            path = folder / f"{training.name}.json"
            if path.exists():
                continue
            say(f"{number} of {len(chosen)}: {training.name}")
            found = record(training, DATA_DIR.value, stopped)
            make_folder(path.parent)
            write_json(path, found)
            shown = ", ".join(
                f"{name}: {format_metric(found['metric'], each['mean'])}"
                for name, each in found["variants"].items()
            )
            print(f"{training.name} ({found['seconds']} s) {shown}", flush=True)


if __name__ == "__main__":
    sys.exit(cli.run(main, __doc__))
