"""The error for a storage that does not answer, of any kind, and how long commands wait for it."""

from __future__ import annotations

from nlu.config.errors import UserError
from nlu.storage.temporary import Temporary

KEY = "hydra.sweeper.storage"
OUTAGE_S = 900.0
"""the time without an answer after which a job or a search gives up"""


class StorageUnavailable(UserError, Temporary):
    """The storage does not answer, so its content is unknown."""

    @classmethod
    def after(cls, url: str, error: Exception, waited_s: float) -> StorageUnavailable:
        """Return the error for a storage that stopped answering `waited_s` seconds ago."""
        return cls(
            f"{KEY} is {url}, which has not answered for {waited_s:.0f} s: {reason_of(error)}; nothing is lost: once "
            "it answers, the same command with the same hydra.sweep.dir continues"
        )


def reason_of(error: BaseException) -> str:
    """Return the reason in an error of a storage, on one line."""
    if isinstance(error, UserError):
        return error.problems[0]
    # Optuna's error only says that a call failed; its cause has the reason. Of a database's message the first line is
    # enough: SQL and links follow.
    cause = error.__cause__ or error
    reason = str(getattr(cause, "orig", None) or cause).strip() or type(cause).__name__
    return reason.splitlines()[0]
