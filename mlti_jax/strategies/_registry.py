"""All strategies by name. A new one is one file and one line in `STRATEGIES`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies._base import Strategy, chain, vanilla
from mlti_jax.strategies._maxup import maxup
from mlti_jax.strategies._metaaug import metaaug
from mlti_jax.strategies._metadropout import metadropout
from mlti_jax.strategies._metamix import metamix
from mlti_jax.strategies._metamodulation import metamodulation
from mlti_jax.strategies._metareg import metareg
from mlti_jax.strategies._mlti import cross, intra, mlti
from mlti_jax.strategies._taml import taml
from mlti_jax.strategies._views import views

STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "vanilla": vanilla,
    "mlti": mlti,
    "intra": intra,
    "cross": cross,
    "metamix": metamix,
    "maxup": maxup,
    "metaaug": metaaug,
    "metareg": metareg,
    "taml": taml,
    "metadropout": metadropout,
    "views": views,
    "metamodulation": metamodulation,
}


def parse(names: str) -> tuple[str, ...]:
    """Split a name such as `mlti+metareg` into its members.

    Raises:
      InputError: if a member is empty, unknown or occurs twice.

    Examples:
      >>> parse("mlti+metareg")
      ('mlti', 'metareg')
    """
    members = tuple(name.strip() for name in names.split("+"))
    if not all(members):
        fault = f"{names!r} has an empty member" if names.strip() else "is empty"
        raise InputError(
            f"strategy {fault}; give one name, or several joined with +, such as "
            "mlti+metareg"
        )
    for name in members:
        if name not in STRATEGIES:
            raise unknown_name("strategy", name, STRATEGIES)
    if len(set(members)) < len(members):
        raise InputError(f"strategy {names!r} names one member twice")
    return members


def make(
    names: str,
    *,
    setting: str,
    interpolation: Mapping[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Strategy:
    """Build a strategy, or a chain of several, by name.

    Args:
      names: name of a strategy, or several joined with `+`.
      setting: `label_sharing`, `non_label_sharing` or `regression`, see
        `effective_setting`.
      interpolation: `method` and `layers`, how samples are mixed; passed to the
        strategies that mix.
      options: hyper-parameters by name of the strategy.

    Raises:
      InputError: if a name or an option is unknown.

    Examples:
      >>> options = {"mlti": {"alpha": 0.5}}
      >>> make("mlti+taml", setting="label_sharing", options=options).name
      'mlti+taml'
    """
    facts = {"setting": setting, **(interpolation or {})}
    built = []
    for name in parse(names):
        function = STRATEGIES[name]
        own = (options or {}).get(name, {})
        check_options(f"strategy {name}", function, own)
        known = inspect.signature(function).parameters
        given = {fact: value for fact, value in facts.items() if fact in known}
        built.append(function(**{**given, **own}))
    return chain(*built)


def applies_to(names: str) -> frozenset[str]:
    """Return the families of learners that a strategy applies to.

    Examples:
      >>> sorted(applies_to("mlti"))
      ['gradient', 'metric']
    """
    return make(names, setting="label_sharing").applies_to


def check_applicable(names: str, learner: str) -> None:
    """Raise `InputError` if a learner cannot be trained with a strategy.

    Args:
      names: name of the strategy.
      learner: name of the learner.

    Examples:
      >>> check_applicable("mlti", "protonet")
    """
    family = next(key for key, members in FAMILIES.items() if learner in members)
    for name in parse(names):
        if family not in applies_to(name):
            known = [other for other in STRATEGIES if family in applies_to(other)]
            raise InputError(
                f"strategy {name} does not apply to learner {learner}: it needs a "
                f"learner of the family {' or '.join(sorted(applies_to(name)))}, and "
                f"{learner} is of the family {family}; strategies for {learner}: "
                f"{', '.join(known)}"
            )
