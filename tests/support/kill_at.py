"""Run `experiments.run` and kill it at a named point of its code.

As a program: `kill_at.py MODULE:FUNCTION WHEN CALL SIGNAL FLAGS...` sends itself the
signal `before` or `after` the given call (from 1) of the function.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
import signal
import sys


def kill_at(point: str, when: str, call: int, name: str) -> None:
    """Wrap the function of a point, so that a call of it kills this process."""
    module_name, _, path = point.partition(":")
    *parents, attribute = path.split(".")
    place = importlib.import_module(module_name)
    if parents:
        place = operator.attrgetter(".".join(parents))(place)
    function = getattr(place, attribute)
    calls = 0

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            os.kill(os.getpid(), signal.Signals[name])
        result = function(*args, **kwargs)
        if calls == call and when == "after":
            os.kill(os.getpid(), signal.Signals[name])
        return result

    setattr(place, attribute, wrapped)


if __name__ == "__main__":
    point, when, call, name, *flags = sys.argv[1:]
    from experiments import cli, run

    sys.argv = ["experiments.run", *flags]
    kill_at(point, when, int(call), name)
    sys.exit(cli.run(run.main, run.__doc__))
