"""A storage that does not answer: one error for all kinds, and how long it is waited for."""

from __future__ import annotations

from nlu.config.errors import UserError
from nlu.storage.temporary import Temporary

KEY = "hydra.sweeper.storage"
OUTAGE_S = 900.0
"""How long a storage may be away before a job or a search gives up."""


class StorageAway(UserError, Temporary):
    """A storage that does not answer, of whatever kind, so that nothing is known of what it holds."""

    @classmethod
    def after(cls, url: str, error: Exception, waited_s: float) -> StorageAway:
        """Return what to say of one that answered before, and then did not for so many seconds."""
        return cls(
            f"{KEY} is {url}, which has not answered for {waited_s:.0f} s: {reason_of(error)}; nothing is lost: once "
            "it answers, the same command with the same hydra.sweep.dir continues"
        )


def reason_of(error: BaseException) -> str:
    """Return what a storage said, on one line."""
    if isinstance(error, UserError):
        return error.problems[0]
    # optuna says that a call failed, its cause why; of a database's message the first line, the rest is SQL and links.
    cause = error.__cause__ or error
    reason = str(getattr(cause, "orig", None) or cause).strip() or type(cause).__name__
    return reason.splitlines()[0]
