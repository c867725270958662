"""Our own tables: vary one setting at a time that the paper does not specify.

They show which settings a result depends on. Each row overrides one config field;
everything else is as in the paper's table.
"""

from __future__ import annotations

from experiments.paper import TABLES, columns
from experiments.paper.tables import NOT_IN_PAPER, STRATEGIES, Row, Settings, Table, row
from experiments.tables.formats import pluralize

SHOWN = ("vanilla", "mlti")
FINGERPRINTS: dict[str, Settings] = {
    "path fingerprints": (("dataset.fingerprint", "path"),)
}
SELECTION: dict[str, Settings] = {"other molecules drawn": (("dataset.seed", 1),)}
# The molecules of the released code.
FIRST: dict[str, Settings] = {
    "first molecules, tested on all": (("dataset.draw", "first"),)
}


def _steps(*numbers: int) -> dict[str, Settings]:
    return {pluralize(number, "step"): (("train.steps", number),) for number in numbers}


def _norm(learner: str, policy: str) -> dict[str, Settings]:
    field = f"learner.{learner}.norm"
    return {f"{policy} statistics at test time": ((field, policy),)}


def _rows(learner: str, *variations: dict[str, Settings]) -> list[Row]:
    """Rows of each strategy with the paper's settings, then with each variation."""
    titled = {title: changed for some in variations for title, changed in some.items()}
    return [
        row(
            learner,
            strategy,
            NOT_IN_PAPER,
            title=f"{STRATEGIES[strategy]}{f', {title}' if title else ''}",
            overrides=overrides,
        )
        for title, overrides in {"": (), **titled}.items()
        for strategy in SHOWN
    ]


def _metabolism(learner: str, other_norm: str) -> list[Row]:
    # 1: almost untrained; 20,000: as in the released code.
    steps = _steps(1, 500, 2_000, 20_000)
    return _rows(learner, steps, FINGERPRINTS, SELECTION, _norm(learner, other_norm))


METABOLISM = Table(
    name="variations_metabolism",
    labels=(),
    caption=(
        "Settings of Metabolism that the paper does not specify, one at a time: "
        "training steps, fingerprints, selection of molecules, batch norm at test time."
    ),
    columns=(columns.METABOLISM,),
    rows=(
        *_metabolism("protonet", other_norm="batch"),
        *_metabolism("maml", other_norm="running"),
    ),
)
NCI = Table(
    name="variations_nci",
    labels=(),
    caption=(
        "Settings of NCI that the paper does not specify, one at a time: training "
        "steps, fingerprints, selection of molecules. The released code uses the first "
        "500 molecules of each class for training and tests on all molecules."
    ),
    columns=(columns.NCI,),
    rows=tuple(
        each
        for learner in ("protonet", "maml")
        for each in _rows(learner, _steps(1, 500), FINGERPRINTS, SELECTION, FIRST)
    ),
)

OURS = {table.name: table for table in (METABOLISM, NCI)}
ALL_TABLES = {**TABLES, **OURS}
