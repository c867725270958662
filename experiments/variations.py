"""Tables of our own: one thing changed at a time that the paper leaves open.

They tell what a result hangs on where it is not the paper's. What is changed is a field
of the config; all else is as in the paper's table.
"""

from __future__ import annotations

from experiments.paper import TABLES, columns
from experiments.paper.tables import NOT_IN_PAPER, STRATEGIES, Row, Settings, Table, row
from experiments.table_formats import counted

SHOWN = ("vanilla", "mlti")
STEPS = (1, 500, 2_000, 20_000)  # next to untrained; the last: the released code's


def _rows(learner: str, variations: dict[str, Settings]) -> list[Row]:
    """Each strategy as in the paper, then with each of the variations."""
    return [
        row(
            learner,
            strategy,
            NOT_IN_PAPER,
            title=f"{STRATEGIES[strategy]}{f', {title}' if title else ''}",
            overrides=overrides,
        )
        for title, overrides in {"": (), **variations}.items()
        for strategy in SHOWN
    ]


def _molecules(learner: str, other_norm: str) -> list[Row]:
    return _rows(
        learner,
        {
            **{counted(steps, "step"): (("train.steps", steps),) for steps in STEPS},
            "path fingerprints": (("dataset.fingerprint", "path"),),
            "other molecules drawn": (("dataset.seed", 1),),
            f"{other_norm} statistics at test time": (
                (f"learner.{learner}.norm", other_norm),
            ),
        },
    )


METABOLISM = Table(
    name="variations_metabolism",
    labels=(),
    caption=(
        "What the paper leaves open on Metabolism, one thing at a time: training "
        "steps, fingerprints, which molecules are drawn, batch norm at test time."
    ),
    columns=(columns.METABOLISM,),
    rows=(
        *_molecules("protonet", other_norm="batch"),
        *_molecules("maml", other_norm="running"),
    ),
)

ALL_TABLES = {**TABLES, METABOLISM.name: METABOLISM}  # the paper's and ours
