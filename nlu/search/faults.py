"""Faults that would have ended a trial with any values: of a machine, of another process, of a storage.

And how any failure of a trial is said on one line.
"""

from __future__ import annotations

import errno
import re

from nlu.config.errors import Temporary, UserError, causes
from nlu.config.redaction import hide

OF_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
# Some libraries raise no OSError, so only their text identifies the fault.
_SAID = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|\(os error (?:28|122|5)\)"
    r"|uncorrectable (?:ECC|NVLink) error|no CUDA-capable device is detected|has fallen off the bus|device is lost"
    r"|CUDA-capable device\(s\) is/are busy or unavailable"
)


def machine_fault(error: BaseException) -> str | None:
    """Return the fault of the machine on one line (a full or broken disk, a lost device); None for any other error.

    The causes of the error count too.
    """
    for each in causes(error, with_context=True):
        if isinstance(each, OSError) and each.errno in OF_STORAGE:
            return f"{each.strerror}: {each.filename}" if each.filename else str(each.strerror)
        if found := _SAID.search(str(each)):
            return next(line.strip() for line in str(each).splitlines() if found[0] in line)
    return None


class ProcessLost(RuntimeError):
    """Another process of the run ended, or did not answer, while this one needed it."""


_OF_GLOO = re.compile(r"\bgloo\b|Connection (closed|reset) by peer")


def lost_a_peer(error: BaseException) -> bool:
    """Return whether communication with another process failed, for example because it ended.

    Errors of nccl have a class. Errors of gloo are RuntimeErrors that name a source file or the connection.
    """
    if isinstance(error, ProcessLost):
        return True
    if not isinstance(error, RuntimeError):
        return False
    from torch.distributed import DistError

    return isinstance(error, DistError) or _OF_GLOO.search(str(error)) is not None


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


def last_line(error: BaseException) -> str:
    """Return an error on one line: all problems of a UserError, class and last line of any other error."""
    if isinstance(error, UserError):
        return "; ".join(error.sentences)
    lines = hide(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
