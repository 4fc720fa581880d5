"""Numbers and paths in sentences."""

import errno
import os
import re
from pathlib import Path


def counted(count: int, noun: str) -> str:
    """Return `1 trial`, `3 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


_origins: dict[str, list[str]] = {}
"""what files and folders of this machine are copies of, by their absolute path: of several where these share one"""
_lengths: set[int] = set()
"""of these paths"""
_BEGINS = re.compile(r"(?<![\w.\-/])/")
"""where an absolute path may begin"""
_GOES_ON = re.compile(r"[\w-]|\.\w|/\.\.")
"""what stands behind a path where another one is named, such as rows.csv.lock"""
_OF_THE_DISK = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)))


def show_as(path: Path, origin: str) -> None:
    """Have sentences call a file or folder, which is a copy, by what it is a copy of, and so what lies below it."""
    origins = _origins.setdefault(os.path.abspath(path), [])
    if origin not in origins:
        origins.append(origin)
    _lengths.add(len(os.path.abspath(path)))


def with_origins(text: str) -> str:
    """Return a text in which copies are called by what they are copies of, unless it is about the disk they lie on."""
    if not _origins or any(told in text for told in _OF_THE_DISK):
        return text
    pieces, done, lengths = [], 0, sorted(_lengths, reverse=True)
    for start in (found.start() for found in _BEGINS.finditer(text)):
        ends = (start + length for length in lengths)
        end = next((end for end in ends if text[start:end] in _origins and not _GOES_ON.match(text, end)), None)
        if end is not None and start >= done:
            pieces += [text[done:start], " or ".join(_origins[text[start:end]])]
            done = end
    return "".join([*pieces, text[done:]])


def called(path: Path) -> str:
    """Return a path as it was given; of a copy its origin."""
    return with_origins(str(path))


def path_text(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it, absolute otherwise; of a copy its origin."""
    absolute = os.path.abspath(path)
    if (origin := with_origins(absolute)) != absolute:
        return origin
    return os.path.relpath(absolute) if Path(absolute).is_relative_to(Path.cwd()) else absolute
