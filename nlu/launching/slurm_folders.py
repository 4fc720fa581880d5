"""Where the files of Slurm's jobs lie: each submission has a folder, named by the token of its first job.

What this process submits it remembers. What others submitted is found by looking into the folders, into each of them
once: a search has one for each of its trials.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nlu.storage.cache import read_json

SUBMITTED = "_submitted.pkl"
"""how the file with a job's work ends, behind its id"""
TOKENS = "tokens.json"
"""file in the folder of a submission: the tokens of its jobs, in the order of the array"""


class Folders:
    """The folders of the submissions below one folder. Several threads may ask."""

    _known: dict[Path, "Folders"] = {}

    @classmethod
    def below(cls, base: Path) -> "Folders":
        """Return what is shared by all queues of this process that submit into a folder: a trial opens one of its own,
        and one of them looks after the jobs of all."""
        return cls._known.setdefault(base, cls(base))

    def __init__(self, base: Path):
        self._base = base
        self._lock = threading.Lock()
        self._of_id: dict[str, tuple[Path, float]] = {}
        """the folder of a job, and when its work was put there: a cluster may count from 1 again"""
        self._ids: dict[str, str] = {}
        """by token"""
        self._complete: set[str] = set()
        """names of folders in which nothing more will appear"""

    def submitted(self, folder: Path, ids: Iterable[str]) -> None:
        """Note what was just submitted."""
        with self._lock:
            self._of_id |= {id: (folder, float("inf")) for id in ids}

    def of(self, id: str) -> Path | None:
        """Return the folder of a job, None where there is none: that of the newest job that had this id."""
        with self._lock:
            if id not in self._of_id:
                self._look()
            return self._of_id[id][0] if id in self._of_id else None

    def ids(self) -> Mapping[str, str]:
        """Return by its token the id of each job whose work is in place."""
        with self._lock:
            self._look()
            return dict(self._ids)

    def _look(self) -> None:
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = [name for name in os.listdir(self._base) if name not in self._complete]
        for name in names:
            # A submission that was refused takes its folder away.
            with suppress(FileNotFoundError, NotADirectoryError):
                self._look_into(self._base / name)

    def _look_into(self, folder: Path) -> None:
        works = {
            entry.name.removesuffix(SUBMITTED): entry.stat().st_mtime
            for entry in os.scandir(folder)
            if entry.name.endswith(SUBMITTED)
        }
        tokens = (read_json(folder / TOKENS) or {}).get("tokens", [])
        for id, time_s in works.items():
            if time_s > self._of_id.get(id, (folder, 0.0))[1]:
                self._of_id[id] = folder, time_s
            place = int(id.partition("_")[2] or 0)
            if place < len(tokens):
                self._ids[tokens[place]] = id
        if tokens and len(works) >= len(tokens):
            self._complete.add(folder.name)
