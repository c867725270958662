"""Tables: rows, columns, and cells with the paper's number and the run to reproduce it.

The run of a cell combines its row (learner, strategy) and its column (dataset). Both
can add arguments and overrides of the config, such as the number of shots. All other
settings are those of the config, which are the paper's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Settings = tuple[tuple[str, object], ...]  # names and values

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
NOT_APPLICABLE = "n/a"
NOT_IN_PAPER = "-"  # in a row of our own
# Format of settings in a run's name; others are the field's name and value.
NAME_PARTS = {
    "shots": "{}shot",
    "test_on": "to_{}",
    "name": "{}",
    # Different from the steps and seed of a job's name:
    "steps": "for{}",
    "seed": "drawn{}",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run, without its seed and number of steps.

    Attributes:
      config: name of a file in `experiments/configs`.
      learner, strategy: arguments of the config.
      arguments: further arguments of the config.
      overrides: config fields to set.
      variant: the argument of a `Variant`, or empty.
    """

    config: str
    learner: str
    strategy: str
    arguments: Settings = ()
    overrides: Settings = ()
    variant: Settings = ()

    @property
    def argument(self) -> str:
        """The part of `--config` after the colon."""
        chosen = (("learner", self.learner), ("strategy", self.strategy))
        pairs = (*chosen, *self.arguments, *self.variant)
        return ",".join(f"{name}={value}" for name, value in pairs)

    @property
    def name(self) -> str:
        """Name for files, such as `metabolism/paper-maml-mlti`."""
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
    """A config argument with the paper's value and an alternative that is also run.

    Attributes:
      argument: name of the argument.
      paper, alternative: its two values.
      alternative_overrides: overrides that the alternative needs, by strategy.
    """

    argument: str
    paper: str
    alternative: str
    alternative_overrides: Mapping[str, Settings] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: a dataset.

    Attributes:
      title: title in the paper.
      config: name of a file in `experiments/configs`.
      arguments, overrides: settings of its runs.
      metric: `accuracy`, which the paper prints in percent, or `mse`.
      variant: an argument with an alternative value, if any.
    """

    title: str
    config: str
    arguments: Settings = ()
    overrides: Settings = ()
    metric: str = "accuracy"
    variant: Variant | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: a method and its numbers.

    Attributes:
      group, title: titles in the paper: the learner, and the strategy.
      learner, strategy, arguments, overrides: settings of its runs.
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
    """Return a row with default titles; `numbers` of all columns, space-separated."""
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
    """Return the rows of a learner, given the numbers of each strategy."""
    return [
        row(learner, strategy, of_columns, shots=shots)
        for strategy, of_columns in numbers.items()
    ]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table: the paper's number, if any, and the run that reproduces it."""

    row: Row
    column: Column
    number: str

    @property
    def is_applicable(self) -> bool:
        """Whether the learner applies to the dataset, so it can be run."""
        return self.number != NOT_APPLICABLE

    @property
    def has_number(self) -> bool:
        """Whether the paper has a number for this cell."""
        return self.number not in (NOT_APPLICABLE, NOT_IN_PAPER)

    @property
    def mean(self) -> float:
        """The paper's mean, as printed: accuracy in percent."""
        return float(self.number.partition("±")[0])

    @property
    def ci95(self) -> float:
        """The half-width of the paper's 95 % interval, as printed."""
        return float(self.number.partition("±")[2])

    @property
    def run(self) -> Run:
        """The run with the paper's setup."""
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
    def alternative_run(self) -> Run | None:
        """The run with the alternative value of the column's variant, if it has one."""
        variant = self.column.variant
        if variant is None:
            return None
        needed = variant.alternative_overrides.get(self.row.strategy, ())
        return dataclasses.replace(
            self.run,
            overrides=self.run.overrides + needed,
            variant=((variant.argument, variant.alternative),),
        )


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
      name: name on the command line.
      labels: labels of tables with these numbers in the paper's source; the last one
        has intervals.
      caption: first sentence of the paper's caption.
      columns, rows: datasets and methods.
    """

    name: str
    labels: tuple[str, ...]
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for each in self.rows:
            if len(each.numbers) != len(self.columns):
                raise ValueError(
                    f"{self.name}: {each.group} {each.title} has {len(each.numbers)} "
                    f"numbers for {len(self.columns)} columns"
                )

    def column_cells(self, column: Column) -> list[Cell]:
        """Return the cells of a column, in the order of the rows."""
        index = self.columns.index(column)
        return [Cell(each, column, each.numbers[index]) for each in self.rows]

    def cells(self) -> list[Cell]:
        """Return all cells, column by column."""
        return [cell for column in self.columns for cell in self.column_cells(column)]

    def vanilla(self, cell: Cell) -> Cell | None:
        """Return the vanilla cell of the same learner; None for a vanilla cell.

        Prefers the one with the same overrides.
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
