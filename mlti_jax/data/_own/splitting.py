"""From labeled samples to `Splits`: held-out tasks, pools, and facts about the data."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from mlti_jax._internal.checks import did_you_mean, first_few
from mlti_jax.data._own.inputs import Inputs
from mlti_jax.data._own.labels import NON_LABEL_SHARING, REGRESSION, Labels
from mlti_jax.data._own.targets import TargetScaling, describe_targets
from mlti_jax.data._pools import ClassPool, DomainPool, Pool, RegressionPool
from mlti_jax.data._splits import Splits
from mlti_jax.data._user_arrays import check_magnitude
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

NAME = "own_data"

# The values of the arguments `validation` and `test`: a fraction, names, or None.
HeldOut = float | str | Sequence[str] | None

# A task of label-sharing data or regression needs one group, a task of classes two.
MIN_GROUPS = {"task": 1, "class": 2}
PLURAL = {"task": "tasks", "class": "classes"}

# ----------------------------------------------------------------------- held-out tasks


def split_groups(
    names: Iterable[str],
    *,
    validation: HeldOut,
    test: HeldOut,
    seed: int = 0,
    kind: str = "task",
) -> dict[str, tuple[str, ...]]:
    """Split tasks (or classes) into training, validation and test.

    Args:
      names: names of all tasks, in any order.
      validation: names; or a fraction between 0 and 1, for which at least one task
        (two classes) is drawn; None for none. As on the command line, names may be
        one comma-separated string and a fraction may be a string.
      test: the same. The drawn test tasks do not depend on `validation` if that is a
        fraction or None.
      seed: seed of the draw.
      kind: `task` or `class`.

    Returns:
      Sorted names of `train`, `validation` and `test`, which together are all names.

    Raises:
      InputError: if a name is unknown or given twice, or too few remain for training.
    """
    names = sorted(set(names))
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InputError(f"seed is {seed!r}; expected a non-negative integer")
    # The order matters: test is drawn before validation.
    wanted = {
        "test": parse_held_out("test", test),
        "validation": parse_held_out("validation", validation),
    }
    held_out: dict[str, Sequence[str]] = {}
    for split, choice in wanted.items():
        if not isinstance(choice, float):
            held_out[split] = _check_names(split, choice, names, kind)
    twice = sorted(set(held_out.get("test", ())) & set(held_out.get("validation", ())))
    if twice:
        raise InputError(
            f"{kind} {twice[0]!r} is in both validation and test; a model selected on"
            " it can't be evaluated on it. Remove it from one of them"
        )
    chosen = {name for part in held_out.values() for name in part}
    left = [name for name in names if name not in chosen]
    left = [left[i] for i in np.random.default_rng(seed).permutation(len(left))]
    for split, choice in wanted.items():
        if isinstance(choice, float):
            number = max(MIN_GROUPS[kind], int(choice * len(names) + 0.5))
            held_out[split], left = left[:number], left[number:]
    if len(left) < MIN_GROUPS[kind]:
        raise InputError(
            f"validation holds out {len(held_out['validation'])} and test"
            f" {len(held_out['test'])} of {len(names)} {PLURAL[kind]}, which leaves"
            f" {len(left)} for training; expected at least {MIN_GROUPS[kind]}. Hold out"
            f" fewer (a fraction, a list of names, or None) or add {PLURAL[kind]}"
        )
    parts = {
        "train": left,
        "validation": held_out["validation"],
        "test": held_out["test"],
    }
    return {split: tuple(sorted(part)) for split, part in parts.items()}


def parse_held_out(split: str, choice: HeldOut) -> float | tuple[str, ...]:
    """Convert the argument `validation` or `test` to a fraction or to names."""
    if choice is None:
        return ()
    if isinstance(choice, str):
        try:
            fraction = float(choice)
        except ValueError:
            fraction = 0.0
        if 0 < fraction < 1:
            return fraction
        return tuple(part.strip() for part in choice.split(",") if part.strip())
    if not isinstance(choice, float | numbers.Real):
        return tuple(str(name) for name in choice)
    if isinstance(choice, bool) or not 0 < float(choice) < 1:
        raise InputError(
            f"{split} is {choice!r}; expected a fraction between 0 and 1, a list of"
            " names, or None"
        )
    return float(choice)


def _check_names(
    split: str, chosen: tuple[str, ...], names: list[str], kind: str
) -> tuple[str, ...]:
    known = set(names)
    for name in chosen:
        if name not in known:
            raise InputError(
                f"{split} has the unknown {kind} {name!r}{did_you_mean(name, names)};"
                f" the {PLURAL[kind]} are: {first_few(names)}"
            )
        if chosen.count(name) > 1:
            raise InputError(f"{split} has the {kind} {name!r} twice; name it once")
    if chosen and len(chosen) < MIN_GROUPS[kind]:
        raise InputError(
            f"{split} has a single class, {chosen[0]!r}, but a task needs at least 2;"
            " add another class"
        )
    return chosen


class Partition:
    """Labels of all samples, and their partition into training, validation and test.

    Attributes:
      labels: labels of all samples.
      names: names of the tasks (or classes) of each split.
    """

    def __init__(self, labels: Labels, validation: HeldOut, test: HeldOut, seed: int):
        """Split by task, or by class in the setting `non_label_sharing`."""
        self.labels = labels
        self.names = split_groups(
            np.unique(labels.group).tolist(),
            validation=validation,
            test=test,
            seed=seed,
            kind=labels.kind,
        )
        choices = (("validation", validation), ("test", test))
        drawn = [isinstance(parse_held_out(*choice), float) for choice in choices]
        self._seed_text = f", drawn with seed {seed}" if any(drawn) else ""

    def rows(self, split: str) -> np.ndarray:
        """Return the rows of the samples of a split."""
        return np.flatnonzero(np.isin(self.labels.group, self.names[split]))

    def describe(self) -> str:
        """Return a sentence with the number of tasks (or classes) per split."""
        sizes = [f"{len(part)} {split}" for split, part in self.names.items() if part]
        return f"split by {self.labels.kind}: {', '.join(sizes)}{self._seed_text}"


# -------------------------------------------------------------------------------- pools


def make_splits(
    partition: Partition,
    x: PyTree,
    inputs: Inputs,
    *,
    note: str,
    details: Sequence[str] = (),
    source: str | None = None,
    standardise_targets: bool = True,
) -> Splits:
    """Build the pools.

    Args:
      partition: labels of the M samples, and the split of each.
      x: samples as pools store them, every leaf `[M, ...]`.
      inputs: record of how raw data became `x`.
      note: start of the sentence that describes the data.
      details: sentences on how the data was changed.
      source: the file or folder of the data.
      standardise_targets: as in `from_arrays`.

    Raises:
      InputError: if samples or targets are too large for float32.
    """
    labels = partition.labels

    def name(row: int) -> str:
        return f"{labels.kind} {str(labels.group[row])!r}"

    check_magnitude("x", x, name)
    if labels.setting == REGRESSION:
        check_magnitude("y", labels.y, name)
        targets = labels.y[partition.rows("train")]
        if standardise_targets:
            inputs = dataclasses.replace(inputs, targets=TargetScaling.of(targets))
            y = inputs.targets.standardise(labels.y)
            check_magnitude("standardized y", y, name)
            labels = dataclasses.replace(labels, y=y)
        details = [*details, *describe_targets(targets, inputs.targets)]
    train = _pool(labels, x, partition.rows("train"))
    validation, test = (
        _pool(labels, x, rows) if len(rows := partition.rows(split)) else None
        for split in ("validation", "test")
    )
    facts = [
        f"inputs: {inputs.describe()}",
        f"labels: {labels.found}",
        *details,
        partition.describe(),
        *_few_groups(partition),
        *_duplicates(train, test),
    ]
    return Splits(
        name=NAME,
        setting=labels.setting,
        train=train,
        validation=validation,
        test=test,
        note=f"{note}: {_size(labels)}",
        source=source,
        inputs=inputs,
        details=tuple(facts),
    )


def _pool(labels: Labels, x: PyTree, rows: np.ndarray) -> Pool:
    x = jax.tree.map(lambda leaf: leaf[rows], x)
    group = labels.group[rows]
    if labels.setting == NON_LABEL_SHARING:
        return ClassPool.from_arrays(x, group)
    if labels.setting == REGRESSION:
        return RegressionPool.from_arrays(x, labels.y[rows], group)
    return DomainPool.from_arrays(x, group, labels.y[rows], classes=labels.classes)


# -------------------------------------------------------------------------------- facts


def _size(labels: Labels) -> str:
    groups = len(np.unique(labels.group))
    text = f"{len(labels.group):,} samples of {groups} {PLURAL[labels.kind]}"
    if labels.setting == NON_LABEL_SHARING:
        return text
    if labels.setting == REGRESSION:
        return f"{text}, targets of length {labels.y.shape[1]}"
    names = first_few(labels.classes)
    return f"{text} with {len(labels.classes)} classes ({names})"


def _few_groups(partition: Partition) -> list[str]:
    """Explain the effect of the smallest possible number of training tasks."""
    kind, number = partition.labels.kind, len(partition.names["train"])
    if kind == "task" and number == 1:
        return [
            "only one training task: samples are mixed within this task (strategy"
            " intra); mlti and cross have no second task to interpolate with"
        ]
    if kind == "class" and number == 2:
        return [
            "only two training classes: every training task has the same two, and new"
            " classes are mixtures of them"
        ]
    return []


def _duplicates(train: Pool, test: Pool | None) -> list[str]:
    """Report the fraction of test samples that also occur in the training tasks."""
    if test is None:
        return []
    seen = set(_hashes(train.x))
    fraction = np.mean([row in seen for row in _hashes(test.x)])
    if not fraction:
        return []
    return [f"{fraction:.1%} of the test samples also occur in the training tasks"]


def _hashes(x: PyTree) -> list[int]:
    """Hash each sample."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    rows = range(len(leaves[0]))
    return [hash(tuple(leaf[i].tobytes() for leaf in leaves)) for i in rows]
