"""Ctrl-C in a command, from its first import on.

A `KeyboardInterrupt` inside an import prints a traceback, and Python drops one that is
raised in a callback, such as JAX's of the garbage collector. So a command just ends.
Training catches the signal to save its state (`progress.stop_signal`), and a command
that has to clean up calls `raise_again` first.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def end_quietly() -> None:
    """End this process at the first Ctrl-C, until `raise_again`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# While `python -m` imports the packages of its module, `sys.argv[0]` is "-m". Only then
# is this process a command of the project.
if sys.argv[:1] == ["-m"]:
    end_quietly()
