"""The one exception for input that a user can put right."""


class InputError(ValueError):
    """Something given by the user can't be used; the message says what to do next.

    Command-line tools print it as one line and exit with a non-zero code. Names the
    field or file, the value found, what was expected, and what to do.
    """


def unknown_name(kind: str, name: str, known) -> InputError:
    """The error for a `name` that is none of the `known` members of a family."""
    return InputError(
        f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(known))}"
    )
