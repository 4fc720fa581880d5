"""Numbers and paths in sentences."""

import os
from pathlib import Path


def counted(count: int, noun: str) -> str:
    """Return `1 trial`, `3 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


_shown: dict[Path, str] = {}
"""folders that are called otherwise"""


def show_as(folder: Path, text: str) -> None:
    """Have `path_text` call a folder, which is a copy, by what it is a copy of, and so what lies below it."""
    _shown[Path(os.path.abspath(folder))] = text


def path_text(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it, absolute otherwise; of a copy its origin."""
    absolute = Path(os.path.abspath(path))
    for folder, text in _shown.items():
        if absolute.is_relative_to(folder):
            return f"{text}/{absolute.relative_to(folder)}".removesuffix("/.")
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)
