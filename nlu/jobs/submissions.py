"""What was submitted, written down twice: in the folder of the submission, and in the history of the project.

FOLDER/.submitted/jobs.jsonl lets the same command find its jobs again. It only grows, by one line for each event:
`begin` with the jobs and their tokens before they are handed over, `submitted` with their ids afterwards, `refused` if
the queue took none of them, and `ended` once a user has seen how a job ended. A kill between the first two leaves a
`begin` without an answer. A queue that finds jobs by their tokens is then asked for them. With any other queue the user
has to look there before anything is submitted again. FOLDER/.submitted/name is the folder's name on an object store,
the same for every machine.

PROJECT/.nlu/submissions.tsv has a line for every job that was ever submitted from a project: the checkout in which a
command is started, or its working folder. Neither file holds a secret.
"""

import functools
import json
import os
import secrets
import subprocess
import sys
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
from nlu.storage.files import sync_folder, write_text
from nlu.storage.locks import Locked, hold_folder

FOLDER, FILE, LOCK, NAME = ".submitted", "jobs.jsonl", "lock", "name"
PROJECT, HISTORY = ".nlu", "submissions.tsv"
COLUMNS = ("time", "queue", "job", "id", "folder", "log", "commit", "changed", "command")
IGNORED = ("resume=", "+resume=", "++resume=")
"""overrides in which a command that continues differs from the one that began"""
WAIT_S = 60
"""how long a command waits for another one that submits into the same folder"""
GIT_LIMIT_S = 10
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
        self._reading = threading.Lock()
        self._known: dict[str, Submitted] = {}
        """by token, from the lines that were read"""
        self._read_bytes = self._read_lines = self._inode = 0

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
            for name in (FILE, NAME, LOCK):
                (self.folder / FOLDER / name).unlink(missing_ok=True)
            (self.folder / FOLDER).rmdir()
            if not folder_was_there:
                self.folder.rmdir()

    def has_name(self) -> bool:
        """Whether `name` was drawn."""
        return (self.folder / FOLDER / NAME).is_file()

    def name(self) -> str:
        """Return a name that no other folder has. It is drawn once and kept beside the record."""
        file = self.folder / FOLDER / NAME
        with _WRITING:
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, secrets.token_hex(5) + "\n")
            return file.read_text(encoding="utf-8").strip()

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
        with self._reading:
            self._catch_up()
            return list(self._known.values())

    def changed(self) -> list[Submitted]:
        """Return the jobs of the lines that were added since the last reading; raises as `read` does."""
        with self._reading:
            return [self._known[token] for token in self._catch_up() if token in self._known]

    def _catch_up(self) -> list[str]:
        """Read the lines that were added, and return the tokens of their jobs."""
        touched: dict[str, None] = {}
        for number, event in self._events():
            try:
                touched |= dict.fromkeys(_apply(event, self._known))
            except (KeyError, TypeError) as error:
                raise DataError(
                    f"{self._file}:{number} is not an event of a submission ({error}); move the file away"
                ) from error
        return list(touched)

    def _events(self) -> Iterator[tuple[int, Any]]:
        if not self._file.is_file():
            self._forget()
            return
        with open(self._file, "rb") as file:
            if (about := os.fstat(file.fileno())).st_size < self._read_bytes or about.st_ino != self._inode:
                # A user has moved a damaged record away, and another one has begun.
                self._forget()
            self._inode = about.st_ino
            file.seek(self._read_bytes)
            lines = file.read().split(b"\n")
        # A kill cut the text after the last line break, or another process is still writing it.
        for line in lines[:-1]:
            number = self._read_lines + 1
            yield number, self._event(number, line.decode("utf-8"))
            # After the event was used: if the caller stops at a damaged line, the next reading meets it again.
            self._read_bytes, self._read_lines = self._read_bytes + len(line) + 1, number

    def _event(self, number: int, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            # A later event was appended to a line that a kill had cut.
            if '{"event"' not in line[1:]:
                raise DataError(f"{self._file}:{number} is not JSON; move the file away") from error
            return json.loads(line[line.rindex('{"event"') :])

    def _forget(self) -> None:
        self._known.clear()
        self._read_bytes = self._read_lines = 0

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


def _apply(event: Mapping[str, Any], found: dict[str, Submitted]) -> list[str]:
    """Apply an event to the known jobs, and return the tokens of its jobs."""
    match event["event"]:
        case "begin":
            jobs = [Job(own["number"], own["folder"], tuple(own["overrides"]), own["token"]) for own in event["jobs"]]
            about = event["queue"], event["settings"], event["command"], event["time_s"]
            found |= {job.token: Submitted(job, *about, None, None) for job in jobs}
            return [job.token for job in jobs]
        case "submitted":
            for known in event["tickets"]:
                before = found[known["token"]]
                found[known["token"]] = replace(before, ticket=Ticket(before.job, known["id"], known["log"]))
            return [known["token"] for known in event["tickets"]]
        case "refused":
            for token in event["tokens"]:
                found.pop(token, None)
            return list(event["tokens"])
        case "ended":
            found[event["token"]] = replace(found[event["token"]], ended=event["state"])
            return [event["token"]]
    return []


def submissions_below(folder: Path) -> list[Submissions]:
    """Return the records of a folder and of those below it."""
    found = []
    for here, subfolders, _ in os.walk(folder):
        if (Path(here) / FOLDER / FILE).is_file():
            found.append(Submissions(Path(here)))
        # Checkpoints and hidden folders have many files and hold no submission.
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != "checkpoints")
    return found


def project_folder(start: Path | None = None) -> Path:
    """Return the top of the checkout that holds `start`, by default the working folder; without one, `start` itself."""
    start = start or Path.cwd()
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)


def project_state(start: Path | None = None) -> Path:
    """Return the folder of a project in which nlu keeps its files, which git ignores. Raises OSError."""
    folder = project_folder(start) / PROJECT
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    return folder


def add_to_history(queue: str, tickets: Sequence[Ticket], command: str) -> None:
    """Add a line for each ticket, with the command as `redaction.command_text` shows it.

    If the project is read-only, a message says so and nothing is written.
    """
    commit, is_changed = _git_state(project_folder())
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    rows = [
        (
            now,
            queue,
            ticket.job.number,
            ticket.id,
            os.path.abspath(ticket.job.folder),
            ticket.log or "",
            commit,
            is_changed,
            command,
        )
        for ticket in tickets
    ]
    text = "".join("\t".join(map(_cell, row)) + "\n" for row in rows)
    try:
        with open(project_state() / HISTORY, "ab", buffering=0) as file:
            head = "" if file.tell() else "\t".join(COLUMNS) + "\n"
            file.write((head + text).encode())
    except OSError as error:
        file_name = project_folder() / PROJECT / HISTORY
        print(f"nlu: {file_name} is not written: {error.strerror or error}", file=sys.stderr)


def read_history(folder: Path | None = None) -> list[dict[str, str]]:
    """Return the lines of this project's history, oldest first. With `folder`: those of jobs below it, also from the
    history of its project."""
    projects = dict.fromkeys([project_folder(), *([project_folder(folder.resolve())] if folder is not None else [])])
    rows = [row for project in projects for row in _rows(project / PROJECT / HISTORY)]
    if folder is not None:
        top = folder.resolve()
        rows = [row for row in rows if "folder" in row and Path(row["folder"]).resolve().is_relative_to(top)]
    return sorted(rows, key=lambda row: row.get("time", ""))


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[1:-1]
    return [dict(zip(COLUMNS, line.split("\t"), strict=False)) for line in lines]


def _cell(value: object) -> str:
    return str(value).replace("\t", "\\t").replace("\n", "\\n")


@functools.cache
def _git_state(folder: Path) -> tuple[str, str]:
    """Return the commit of a checkout, and yes or no: whether its files differ from that. Empty without a checkout."""
    found = []
    for arguments in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(
                ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                # A checkout on a slow network disk must not delay a submission for long.
                timeout=GIT_LIMIT_S,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return "", ""
        if done.returncode:
            return "", ""
        found.append(done.stdout.strip())
    return found[0], "yes" if found[1] else "no"
