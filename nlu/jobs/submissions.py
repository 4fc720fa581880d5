"""What was submitted, written down in the folder of the submission: FOLDER/.submitted/jobs.jsonl.

It lets the same command find its jobs again. It only grows, by one line for each event: `begin` with the jobs and their
tokens before they are handed over, `submitted` with their ids afterwards, `refused` if the queue took none of them, and
`ended` once a user has seen how a job ended. A kill between the first two leaves a `begin` without an answer: the queue
is then asked for these jobs by their tokens. The file holds no secret.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.redaction import LAUNCHER, LAUNCHER_LINES, hide_setting, without_secrets
from nlu.jobs.queue import Job, Ticket
from nlu.storage.files import sync_folder
from nlu.storage.locks import Locked, hold_folder

FOLDER, FILE, LOCK = ".submitted", "jobs.jsonl", "lock"
NAME = "name"
"""the file of earlier versions with the name of a folder"""
IGNORED = ("resume=", "+resume=", "++resume=", "take=")
"""overrides in which a command that continues differs from the one that began"""
WAIT_S = 60
"""how long a command waits for another one that submits into the same folder"""
_WRITING = threading.Lock()


@dataclass(frozen=True)
class Submitted:
    """A job that was handed over, or was about to be."""

    job: Job
    queue: str
    settings: Mapping[str, object]
    """the keys with which the queue is opened again"""
    command: str
    time_s: float
    ticket: Ticket | None
    """None if the command was killed before the queue answered"""
    ended: str | None
    """how it ended, once a user has seen it"""


def new_tokens(count: int) -> list[str]:
    """Return names that no other submission has."""
    begun = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    return [f"{begun}-{place}" for place in range(count)]


def without_resume(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that make a job the same one again, in the form in which they are written down."""
    return [hide_setting(override) for override in overrides if not override.startswith(IGNORED)]


def kept_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of hydra.launcher that are written down, to open the queue with them again."""
    return without_secrets({key: value for key, value in settings.items() if key not in LAUNCHER_LINES}, LAUNCHER)


class Submissions:
    """The record of a folder. Several threads and processes may write to it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / FOLDER / FILE

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other commands from submitting into this folder, and leave no trace if nothing is submitted.

        Raises UserError while another command submits. A file system without locks keeps no command out.
        """
        was_there, what = self.folder.exists(), f"the jobs of {self.folder}"
        with ExitStack() as held:
            try:
                made_here = held.enter_context(
                    hold_folder(self.folder / FOLDER, LOCK, wait_s=WAIT_S, optional=True, what=what)
                )
            except Locked:
                raise UserError(
                    f"another command is submitting into {self.folder}; try again once it is done"
                ) from None
            try:
                yield
            finally:
                if made_here and not self.read():
                    self._remove(was_there)

    def _remove(self, folder_was_there: bool) -> None:
        """Remove an empty record. Its lock goes last: a command that waits for it then makes the folder again."""
        # A file system may keep an open file, and another command may have come: then the folders stay.
        with suppress(OSError):
            for name in (FILE, LOCK):
                (self.folder / FOLDER / name).unlink(missing_ok=True)
            (self.folder / FOLDER).rmdir()
            if not folder_was_there:
                self.folder.rmdir()

    def name(self) -> str | None:
        """Return a name that no other folder has, the same for every machine, once a job was begun: its token."""
        if (file := self.folder / FOLDER / NAME).is_file():
            return file.read_text(encoding="utf-8").strip()
        begun = (event["jobs"][0]["token"] for _, event in self._events() if event["event"] == "begin")
        return next(begun, None)

    def begin(self, jobs: Sequence[Job], queue: str, settings: Mapping[str, object], command: str) -> None:
        """Write down jobs that are about to be handed over. They are on the disk when this returns."""
        kept = kept_settings(settings)
        written = [{**asdict(job), "overrides": [hide_setting(text) for text in job.overrides]} for job in jobs]
        self._add("begin", queue=queue, settings=kept, command=command, time_s=time.time(), jobs=written)

    def submitted(self, tickets: Sequence[Ticket]) -> None:
        """Write down the ids by which the queue knows the jobs."""
        known = [{"token": ticket.job.token, "id": ticket.id, "log": ticket.log} for ticket in tickets]
        self._add("submitted", tickets=known)

    def refused(self, jobs: Sequence[Job]) -> None:
        """Write down that none of these jobs is in the queue."""
        self._add("refused", tokens=[job.token for job in jobs])

    def ended(self, token: str, state: str) -> None:
        """Write down that a user has seen how a job ended: from now on the same command starts it again."""
        self._add("ended", token=token, state=state)

    def read(self) -> list[Submitted]:
        """Return the jobs that were handed over or about to be, oldest first. Raises DataError for a damaged record."""
        found, refused = dict[str, Submitted](), dict[str, Submitted]()
        for number, event in self._events():
            try:
                _apply(event, found, refused)
            except (KeyError, TypeError) as error:
                raise self._damaged(number, error) from error
        return list(found.values())

    def _events(self) -> Iterator[tuple[int, Any]]:
        text = self._file.read_text(encoding="utf-8", errors="replace") if self._file.is_file() else ""
        # A kill cut the text after the last line break, or another process is still writing it.
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                # An event may have been appended to a line that a kill had cut.
                yield number, json.loads(line[max(0, line.rfind('{"event"')) :])
            except ValueError as error:
                raise self._damaged(number, error) from error

    def _damaged(self, number: int, error: Exception) -> DataError:
        return DataError(f"{self._file}:{number} is not an event of a submission ({error}); move the file away")

    def _add(self, event: str, **values: object) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._file.exists()
        line = json.dumps({"event": event, **values}, ensure_ascii=False) + "\n"
        # One write of a whole line to a file in append mode, so that lines of several processes do not mix.
        with _WRITING, open(self._file, "ab", buffering=0) as file:
            file.write(line.encode())
            # Before the jobs are handed over: a power cut must not forget a job that runs.
            os.fsync(file.fileno())
        if is_new:
            # A new file survives a power cut only if the folders that list it are synced too.
            sync_folder(self._file.parent)
            sync_folder(self.folder)


def _apply(event: Mapping[str, Any], found: dict[str, Submitted], refused: dict[str, Submitted]) -> None:
    """Apply an event to the known jobs, and to those that are not in the queue."""
    match event["event"]:
        case "begin":
            about = event["queue"], event["settings"], event["command"], event["time_s"]
            for own in event["jobs"]:
                found[own["token"]] = Submitted(
                    Job(**{**own, "overrides": tuple(own["overrides"])}), *about, None, None
                )
        case "submitted":
            for known in event["tickets"]:
                # Another command may have taken the job for not submitted meanwhile (nlu.jobs --forget).
                before = found.get(known["token"]) or refused.pop(known["token"])
                found[known["token"]] = replace(before, ticket=Ticket(before.job, known["id"], known["log"]))
        case "refused":
            for token in event["tokens"]:
                if token in found:
                    refused[token] = found.pop(token)
        case "ended":
            found[event["token"]] = replace(found[event["token"]], ended=event["state"])


def submissions_below(folder: Path) -> list[Submissions]:
    """Return the records of a folder and of those below it."""
    found = []
    for here, subfolders, _ in os.walk(folder):
        if (Path(here) / FOLDER / FILE).is_file():
            found.append(Submissions(Path(here)))
        # Checkpoints and hidden folders have many files and hold no submission.
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != "checkpoints")
    return found
