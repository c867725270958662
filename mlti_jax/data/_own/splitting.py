"""Which tasks are kept back for validation and test: by name, or a share of them."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence

import numpy as np

from mlti_jax._internal.checks import did_you_mean, first_few
from mlti_jax.errors import InputError

# What a user may give for `validation` and `test`.
KeptBack = float | str | Sequence[str] | None

# A task of label-sharing data or regression can stand alone; of classes it takes two.
SMALLEST = {"task": 1, "class": 2}


def split_names(
    names: Iterable[str],
    *,
    validation: KeptBack,
    test: KeptBack,
    seed: int = 0,
    kind: str = "task",
) -> dict[str, tuple[str, ...]]:
    """Splits tasks (or classes) into those to train on and those that are kept back.

    Args:
      names: of all; their order does not matter.
      validation: names; or a share between 0 and 1, of which at least one task (two
        classes) is drawn with the seed; None for none. Names may also be given as one
        text with commas between them, and a share as text, as on the command line.
      test: the same. The test tasks that a seed draws do not depend on the share
        that is kept for validation.
      seed: of the draw.
      kind: of thing that the names are of, `task` or `class`.

    Returns:
      Names, sorted, of `train`, `validation` and `test`; together they are all.
    """
    names = sorted(set(names))
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise InputError(f"seed is {seed!r}; expected a whole number from 0 up")
    # Test comes first, so that it is drawn first.
    wanted = {
        "test": read_choice("test", test),
        "validation": read_choice("validation", validation),
    }
    kept: dict[str, Sequence[str]] = {}
    for split, choice in wanted.items():
        if not isinstance(choice, float):
            kept[split] = _check_named(split, choice, names, kind)
    twice = sorted(set(kept.get("test", ())) & set(kept.get("validation", ())))
    if twice:
        raise InputError(
            f"{kind} {twice[0]!r} is named in both validation and test; a model that is"
            " chosen on it can't be judged on it: name it in one of them"
        )
    named = {name for part in kept.values() for name in part}
    left = [name for name in names if name not in named]
    left = [left[i] for i in np.random.default_rng(seed).permutation(len(left))]
    for split, choice in wanted.items():
        if isinstance(choice, float):
            number = max(SMALLEST[kind], int(choice * len(names) + 0.5))
            kept[split], left = left[:number], left[number:]
    if len(left) < SMALLEST[kind]:
        plural = {"task": "tasks", "class": "classes"}[kind]
        raise InputError(
            f"of {len(names)} {plural}, validation keeps {len(kept['validation'])} and"
            f" test {len(kept['test'])}, so that {len(left)} are left for training;"
            f" expected {SMALLEST[kind]} or more. Keep fewer back (a share of them, a"
            " list of names, or None), or add more"
        )
    parts = {"train": left, "validation": kept["validation"], "test": kept["test"]}
    return {split: tuple(sorted(part)) for split, part in parts.items()}


def read_choice(split: str, choice: KeptBack) -> float | tuple[str, ...]:
    """A share, or names."""
    if choice is None:
        return ()
    if isinstance(choice, str):
        try:
            share = float(choice)
        except ValueError:
            share = None
        if share is not None and 0 < share < 1:
            return share
        return tuple(part.strip() for part in choice.split(",") if part.strip())
    if isinstance(choice, numbers.Real):
        if isinstance(choice, bool) or not 0 < choice < 1:
            raise InputError(
                f"{split} is {choice!r}; expected a share between 0 and 1, a list of"
                " names, or None"
            )
        return float(choice)
    return tuple(str(name) for name in choice)


def _check_named(
    split: str, chosen: tuple[str, ...], names: list[str], kind: str
) -> tuple[str, ...]:
    known = set(names)
    for name in chosen:
        if name not in known:
            raise InputError(
                f"{split} names {name!r}, but there is no {kind} of that name"
                f"{did_you_mean(name, names)}; there are: {first_few(names)}"
            )
        if chosen.count(name) > 1:
            raise InputError(f"{split} names {kind} {name!r} twice; name it once")
    if chosen and len(chosen) < SMALLEST[kind]:
        raise InputError(
            f"{split} names a single class, {chosen[0]!r}, but a task needs two to tell"
            " apart; name another"
        )
    return chosen
