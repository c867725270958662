"""What the paper's tables are made of: rows, columns, numbers, and each cell's run.

A cell's run is put together from its row (learner, strategy) and its column (dataset);
both may add arguments and fields of the config, such as the number of shots. What
neither names has the config's value, which is the paper's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Settings = tuple[tuple[str, object], ...]  # names and values, in order

LEARNERS = {
    "maml": "MAML",
    "protonet": "ProtoNet",
    "matchingnet": "MatchingNet",
    "metasgd": "MetaSGD",
    "anil": "ANIL",
    "meta_curvature": "MC",
    "sl": "SL",
    "mtl": "MTL",
}
STRATEGIES = {
    "vanilla": "Vanilla",
    "metareg": "Meta-Reg",
    "taml": "TAML",
    "metadropout": "Meta-Dropout",
    "metaaug": "MetaAug",
    "metamix": "MetaMix",
    "maxup": "Meta-Maxup",
    "intra": "Intra-Intrpl",
    "cross": "Cross-Intrpl",
    "mlti": "MLTI",
}
NOT_GIVEN = "n/a"
NOT_IN_PAPER = "-"  # of a row of our own
# How settings stand in a run's name; others as their field's name and value.
NAME_PARTS = {
    "shots": "{}shot",
    "test_on": "to_{}",
    "name": "{}",
    # Apart from the steps and seeds that the command line sets:
    "steps": "for{}",
    "seed": "drawn{}",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What is trained and tested for a cell, but for its seed and steps.

    Attributes:
      config: a file of `experiments/configs`.
      learner, strategy: arguments of the config.
      arguments: further ones.
      overrides: fields of the config that are set.
      variant: one more argument, of a `Variant`, or nothing.
    """

    config: str
    learner: str
    strategy: str
    arguments: Settings = ()
    overrides: Settings = ()
    variant: Settings = ()

    @property
    def argument(self) -> str:
        """What stands behind the colon of `--config`."""
        chosen = (("learner", self.learner), ("strategy", self.strategy))
        pairs = (*chosen, *self.arguments, *self.variant)
        return ",".join(f"{name}={value}" for name, value in pairs)

    @property
    def name(self) -> str:
        """For files: `metabolism/paper-maml-mlti`, say."""
        parts = [str(value) for _, value in self.variant]
        parts += [self.learner, self.strategy]
        parts += [_name_part(*setting) for setting in self.arguments + self.overrides]
        return f"{self.config}/{'-'.join(parts)}"


def _name_part(field: str, value: object) -> str:
    field = field.rpartition(".")[2]
    text = "_".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return NAME_PARTS.get(field, field + "{}").format(text)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A choice that the paper makes in one way, and that is also run in another.

    Attributes:
      argument: of the config.
      paper, other: its two values.
      other_overrides: fields that the other way needs, by strategy.
    """

    argument: str
    paper: str
    other: str
    other_overrides: Mapping[str, Settings] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: a dataset, and how it is used.

    Attributes:
      title: as in the paper.
      config: a file of `experiments/configs`.
      arguments, overrides: of its runs.
      metric: `accuracy`, which the paper prints in percent, or `mse`.
      variant: another way of running it, if there is one.
    """

    title: str
    config: str
    arguments: Settings = ()
    overrides: Settings = ()
    metric: str = "accuracy"
    variant: Variant | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """A row: a method, and its numbers.

    Attributes:
      group, title: as in the paper: the learner, and what is done to it.
      learner, strategy, arguments, overrides: of its runs.
      numbers: for each column, `57.34±1.25`, `n/a`, or `-` in a row of our own.
    """

    group: str
    title: str
    learner: str
    strategy: str
    numbers: tuple[str, ...]
    arguments: Settings = ()
    overrides: Settings = ()


def row(
    learner: str,
    strategy: str,
    numbers: str,
    *,
    title: str | None = None,
    shots: int | None = None,
    overrides: Settings = (),
) -> Row:
    """A row with the usual titles; `numbers` are those of all columns, with spaces."""
    return Row(
        group=LEARNERS[learner] + (f" ({shots}-shot)" if shots else ""),
        title=STRATEGIES[strategy] if title is None else title,
        learner=learner,
        strategy=strategy,
        numbers=tuple(numbers.split()),
        arguments=(("shots", shots),) if shots else (),
        overrides=overrides,
    )


def rows(learner: str, shots: int | None = None, **numbers: str) -> list[Row]:
    """The rows of a learner: for each strategy its numbers."""
    return [row(learner, *each, shots=shots) for each in numbers.items()]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of the paper, or a place for one of ours, and the run that makes it."""

    row: Row
    column: Column
    number: str

    @property
    def is_given(self) -> bool:
        """Whether there is something to run: all but what the paper leaves out."""
        return self.number != NOT_GIVEN

    @property
    def has_number(self) -> bool:
        """Whether the paper has a number here."""
        return self.number not in (NOT_GIVEN, NOT_IN_PAPER)

    @property
    def mean(self) -> float:
        """The paper's mean, as it is printed: accuracy in percent."""
        return float(self.number.partition("±")[0])

    @property
    def ci95(self) -> float:
        """The half-width of the paper's interval, alike."""
        return float(self.number.partition("±")[2])

    @property
    def run(self) -> Run:
        """The paper's run."""
        variant = self.column.variant
        chosen = () if variant is None else ((variant.argument, variant.paper),)
        return Run(
            config=self.column.config,
            learner=self.row.learner,
            strategy=self.row.strategy,
            arguments=self.row.arguments + self.column.arguments,
            overrides=self.row.overrides + self.column.overrides,
            variant=chosen,
        )

    @property
    def other_run(self) -> Run | None:
        """The same in the other way, where the column has one."""
        variant = self.column.variant
        if variant is None:
            return None
        needed = variant.other_overrides.get(self.row.strategy, ())
        return dataclasses.replace(
            self.run,
            overrides=self.run.overrides + needed,
            variant=((variant.argument, variant.other),),
        )


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
      name: on the command line.
      labels: of the same numbers in the paper's source; the last with intervals.
      caption: the paper's, its first sentence.
      columns, rows: its content.
    """

    name: str
    labels: tuple[str, ...]
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self):
        for each in self.rows:
            if len(each.numbers) != len(self.columns):
                raise ValueError(
                    f"{self.name}: {each.group} {each.title} has {len(each.numbers)} "
                    f"numbers for {len(self.columns)} columns"
                )

    def column_cells(self, column: Column) -> list[Cell]:
        """The cells of a column, in the order of the rows."""
        place = self.columns.index(column)
        return [Cell(each, column, each.numbers[place]) for each in self.rows]

    def cells(self) -> list[Cell]:
        """All cells, column by column."""
        return [cell for column in self.columns for cell in self.column_cells(column)]

    def vanilla(self, cell: Cell) -> Cell | None:
        """What a cell is compared with: the same learner as it is; None for itself.

        If there is more than one, it is that of the same overrides.
        """
        if cell.row.strategy == "vanilla":
            return None
        found = [
            other
            for other in self.column_cells(cell.column)
            if other.row.strategy == "vanilla"
            and other.row.learner == cell.row.learner
            and other.row.arguments == cell.row.arguments
        ]
        same = [other for other in found if other.row.overrides == cell.row.overrides]
        return (same or found)[0]
