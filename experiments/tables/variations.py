"""Tables of our own: one thing changed at a time that the paper leaves open.

They tell what a result hangs on where it is not the paper's. What is changed is a field
of the config; all else is as in the paper's table.
"""

from __future__ import annotations

from experiments.paper import TABLES, columns
from experiments.paper.tables import NOT_IN_PAPER, STRATEGIES, Row, Settings, Table, row
from experiments.tables.formats import counted

SHOWN = ("vanilla", "mlti")
FINGERPRINTS = {"path fingerprints": (("dataset.fingerprint", "path"),)}
DRAW = {"other molecules drawn": (("dataset.seed", 1),)}


def _steps(*numbers: int) -> dict[str, Settings]:
    return {counted(number, "step"): (("train.steps", number),) for number in numbers}


def _norm(learner: str, policy: str) -> dict[str, Settings]:
    field = f"learner.{learner}.norm"
    return {f"{policy} statistics at test time": ((field, policy),)}


def _rows(learner: str, *variations: dict[str, Settings]) -> list[Row]:
    """Each strategy as in the paper, then with each of the variations."""
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
    # The first: next to untrained; the last: the released code's.
    steps = _steps(1, 500, 2_000, 20_000)
    return _rows(learner, steps, FINGERPRINTS, DRAW, _norm(learner, other_norm))


METABOLISM = Table(
    name="variations_metabolism",
    labels=(),
    caption=(
        "What the paper leaves open on Metabolism, one thing at a time: training "
        "steps, fingerprints, which molecules are drawn, batch norm at test time."
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
        "What the paper leaves open on NCI, one thing at a time: training steps, "
        "fingerprints, which molecules are drawn."
    ),
    columns=(columns.NCI,),
    rows=tuple(
        each
        for learner in ("protonet", "maml")
        for each in _rows(learner, _steps(1, 500), FINGERPRINTS, DRAW)
    ),
)

OURS = {table.name: table for table in (METABOLISM, NCI)}
ALL_TABLES = {**TABLES, **OURS}
