"""Strategies. A new one is one file and one line in `STRATEGIES`."""

from collections.abc import Callable, Mapping

from mlti_jax.errors import InputError, unknown_name
from mlti_jax.strategies.base import (
    Strategy,
    chain,
    check_layers,
    eval_variables,
    init_variables,
    meta_objective,
)
from mlti_jax.strategies.mlti import cross, intra, mlti


def vanilla() -> Strategy:
    """Tasks as they are drawn, the mean of their losses."""
    return Strategy("vanilla")


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "vanilla": vanilla,
    "mlti": mlti,
    "intra": intra,
    "cross": cross,
}

# Those that mix samples; they are given the dataset's form, method and layers.
INTERPOLATING = frozenset({"mlti", "intra", "cross"})


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
    options: Mapping[str, Mapping[str, object]] | None = None,
) -> Strategy:
    """Builds a strategy, or a chain of several, by name.

    Args:
      names: one of `STRATEGIES`, or several joined by `+`.
      interpolation: `form`, `method` and `layers`, for those that mix samples.
      options: the hyper-parameters of each, by its name.
    """
    built = []
    for name in parse(names):
        own = dict((options or {}).get(name, {}))
        if name in INTERPOLATING:
            own = {**interpolation, **own}
        built.append(STRATEGIES[name](**own))
    return chain(*built)


__all__ = [
    "INTERPOLATING",
    "STRATEGIES",
    "Strategy",
    "chain",
    "check_layers",
    "cross",
    "eval_variables",
    "init_variables",
    "intra",
    "make",
    "meta_objective",
    "mlti",
    "parse",
    "vanilla",
]
