"""The folders of submissions to Slurm: which folder has the files of a job, and which job has a token."""

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nlu.storage.files import read_json

SUBMITTED = "_submitted.pkl"
"""the end of the name of the file with the work of a job, after its id"""
TOKENS = "tokens.json"
"""the file in the folder of a submission with the tokens of its jobs, in the order of the array"""


class SubmissionFolders:
    """The folders of the submissions below one folder. Several threads may ask.

    Submissions of this process are remembered. To find those of other processes each folder is read once: a search has
    a folder for each of its trials.
    """

    _known: dict[Path, "SubmissionFolders"] = {}

    @classmethod
    def below(cls, base: Path) -> "SubmissionFolders":
        """Return the object that all queues of this process share that submit into a folder.

        Each trial of a search opens a queue, and one of them looks after the jobs of all.
        """
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
        """Remember jobs that this process has just submitted."""
        with self._lock:
            self._of_id |= {id: (folder, float("inf")) for id in ids}

    def of(self, id: str) -> Path | None:
        """Return the folder of the newest job with this id, or None."""
        with self._lock:
            if id not in self._of_id:
                self._look()
            return self._of_id[id][0] if id in self._of_id else None

    def ids(self) -> Mapping[str, str]:
        """Return the id of each job whose work is in place, by token."""
        with self._lock:
            self._look()
            return dict(self._ids)

    def _look(self) -> None:
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = [name for name in os.listdir(self._base) if name not in self._complete]
        for name in names:
            # Another command removes the folder of a submission that was refused.
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
