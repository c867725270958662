"""Strategies. A new one is one file, a line in `STRATEGIES`, and one in `APPLIES`."""

import inspect
from collections.abc import Callable, Mapping

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.errors import InputError
from mlti_jax.strategies._applicability import APPLIES, check_applicable
from mlti_jax.strategies._base import (
    Strategy,
    chain,
    check_batch_size,
    check_layers,
    each_task,
    eval_variables,
    form_and_labels,
    init_variables,
    meta_objective,
    perturbation,
)
from mlti_jax.strategies._maxup import maxup
from mlti_jax.strategies._metaaug import metaaug
from mlti_jax.strategies._metadropout import metadropout
from mlti_jax.strategies._metamix import metamix
from mlti_jax.strategies._metareg import metareg
from mlti_jax.strategies._mlti import cross, intra, mlti
from mlti_jax.strategies._taml import taml


def vanilla() -> Strategy:
    """Tasks as they are drawn, the mean of their losses."""
    return Strategy("vanilla")


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
}


def parse(names: str) -> tuple[str, ...]:
    """Splits `mlti+metareg` into its members and checks that they exist."""
    members = tuple(name.strip() for name in names.split("+"))
    for name in members:
        if name not in STRATEGIES:
            raise unknown_name("strategy", name, STRATEGIES)
    if len(set(members)) < len(members):
        raise InputError(f"strategy {names!r} names one member twice")
    return members


def make(
    names: str,
    *,
    interpolation: Mapping[str, object],
    labels: str = "as_drawn",
    options: Mapping[str, Mapping[str, object]] | None = None,
) -> Strategy:
    """Builds a strategy, or a chain of several, by name.

    Each is given those facts of the data that its function names, and its options.

    Args:
      names: one of `STRATEGIES`, or several joined by `+`.
      interpolation: `form`, `method` and `layers`: how samples are mixed.
      labels: what MetaAug may do to them, one of `metaaug.LABELS`: `permute` classes
        that all tasks share, `shift` targets, or leave them `as_drawn`.
      options: the hyper-parameters of each, by its name.
    """
    facts = {**interpolation, "labels": labels}
    built = []
    for name in parse(names):
        function = STRATEGIES[name]
        own = (options or {}).get(name, {})
        check_options(f"strategy {name}", function, own)
        known = inspect.signature(function).parameters
        given = {fact: value for fact, value in facts.items() if fact in known}
        built.append(function(**{**given, **own}))
    return chain(*built)


__all__ = [
    "APPLIES",
    "STRATEGIES",
    "Strategy",
    "chain",
    "check_applicable",
    "check_batch_size",
    "check_layers",
    "cross",
    "each_task",
    "eval_variables",
    "form_and_labels",
    "init_variables",
    "intra",
    "make",
    "maxup",
    "meta_objective",
    "metaaug",
    "metadropout",
    "metamix",
    "metareg",
    "mlti",
    "parse",
    "perturbation",
    "taml",
    "vanilla",
]
