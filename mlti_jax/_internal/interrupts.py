"""Ctrl-C while a command imports its modules, which takes seconds."""

from __future__ import annotations

import sys
from types import TracebackType


def _report(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


# While `python -m` imports the packages of its module, `sys.argv[0]` is "-m". Then this
# process is a command of this package, and its exceptions are ours to report.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = _report
