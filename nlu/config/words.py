"""Numbers and paths in sentences."""

import os
from pathlib import Path


def counted(count: int, noun: str) -> str:
    """Return `1 trial`, `3 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def path_text(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it, absolute otherwise."""
    absolute = Path(os.path.abspath(path))
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)
