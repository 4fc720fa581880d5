"""What is the machine's fault and not the trial's: with other values it would have failed all the same."""

from __future__ import annotations

import errno
import re

from nlu.storage.temporary import causes

OF_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
# Of libraries that have no OSError to raise only the text is left.
_SAID = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|\(os error (?:28|122|5)\)"
    r"|uncorrectable (?:ECC|NVLink) error|no CUDA-capable device is detected|has fallen off the bus|device is lost"
    r"|CUDA-capable device\(s\) is/are busy or unavailable"
)


def machine_fault(error: BaseException) -> str | None:
    """Return what the machine lacked, on one line: room on a disk, a disk that answers, a device; None of the rest.

    What an error was raised from counts too, so that it may have been told in other words since.
    """
    for each in causes(error, with_context=True):
        if isinstance(each, OSError) and each.errno in OF_STORAGE:
            return f"{each.strerror}: {each.filename}" if each.filename else str(each.strerror)
        if found := _SAID.search(str(each)):
            return next(line.strip() for line in str(each).splitlines() if found[0] in line)
    return None


class ProcessLost(RuntimeError):
    """A process of a run, on another machine, ended while this one needed it."""


_OF_GLOO = re.compile(r"\bgloo\b|Connection (closed|reset) by peer")


def lost_a_peer(error: BaseException) -> bool:
    """Whether a message between processes failed, as it does where one of them has ended. gloo's errors have no kind
    of their own and name its source file or the connection; nccl's have one."""
    if isinstance(error, ProcessLost):
        return True
    if not isinstance(error, RuntimeError):
        return False
    from torch.distributed import DistError

    return isinstance(error, DistError) or _OF_GLOO.search(str(error)) is not None
