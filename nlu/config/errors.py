"""Errors that a user can mend. Commands print them without a traceback and exit with status 2."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nlu.config.words import with_origins
from nlu.storage.redaction import hide

EXIT_USER_ERROR = 2


class UserError(Exception):
    """One or more problems whose remedy lies with the user.

    Each problem is one text that names the offending value, the rule it breaks and what to set instead. What they have
    in common is said once: `summary` before them, `remedy` after them; neither counts as a problem. `str()` of the
    error lists all of it, so that a user mends everything in one go.
    """

    def __init__(self, *problems: str, summary: str = "", remedy: str = ""):
        # What others say, a driver or a server, may repeat an address as they were given it.
        problems, summary, remedy = tuple(map(_told, problems)), _told(summary), _told(remedy)
        if not problems:
            problems, summary, remedy = (_joined(summary, remedy),), "", ""
        self.problems = list(dict.fromkeys(problems))
        self.summary, self.remedy = summary, remedy
        super().__init__("\n".join(self.sentences))

    @property
    def sentences(self) -> list[str]:
        """All that is to be said, in order."""
        return [sentence for sentence in (self.summary, *self.problems, self.remedy) if sentence]


def _told(text: str) -> str:
    """Return a text as a user may read it: without secrets, and with what they wrote in place of where it was put."""
    return hide(with_origins(text))


def _joined(text: str, remedy: str) -> str:
    return f"{text}; {remedy}" if remedy else text


class DataError(UserError):
    """A row, file or label that cannot be used; names file:row and field."""


class CheckpointError(UserError):
    """Weights or a training state that cannot be read, written or fitted to this model."""


@contextmanager
def keys_called(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors call keys of a configuration as this command calls them: each of `names` by what it stands for."""

    def renamed(text: str) -> str:
        for own, here in names.items():
            text = text.replace(own, here)
        return text

    try:
        yield
    except UserError as error:
        problems = map(renamed, error.problems)
        raise type(error)(*problems, summary=renamed(error.summary), remedy=renamed(error.remedy)) from None


def print_error(error: UserError, of_job: str = "") -> None:
    """Print an error on standard error, `of_job` in front: one problem on a line, several as a list."""
    count = len(error.problems)
    if count == 1 and not error.summary:
        text = f"nlu: error: {of_job}{_joined(error.problems[0], error.remedy)}"
    else:
        head = f"nlu: error: {of_job}{error.summary or f'{count} problems'}"
        rest = [f"  - {problem}" for problem in error.problems] + ([f"  {error.remedy}"] if error.remedy else [])
        text = "\n".join([head, *rest])
    print(text, file=sys.stderr, flush=True)
