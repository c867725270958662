"""From samples, labels and a split to pools, and the words about them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.data._own.inputs import Inputs
from mlti_jax.data._own.labels import NON_LABEL_SHARING, REGRESSION, Labels
from mlti_jax.data._own.splitting import KeptBack, read_choice, split_names
from mlti_jax.data._pools import ClassPool, DomainPool, Pool, RegressionPool, Splits
from mlti_jax.types import PyTree

NAME = "own_data"
# Targets that are so many times larger or smaller than 1 are told of.
FAR_FROM_ONE = 100.0


class Division:
    """Which samples are for training, validation and test.

    Attributes:
      labels: of all samples.
      names: of the tasks (or classes) of each split.
    """

    def __init__(self, labels: Labels, validation: KeptBack, test: KeptBack, seed: int):
        """Splits by task, or by class where tasks are made of classes."""
        self.labels = labels
        self.names = split_names(
            np.unique(labels.group).tolist(),
            validation=validation,
            test=test,
            seed=seed,
            kind=labels.kind,
        )
        shares = [
            share
            for split, choice in (("validation", validation), ("test", test))
            if isinstance(share := read_choice(split, choice), float)
        ]
        self._drawn = f", drawn with seed {seed}" if shares else ""

    def rows(self, split: str) -> np.ndarray:
        """Rows of the samples of a split."""
        return np.flatnonzero(np.isin(self.labels.group, self.names[split]))

    def describe(self) -> str:
        """In words."""
        sizes = [f"{len(part)} {split}" for split, part in self.names.items() if part]
        return f"split by {self.labels.kind}: {', '.join(sizes)}{self._drawn}"


def assemble(
    division: Division,
    x: PyTree,
    inputs: Inputs,
    *,
    note: str,
    details: Sequence[str] = (),
    source: str | None = None,
) -> Splits:
    """Puts samples into pools.

    Args:
      division: labels, and which samples are for what.
      x: samples as pools hold them, every leaf `[M, ...]`.
      inputs: how they came about.
      note: one sentence on what this data is.
      details: sentences on what was done to it.
      source: the file or folder it came from.
    """
    labels = division.labels
    pools = {split: _pool(labels, x, division.rows(split)) for split in division.names}
    facts = [
        f"inputs: {inputs.describe()}",
        f"labels: {labels.found}",
        *details,
        division.describe(),
        *_few_tasks(labels, division),
        *_targets(labels, division),
        *_leaks(pools),
    ]
    return Splits(
        name=NAME,
        setting=labels.setting,
        **pools,
        note=f"{note}: {_size(labels)}",
        source=source,
        inputs=inputs,
        details=tuple(facts),
    )


def _pool(labels: Labels, x: PyTree, rows: np.ndarray) -> Pool | None:
    """The pool of some of the samples; None of none."""
    if not len(rows):
        return None
    x = jax.tree.map(lambda leaf: leaf[rows], x)
    group = labels.group[rows]
    if labels.setting == NON_LABEL_SHARING:
        return ClassPool.from_arrays(x, group)
    if labels.setting == REGRESSION:
        return RegressionPool.from_arrays(x, labels.y[rows], group)
    return DomainPool.from_arrays(x, group, labels.y[rows], classes=labels.classes)


def _size(labels: Labels) -> str:
    groups = len(np.unique(labels.group))
    text = f"{len(labels.group):,} samples of {groups} {labels.kind}"
    if labels.setting == NON_LABEL_SHARING:
        return f"{text}es"
    if labels.setting == REGRESSION:
        return f"{text}s, targets of length {labels.y.shape[1]}"
    names = first_few(labels.classes)
    return f"{text}s with {len(labels.classes)} classes ({names})"


def _few_tasks(labels: Labels, division: Division) -> list[str]:
    """What interpolation can still do with the fewest training tasks."""
    number = len(division.names["train"])
    if labels.kind == "task" and number == 1:
        return [
            "one training task only: there is no other to interpolate it with, so that"
            " samples are mixed within the task alone (strategy intra; mlti and cross"
            " can do no more)"
        ]
    if labels.kind == "class" and number == 2:
        return [
            "two training classes only: every training task has these two, and new"
            " classes can only be mixed of them"
        ]
    return []


def _targets(labels: Labels, division: Division) -> list[str]:
    """Where targets lie, and whether that is far from where learning rates suit."""
    if labels.setting != REGRESSION:
        return []
    targets = labels.y[division.rows("train")].astype(np.float64)
    words = [
        f"targets of the training tasks: from {targets.min():.3g} to"
        f" {targets.max():.3g}, mean {targets.mean():.3g}, standard deviation"
        f" {targets.std():.3g}"
    ]
    if not 1 / FAR_FROM_ONE <= np.abs(targets).max() <= FAR_FROM_ONE:
        words.append(
            "learning rates suit targets of about 1: scale these, and predictions back"
        )
    return words


def _leaks(pools: dict[str, Pool | None]) -> list[str]:
    """How many test samples also stand in the training tasks."""
    if pools["test"] is None:
        return []
    seen = set(_hashes(pools["train"].x))
    share = np.mean([row in seen for row in _hashes(pools["test"].x)])
    if not share:
        return []
    return [f"{share:.1%} of the test samples also stand, alike, in the training tasks"]


def _hashes(x: PyTree) -> list[int]:
    """A number for each sample, the same for equal ones."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    rows = range(len(leaves[0]))
    return [hash(tuple(leaf[i].tobytes() for leaf in leaves)) for i in rows]
