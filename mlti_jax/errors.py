"""Exceptions of the package."""

__all__ = ["InputError", "Interrupted"]


class InputError(ValueError):
    """An argument, config field, flag or file is invalid.

    The message names the field or file, the value found, what was expected and what to
    do next. Command-line tools print it as a single line and exit with code 2.
    """


class Interrupted(Exception):
    """A signal stopped the training. All progress is saved and can be resumed.

    Attributes:
      exit_code: exit code for the shell, 128 plus the signal number.
    """

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(
            f"stopped at step {step}; progress is saved, run the same command again "
            "to resume"
        )
        self.exit_code = 128 + signal_number
