"""What was submitted into a folder, written down there so that the same command finds its jobs again.

FOLDER/.submitted/jobs.jsonl only grows, a line an event: `begin` with the jobs and their tokens before they are handed
over, `submitted` with their ids after it, `refused` where the queue took none, `ended` once somebody was told how a job
ended. A kill between the first two leaves a `begin` alone: a queue that finds jobs by their tokens is then asked for
them; of another it is said, and nothing is submitted before the user has looked.

FOLDER/.submitted/name is by what an object store knows the folder, whichever machine asks.
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
from nlu.launching.queue import Job, Ticket
from nlu.storage.claims import Claimed, hold_claim
from nlu.storage.files import sync_folder, write_text
from nlu.storage.locks import Locked, NoLocks, hold_folder
from nlu.storage.redaction import LAUNCHER, LAUNCHER_LINES, hide_setting, without_secrets

FOLDER, FILE, LOCK, NAME = ".submitted", "jobs.jsonl", "lock", "name"
CLAIM = "claim"
"""stands for the lock where the file system has none"""
IGNORED = ("resume=", "+resume=", "++resume=")
"""overrides in which a command that goes on differs from the one that began"""
WAIT_S = 60
"""how long a command waits for another that submits into the same folder"""
_WRITING = threading.Lock()


@dataclass(frozen=True)
class Submitted:
    """A job that was handed over, or was about to be."""

    job: Job
    queue: str
    settings: Mapping[str, Any]
    """with which the queue is opened again"""
    command: str
    time_s: float
    ticket: Ticket | None
    """None: it was about to be, and whoever did it was killed"""
    ended: str | None
    """how it ended, once somebody was told"""


def new_tokens(count: int) -> list[str]:
    """Return names that no other submission has."""
    begun = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    return [f"{begun}-{place}" for place in range(count)]


def without_resume(overrides: Sequence[str]) -> list[str]:
    """Return what makes a job the same one again, in the form in which it is written down."""
    return [hide_setting(override) for override in overrides if not override.startswith(IGNORED)]


def kept_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return of the keys of hydra.launcher what is written down, and with what a queue is opened again."""
    return without_secrets({key: value for key, value in settings.items() if key not in LAUNCHER_LINES}, LAUNCHER)


class Submissions:
    """The record of a folder. Several threads and processes may write to it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / FOLDER / FILE
        self._reading = threading.Lock()
        self._known: dict[str, Submitted] = {}
        """by token, as of the lines that were read"""
        self._read_bytes = self._read_lines = self._inode = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from submitting into this folder, which a command that submits nothing leaves as it was.

        Raises UserError where another command goes on submitting.
        """
        folder, was_there, what = self.folder / FOLDER, self.folder.exists(), f"the jobs of {self.folder}"
        held, made_here = ExitStack(), not folder.exists()
        try:
            try:
                made_here = held.enter_context(hold_folder(folder, LOCK, wait_s=WAIT_S, what=what))
            except NoLocks:
                # Unlike a lock it stands in the folder until nobody holds it.
                held.callback(self._remove_empty, was_there)
                held.enter_context(hold_claim(folder / CLAIM, wait_s=WAIT_S))
        except Locked:
            raise UserError(f"another command is submitting into {self.folder}; try again once it is done") from None
        except Claimed as claimed:
            raise UserError(
                f"{claimed.holder} is submitting into {self.folder}; try again once it is done or, where it is known "
                f"to have been killed, remove {claimed.path}"
            ) from None
        with held:
            try:
                yield
            finally:
                if made_here and not self.read():
                    self._take_away(was_there)

    def _take_away(self, was_there: bool) -> None:
        """Remove the record of nothing. Its lock goes last: whoever waits for it makes the folder anew."""
        with suppress(OSError):
            for name in (FILE, NAME, LOCK):
                (self.folder / FOLDER / name).unlink(missing_ok=True)
        self._remove_empty(was_there)

    def _remove_empty(self, was_there: bool) -> None:
        # Where a file system keeps an open file, or another command has come, folders stay.
        with suppress(OSError):
            (self.folder / FOLDER).rmdir()
            if not was_there:
                self.folder.rmdir()

    def name(self) -> str:
        """Return a name that no other folder has, drawn when it is asked for first and kept beside the record."""
        file = self.folder / FOLDER / NAME
        with _WRITING:
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, secrets.token_hex(5) + "\n")
            return file.read_text(encoding="utf-8").strip()

    def begin(self, jobs: Sequence[Job], queue: str, settings: Mapping[str, Any], command: str) -> None:
        """Write down what is about to be handed over; it is on the disk when this returns."""
        kept = kept_settings(settings)
        written = [{**asdict(job), "overrides": [hide_setting(text) for text in job.overrides]} for job in jobs]
        self._add("begin", queue=queue, settings=kept, command=command, time_s=time.time(), jobs=written)

    def submitted(self, tickets: Sequence[Ticket]) -> None:
        """Write down by what the queue knows the jobs."""
        known = [{"token": ticket.job.token, "id": ticket.id, "log": ticket.log} for ticket in tickets]
        self._add("submitted", tickets=known)

    def refused(self, jobs: Sequence[Job]) -> None:
        """Write down that none of these jobs is in the queue."""
        self._add("refused", tokens=[job.token for job in jobs])

    def ended(self, token: str, state: str) -> None:
        """Write down that somebody was told how a job ended: the same command starts it anew from now on."""
        self._add("ended", token=token, state=state)

    def read(self) -> list[Submitted]:
        """Return the jobs that were handed over or about to be, oldest first. Raises DataError for a damaged record."""
        with self._reading:
            self._catch_up()
            return list(self._known.values())

    def changed(self) -> list[Submitted]:
        """Return the jobs of which something was written down since this record was read; raises as `read` does."""
        with self._reading:
            return [self._known[token] for token in self._catch_up() if token in self._known]

    def _catch_up(self) -> list[str]:
        """Read the lines that were added, and return the tokens of their jobs."""
        touched: dict[str, None] = {}
        for number, event in self._events():
            try:
                touched |= dict.fromkeys(_apply(event, self._known))
            except (KeyError, TypeError) as error:
                raise DataError(f"{self._file}:{number} is no event of a submission ({error}); move it away") from error
        return list(touched)

    def _events(self) -> Iterator[tuple[int, Any]]:
        if not self._file.is_file():
            self._forget()
            return
        with open(self._file, "rb") as file:
            if (about := os.fstat(file.fileno())).st_size < self._read_bytes or about.st_ino != self._inode:
                # It was moved away, as a damaged one should be, and another has begun.
                self._forget()
            self._inode = about.st_ino
            file.seek(self._read_bytes)
            lines = file.read().split(b"\n")
        # What stands behind the last line break was cut by a kill, or is being written.
        for line in lines[:-1]:
            number = self._read_lines + 1
            yield number, self._event(number, line.decode("utf-8"))
            self._read_bytes, self._read_lines = self._read_bytes + len(line) + 1, number

    def _event(self, number: int, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            # A cut line to which a later event was added.
            if '{"event"' not in line[1:]:
                raise DataError(f"{self._file}:{number} is no JSON; move it away") from error
            return json.loads(line[line.rindex('{"event"') :])

    def _forget(self) -> None:
        self._known.clear()
        self._read_bytes = self._read_lines = 0

    def _add(self, event: str, **values: Any) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._file.exists()
        line = json.dumps({"event": event, **values}, ensure_ascii=False) + "\n"
        with _WRITING, open(self._file, "ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())
        if is_new:
            # Its name, and that of its folder.
            sync_folder(self._file.parent)
            sync_folder(self.folder)


def _apply(event: Mapping[str, Any], found: dict[str, Submitted]) -> list[str]:
    """Enter an event, and return the tokens of its jobs."""
    if event["event"] == "begin":
        for own in event["jobs"]:
            job = Job(own["number"], own["folder"], tuple(own["overrides"]), own["token"])
            found[job.token] = Submitted(
                job, event["queue"], event["settings"], event["command"], event["time_s"], None, None
            )
        return [own["token"] for own in event["jobs"]]
    if event["event"] == "submitted":
        for known in event["tickets"]:
            before = found[known["token"]]
            ticket = Ticket(before.job, known["id"], known["log"])
            found[known["token"]] = replace(before, ticket=ticket)
        return [known["token"] for known in event["tickets"]]
    if event["event"] == "refused":
        for token in event["tokens"]:
            found.pop(token, None)
        return list(event["tokens"])
    if event["event"] == "ended":
        before = found[event["token"]]
        found[event["token"]] = replace(before, ended=event["state"])
        return [event["token"]]
    return []


def submissions_below(folder: Path) -> list[Submissions]:
    """Return the records of a folder and of those below it."""
    found = []
    for here, subfolders, _ in os.walk(folder):
        if (Path(here) / FOLDER / FILE).is_file():
            found.append(Submissions(Path(here)))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != "checkpoints")
    return found
