"""The platform that programs are written for.

A few operations choose between two forms when they are traced, not when they are
lowered. They ask `target` instead of JAX, so that a program for an accelerator can be
compiled on a machine that does not have one.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "mlti_jax_target_platform", default=None
)


def target() -> str:
    """Return the platform of the programs that are traced now, `cpu` or another."""
    return _target.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Trace programs for another platform than JAX's default backend.

    JAX does not know of this choice: functions that were compiled before keep theirs.

    Args:
      platform: as in `jax.default_backend()`, or `accelerator` for all but `cpu`: no
        operation distinguishes them when it is traced.
    """
    token = _target.set(platform)
    try:
        yield
    finally:
        _target.reset(token)
