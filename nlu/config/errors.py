"""Errors that a user can mend. Commands print them without a traceback and exit with status 2."""

import sys
from collections.abc import Sequence

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


def print_problems(found: Sequence[str], of_job: str = "") -> None:
    """Print problems on standard error, `of_job` in front: one on a line, several as a list."""
    if len(found) == 1:
        text = f"nlu: error: {of_job}{found[0]}"
    else:
        text = "\n".join([f"nlu: error: {of_job}{len(found)} problems", *(f"  - {problem}" for problem in found)])
    print(text, file=sys.stderr, flush=True)
