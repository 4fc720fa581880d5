"""Counts what is asked of the system: files opened, folders listed, files removed, commands run."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KINDS = {
    "open": "opened", "os.listdir": "listed", "os.scandir": "listed", "os.remove": "removed",
    "subprocess.Popen": "commands",
}  # fmt: skip
_counting: list[tuple[Path, Counter[str]]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _counting and event in KINDS:
        below, counts = _counting[-1]
        if event == "subprocess.Popen" or str(arguments[0]).startswith(str(below)):
            counts[KINDS[event]] += 1


sys.addaudithook(_hear)


@contextmanager
def counted(below: Path) -> Iterator[Counter[str]]:
    """Count the commands of the block, and what it does to files below a folder."""
    _counting.append((below, Counter()))
    try:
        yield _counting[-1][1]
    finally:
        _counting.pop()
