"""Test tasks per second, ours and PyTorch's: table `evaluation`.

Our side is the evaluator of `experiments.run`, with drawing of the tasks. Pools have
the size of the paper's test sets. For images, an evaluation has about a tenth of the
usual 600 tasks.

Where the normalization uses running averages (ProtoNet on miniImageNet and Metabolism),
our evaluator computes the features of each sample of the pool once for all tasks. So
that this saves as much as in a whole evaluation, miniImageNet's pool has about a tenth
of its samples, too.

PyTorch draws as many tasks with one gather as our evaluator, and then runs one after
the other. `features first` also computes the features of each sample once, with
channels last; few users would write this, but it does the same work as our evaluator.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import asdict, dataclass, replace

import jax

from experiments.benchmark import timing
from experiments.benchmark.cases import BIO, MINI, RAINBOW, Case, make_pool, vanilla
from experiments.benchmark.program import Parts, make_parts
from experiments.benchmark.steps import SHORT, format_fastest
from mlti_jax.parallel import plan_for
from mlti_jax.training import base_config
from mlti_jax.training._evaluation import Evaluator

TASKS_PER_PASS = base_config().eval.tasks_per_pass
# Options of `torch.evaluation.make_evaluation`.
TORCH_SIDES = {
    "torch": {},
    "torch_channels_last": {"channels_last": True},
    "torch_compile": {"channels_last": True, "compiled": True},
    "torch_features": {"channels_last": True, "features_first": True},
}
NAMES = {**SHORT, "torch_features": "features first"}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation.

    Attributes:
      case: learner, network, size of the tasks and pool.
      norm: statistics of the normalization, `batch` or `running`.
      tasks: number of tasks.
    """

    case: Case
    norm: str = "batch"
    tasks: int = 64

    @property
    def running(self) -> bool:
        """Whether the normalization uses running averages."""
        return self.norm == "running"


def _cases() -> dict[str, Evaluation]:
    rainbow = replace(vanilla(RAINBOW), pool=(10, 10, 20), queries=15)
    mini = replace(vanilla(MINI), pool=(20, 64))
    bio = replace(vanilla(BIO), pool=(3, 2, 500))
    # Norm as in the configs.
    sizes = {
        "conv4_28_1s": (Evaluation(rainbow), "batch"),
        "conv4_84_1s": (Evaluation(mini), "running"),
        "bio": (Evaluation(bio, tasks=600), "running"),
    }
    cases = {}
    for name, (maml, norm) in sizes.items():
        case = replace(maml.case, learner="protonet")
        cases[f"maml_{name}"] = maml
        cases[f"protonet_{name}"] = replace(maml, case=case, norm=norm)
    return cases


CASES = _cases()


def make_evaluator(evaluation: Evaluation) -> tuple[Evaluator, Parts]:
    """Build our evaluator as `experiments.run` does; also return the other parts."""
    case = evaluation.case
    parts = make_parts(case)
    learner = dataclasses.replace(parts.learner, norm=evaluation.norm)
    plan = plan_for(parts.pool.x, case.tasks)
    evaluator = Evaluator(learner, parts.strategy, parts.episode, TASKS_PER_PASS, plan)
    return evaluator, parts


def make_ours(evaluation: Evaluation) -> timing.Steps:
    """Build a function that evaluates a number of times."""
    evaluator, parts = make_evaluator(evaluation)
    variables, pool, key = parts.state.variables, parts.pool, jax.random.key(1)

    def evaluations(count: int) -> None:
        for _ in range(count):
            evaluator(variables, pool, key, evaluation.tasks)

    return evaluations


def make_theirs(
    evaluation: Evaluation,
) -> tuple[dict[str, timing.Steps], dict[str, str]]:
    """Build PyTorch's sides, and the reasons for those that it cannot run."""
    sides: dict[str, timing.Steps] = {}
    refused: dict[str, str] = {}
    if importlib.util.find_spec("torch") is None:
        return sides, refused
    from experiments.benchmark.torch.evaluation import make_evaluation

    case = evaluation.case
    for side, options in TORCH_SIDES.items():
        if side == "torch_channels_last" and case.backbone == "mlp":
            continue
        if side == "torch_features" and not evaluation.running:
            continue
        evaluate = make_evaluation(
            case,
            *make_pool(case),
            running=evaluation.running,
            tasks_per_pass=TASKS_PER_PASS,
            **options,
        )
        try:
            evaluate(1)  # compiles
        except RuntimeError as error:
            if side != "torch_compile":
                raise
            refused[side] = str(error).strip().partition("\n")[0]
            continue

        def evaluations(count: int, evaluate=evaluate) -> None:
            for _ in range(count):
                evaluate(evaluation.tasks)

        sides[side] = evaluations
    return sides, refused


def measure(rounds: int, seconds: float) -> dict:
    """Measure all evaluations."""
    return measure_cases(CASES, rounds, seconds)


def measure_cases(cases: dict[str, Evaluation], rounds: int, seconds: float) -> dict:
    """Time our side and PyTorch's in turn.

    Args:
      cases: the evaluations by name.
      rounds: per case, see `timing.time_sides`.
      seconds: per case, see `timing.time_sides`.

    Returns:
      A result with one row per case in `rows`: the `time` of an evaluation for each
      side, its `tasks_per_second`, the `ratio` of each PyTorch side to ours, the
      `fastest` PyTorch side, and what was `refused`.
    """
    share = timing.CpuShare()
    rows = {}
    for name, evaluation in cases.items():
        ours = make_ours(evaluation)
        theirs, refused = make_theirs(evaluation)
        times = timing.time_sides({"jax": ours, **theirs}, rounds, seconds)
        spreads = {side: timing.spread(values) for side, values in times.items()}
        ratios = timing.ratios(spreads)
        rows[name] = {
            "setting": asdict(evaluation),
            "time": spreads,
            "tasks_per_second": {
                side: 1e3 * evaluation.tasks / spread["median_ms"]
                for side, spread in spreads.items()
            },
            "ratio": ratios,
            "fastest": min(ratios, key=ratios.get, default=None),
            "refused": refused,
        }
    return {
        "case": "evaluation",
        "kind": "evaluation",
        "rows": rows,
        "others": share.of_others(),
    }


def table(result: dict) -> str:
    """Format a result, one line per case."""
    heads = "".join(f"{NAMES[side]:>16}" for side in TORCH_SIDES)
    lines = [
        "evaluation: test tasks per second, then how many times as many as PyTorch; "
        f"others {timing.format_share(result['others'])}",
        f"  {'':22}{'ours':>8}{'PyTorch':>9}{heads}{'fastest':>22}",
    ]
    for name, row in result["rows"].items():
        rates, ratios = row["tasks_per_second"], row["ratio"]
        cells = "".join(
            f"{f'{rates[side]:.0f}' if side in rates else '-':>{width}}"
            for side, width in (("jax", 8), ("torch", 9))
        )
        for side in TORCH_SIDES:
            cells += f"{f'{ratios[side]:.2f}' if side in ratios else '-':>16}"
        lines.append(f"  {name:22}{cells}{format_fastest(row, NAMES):>22}")
        lines += [f"    no {side}: {why}" for side, why in row["refused"].items()]
    return "\n".join(lines)
