"""The settings and versions that made a result, kept with it.

A config's defaults may change. A result that was made with other settings than its
config has today is no longer that config's result, and must not be averaged or compared
with others as if it were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import jax
import jaxlib
from ml_collections import ConfigDict

import mlti_jax
from experiments.tables.jobs import ALBERT_FIELDS

# Of these sections only what the run has chosen counts.
FAMILIES = ("backbone", "learner", "strategy")
# Told by fields of their own, or without a part in what comes out, or paths.
APART = (
    "seed",
    "compilation_cache",
    "data",
    "train.steps",
    "train.log_every",
    "train.checkpoint_every",
    "train.devices",
    "train.tasks_per_pass",
    "eval.seed",
    "eval.tasks_per_pass",
    *ALBERT_FIELDS,
)


def versions() -> dict[str, str]:
    """Of this package, and of what computes."""
    return {
        "mlti_jax": mlti_jax.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
    }


def settings(config: Mapping | ConfigDict) -> dict[str, object]:
    """The fields of a config that make a result, as plain values of JSON."""
    plain = config.to_dict() if isinstance(config, ConfigDict) else config
    return dict(_flat(json.loads(json.dumps(plain))))


def _flat(section: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    names = section
    if prefix in FAMILIES:
        chosen = section["name"].split("+")
        names = [name for name in section if name == "name" or name in chosen]
    for name in names:
        field = f"{prefix}.{name}" if prefix else name
        if field in APART:
            continue
        if isinstance(section[name], dict):
            yield from _flat(section[name], field)
        else:
            yield field, section[name]


def why_outdated(result: Mapping, config: ConfigDict) -> str:
    """What has changed since a result was made; empty if nothing.

    Fields that one of the two does not know are passed over.
    """
    now = settings(config)
    for field, value in result.get("settings", {}).items():
        if field in now and now[field] != value:
            return f"{field} was {value}, and is {now[field]} now"
    return ""
