"""Errors that a user can mend. Commands print them without a traceback and exit with status 2."""

EXIT_USER_ERROR = 2


class UserError(Exception):
    """One or more problems whose remedy lies with the user.

    Each problem is one text that names the offending value, the rule it breaks and what to set instead.
    `str()` of the error lists all of them, so that a user mends everything in one go.
    """

    def __init__(self, *problems: str):
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class DataError(UserError):
    """A row, file or label that cannot be used; names file:row and field."""


class CheckpointError(UserError):
    """Weights or a training state that cannot be read, written or fitted to this model."""
