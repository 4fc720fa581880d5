"""Numbers and paths in sentences."""

import os
import re
from pathlib import Path


def counted(count: int, noun: str) -> str:
    """Return `1 trial`, `3 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


_origins: dict[str, str] = {}
"""what files and folders of this machine are copies of, by their absolute path"""


def show_as(path: Path, origin: str) -> None:
    """Have sentences call a file or folder, which is a copy, by what it is a copy of, and so what lies below it."""
    _origins[os.path.abspath(path)] = origin


def with_origins(text: str) -> str:
    """Return a text in which copies are called by what they are copies of."""
    for path in sorted((path for path in tuple(_origins) if path in text), key=len, reverse=True):
        text = re.sub(rf"{re.escape(path)}(?![\w-])", lambda _, path=path: _origins[path], text)  # type: ignore[misc]
    return text


def called(path: Path) -> str:
    """Return a path as it was given; of a copy its origin."""
    return with_origins(str(path))


def path_text(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it, absolute otherwise; of a copy its origin."""
    absolute = os.path.abspath(path)
    if (origin := with_origins(absolute)) != absolute:
        return origin
    return os.path.relpath(absolute) if Path(absolute).is_relative_to(Path.cwd()) else absolute
