"""The candidates of `select`: pairs of names, or dictionaries of `fit` arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from mlti_jax._internal.checks import unknown_name
from mlti_jax.api._fit import choose_config, fit
from mlti_jax.data import Splits
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES, LEARNERS
from mlti_jax.strategies._registry import check_applicable, parse
from mlti_jax.training import build
from mlti_jax.training._config import flat_fields

# Of `fit`, but not of a single candidate.
_SHARED = ("tasks", "workdir", "verbose", "steps")
# The fields of a config that arguments of `fit` set.
_FIELDS = {
    "learner": "learner.name",
    "strategy": "strategy.name",
    "ways": "task.ways",
    "shots": "task.shots",
    "seed": "seed",
}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A method to choose from.

    Attributes:
      name: its name in tables.
      config: all settings; seed and number of steps are set for each training run.
      parts: further arguments of `build`, such as a network of the user's.
      uses_default_ema: whether `train.ema` is the default of `fit`, which depends on
        the number of steps.
    """

    name: str
    config: ConfigDict
    parts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    uses_default_ema: bool = False

    @property
    def is_vanilla(self) -> bool:
        """Whether its strategy is `vanilla`."""
        return bool(self.config.strategy.name == "vanilla")


def default_pairs(setting: str) -> list[tuple[str, str]]:
    """Return a small set of candidates for a kind of data.

    Each learner has `vanilla`, and MLTI where it applies.
    """
    learners = ("maml", "anil") if setting == "regression" else ("protonet", "maml")
    pairs = [(name, other) for name in learners for other in ("vanilla", "mlti")]
    if setting == "non_label_sharing":
        pairs.append(("sl", "vanilla"))
    return pairs


def parse_candidates(
    candidates: Sequence[Any] | None, splits: Splits, shared: Mapping[str, Any]
) -> list[Candidate]:
    """Return the candidates with their configs; raise `InputError` if one is invalid.

    Args:
      candidates: pairs `(learner, strategy)` or dictionaries of `fit` arguments, also
        mixed; None for the default of the data.
      splits: the data, from which open fields are chosen; its pools have all tasks.
      shared: arguments of `fit` for all candidates; those of a candidate take
        precedence, and its `overrides` are added.
    """
    _check_arguments(shared, "select")
    if candidates is None:
        candidates = default_pairs(splits.setting)
    if isinstance(candidates, str | Mapping) or not isinstance(candidates, Iterable):
        raise InputError(
            f"candidates is {candidates!r:.80}; expected a list of pairs such as "
            "('protonet', 'mlti'), or of dictionaries of arguments of fit"
        )
    given = [_as_arguments(candidate) for candidate in candidates]
    found = [_make(arguments, splits, shared) for arguments in given]
    check_names([candidate.name for candidate in found])
    return found


def check_names(names: Sequence[str]) -> None:
    """Raise `InputError` for fewer than two candidates, or the same one twice."""
    if len(names) < 2:
        raise InputError(
            f"candidates has {len(names)} entries; expected two or more to choose from"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(
            f"candidate {twice[0]!r} is given twice; remove one, or give dictionaries "
            "with different 'name' entries"
        )


def check_pair(learner: object, strategy: object, setting: str) -> None:
    """Raise `InputError` if a learner or a strategy does not exist or apply."""
    if learner not in LEARNERS:
        raise unknown_name("learner", learner, LEARNERS)
    if not isinstance(strategy, str):
        raise InputError(f"strategy is {strategy!r}; expected the name of a strategy")
    parse(strategy)
    check_applicable(strategy, str(learner))
    if setting == "regression" and learner not in FAMILIES["gradient"]:
        raise InputError(
            f"candidate {learner}:{strategy} does not apply: {learner} needs classes, "
            "and these tasks have numbers as targets; learners for them: "
            f"{', '.join(FAMILIES['gradient'])}"
        )


def _known_arguments() -> list[str]:
    return [name for name in inspect.signature(fit).parameters if name not in _SHARED]


def _check_arguments(arguments: Mapping[str, Any], where: str) -> None:
    for name in arguments:
        if name not in _known_arguments():
            raise unknown_name(f"argument of {where}", name, _known_arguments())


def _as_arguments(candidate: Any) -> dict[str, Any]:
    """Return a candidate as arguments of `fit`, and perhaps a name."""
    if isinstance(candidate, Mapping):
        arguments = dict(candidate)
        _check_arguments({k: v for k, v in arguments.items() if k != "name"}, "fit")
        if not isinstance(arguments.get("name", ""), str):
            raise InputError(f"name is {arguments['name']!r}; expected text")
        return arguments
    is_pair = isinstance(candidate, tuple | list) and len(candidate) == 2
    if not is_pair or not all(isinstance(part, str) for part in candidate):
        raise InputError(
            f"candidate {candidate!r:.80} is neither a pair (learner, strategy) nor a "
            "dictionary of arguments of fit"
        )
    return {"learner": candidate[0], "strategy": candidate[1]}


def _make(
    own: Mapping[str, Any], splits: Splits, shared: Mapping[str, Any]
) -> Candidate:
    arguments = {**shared, **own}
    overrides = {
        **(shared.get("overrides") or {}),
        **(own.get("overrides") or {}),
    }
    if "train.steps" in flat_fields(overrides):
        raise InputError(
            "overrides has train.steps, which select sets for all candidates; use the "
            "arguments budget and steps"
        )
    name = arguments.pop("name", None)
    arguments.pop("overrides", None)
    defaults = inspect.signature(fit).parameters
    for field in ("learner", "strategy"):
        arguments.setdefault(field, defaults[field].default)
    fields = {
        field: arguments.pop(argument)
        for argument, field in _FIELDS.items()
        if argument in arguments
    }
    if isinstance(arguments.get("network"), str):  # a name, as in `fit`
        fields["backbone.name"] = arguments.pop("network")
    config = choose_config(splits, fields, overrides)
    learner, strategy = config.learner.name, config.strategy.name
    check_pair(learner, strategy, splits.setting)
    if name is None:
        extra = {
            k: v
            for k, v in {**own, **(own.get("overrides") or {})}.items()
            if k not in ("learner", "strategy", "overrides", "name")
        }
        name = ", ".join(
            [f"{learner}:{strategy}", *(f"{k}={_short(v)}" for k, v in extra.items())]
        )
    known = inspect.signature(build).parameters
    parts = {k: v for k, v in arguments.items() if k in known and v is not None}
    given = flat_fields(overrides)
    return Candidate(name, config, parts, uses_default_ema="train.ema" not in given)


def _short(value: Any) -> str:
    """Return a value, or the type of an object, whose text may differ next time."""
    plain = value is None or type(value) in (str, bool, int, float, tuple, list)
    return str(value) if plain else type(value).__name__
