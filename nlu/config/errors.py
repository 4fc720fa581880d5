"""Errors that a user can correct. Commands print them without a traceback and exit with status 2."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nlu.config.redaction import hide
from nlu.config.sentences import with_origins

EXIT_USER_ERROR = 2


class UserError(Exception):
    """One or more problems that the user can correct.

    Each problem is a text with the wrong value, the rule, and what to set instead. `summary` before the problems and
    `remedy` after them apply to all of them. `str()` lists everything, so that a user can correct it in one go.
    """

    def __init__(self, *problems: str, summary: str = "", remedy: str = ""):
        # Messages of drivers and servers may repeat addresses, and thus secrets.
        problems, summary, remedy = tuple(map(_readable, problems)), _readable(summary), _readable(remedy)
        if not problems:
            problems, summary, remedy = (_joined(summary, remedy),), "", ""
        # One mistake may break a rule several times, as in several jobs of a grid.
        self.problems = list(dict.fromkeys(problems))
        self.summary, self.remedy = summary, remedy
        super().__init__("\n".join(self.sentences))

    @property
    def sentences(self) -> list[str]:
        """The summary, the problems and the remedy."""
        return [sentence for sentence in (self.summary, *self.problems, self.remedy) if sentence]

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows instead of a traceback."""
        return _lines(self)


def _readable(text: str) -> str:
    """Return a text without secrets, and with the origins of copied files in place of their paths."""
    return hide(with_origins(text))


def _joined(text: str, remedy: str) -> str:
    return f"{text}; {remedy}" if remedy else text


class Temporary(Exception):
    """The base of classes of temporary errors."""


def is_temporary(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, is temporary."""
    return any(isinstance(each, Temporary) for each in causes(error))


def causes(error: BaseException | None, *, with_context: bool = False) -> Iterator[BaseException]:
    """Yield an error and what it was raised from; `with_context` also what was handled when it was raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        implied = None if error.__suppress_context__ or not with_context else error.__context__
        error = error.__cause__ or implied


class OutOfMemory(UserError):
    """Memory of the device or the host is not enough, even for the smallest part of the work."""


class DataError(UserError):
    """A row, file or label that cannot be used; the message names file:row and field."""


class CheckpointError(UserError):
    """Weights or a training state that cannot be read or written, or do not fit the model."""


@contextmanager
def keys_called(names: Mapping[str, str]) -> Iterator[None]:
    """Replace names of keys in errors by those of this command, as `names` maps them."""

    def renamed(text: str) -> str:
        for own, here in names.items():
            text = text.replace(own, here)
        return text

    try:
        yield
    except UserError as error:
        problems = map(renamed, error.problems)
        # `from None`: the original message has the names that this command does not have.
        raise type(error)(*problems, summary=renamed(error.summary), remedy=renamed(error.remedy)) from None


def print_error(error: UserError, of_job: str = "") -> None:
    """Print an error on standard error, after `of_job`: one problem on a line, several as a list."""
    print("\n".join(_lines(error, of_job)), file=sys.stderr, flush=True)


def _lines(error: UserError, of_job: str = "") -> list[str]:
    count = len(error.problems)
    if count == 1 and not error.summary:
        return [f"nlu: error: {of_job}{_joined(error.problems[0], error.remedy)}"]
    head = f"nlu: error: {of_job}{error.summary or f'{count} problems'}"
    return [head, *(f"  - {problem}" for problem in error.problems), *([f"  {error.remedy}"] if error.remedy else [])]
