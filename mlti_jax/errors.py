"""Errors that are told to the user in one message, and checks that raise them."""

import difflib
import inspect
import numbers
from collections.abc import Callable, Iterable, Sequence


class InputError(ValueError):
    """Something given by the user can't be used; the message says what to do next.

    Command-line tools print it as one line and exit with a non-zero code. Names the
    field or file, the value found, what was expected, and what to do.
    """


class Interrupted(Exception):
    """A signal ended the work; all is saved, and the same command goes on from there.

    Attributes:
      exit_code: for the shell.
    """

    def __init__(self, signal_number: int, step: int):
        super().__init__(
            f"stopped at step {step}, saved; run the same command again "
            "to go on from there"
        )
        self.exit_code = 128 + signal_number


def check_options(
    kind: str,
    function: Callable,
    options: Iterable[str],
    passes_on_to: Callable | None = None,
) -> None:
    """Refuses options that `function` does not take.

    Args:
      kind: of thing, for the error.
      function: is given the options.
      options: their names.
      passes_on_to: is given those that `function` does not name itself, if it takes
        any (`**options`).
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    if len(known) < len(parameters):
        if passes_on_to is None:
            return
        further = inspect.signature(passes_on_to).parameters.values()
        known += [p.name for p in further if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {kind}", name, known)


def unknown_name(kind: str, name: str, known) -> InputError:
    """The error for a `name` that is none of the `known` members of a family."""
    return InputError(
        f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(known))}"
    )


def first_few(names: Sequence[str]) -> str:
    """Names for a message that must stay short."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` with the known name that is nearest, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_range(field: str, value: object, largest: int, smallest: int = 1) -> None:
    """Refuses what is not a whole number from `smallest` to `largest`."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not smallest <= value <= largest:
        raise InputError(
            f"{field} is {value!r}; expected a whole number from {smallest} to"
            f" {largest}"
        )
