"""The history of a project: a line for every job that was ever submitted from it, PROJECT/.nlu/submissions.tsv.

The project is the checkout in which a command is started, or else its working folder. No secret is written down.
"""

import functools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nlu.launching.queue import Ticket
from nlu.storage.redaction import hide_setting

COLUMNS = ("time", "queue", "job", "id", "folder", "log", "commit", "changed", "command")
FOLDER, FILE = ".nlu", "submissions.tsv"
GIT_LIMIT_S = 10


def project_folder(start: Path | None = None) -> Path:
    """Return the top of the checkout that holds `start`, by default the working folder; without one, `start` itself."""
    start = start or Path.cwd()
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)


def command_text(arguments: Sequence[str] = ()) -> str:
    """Return a command on one line, as a shell takes it, with its secrets hidden; by default that of this process."""
    text = shlex.join(hide_setting(argument) for argument in (arguments or sys.argv))
    return text.replace("\n", "\\n").replace("\t", "\\t")


def note(queue: str, tickets: Sequence[Ticket], command: str) -> None:
    """Add a line for each ticket; a project that cannot be written to has no history."""
    folder = project_folder()
    commit, is_changed = _git_state(folder)
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    rows = [
        (now, queue, ticket.job.number, ticket.id, os.path.abspath(ticket.job.folder), ticket.log or "", commit,
         is_changed, command)
        for ticket in tickets
    ]  # fmt: skip
    try:
        _append(folder / FOLDER, "".join("\t".join(map(_cell, row)) + "\n" for row in rows))
    except OSError as error:
        print(f"nlu: {folder / FOLDER / FILE} is not written: {error.strerror or error}", file=sys.stderr)


def read(folder: Path | None = None) -> list[dict[str, str]]:
    """Return the rows of a project's history, oldest first."""
    file = (folder or project_folder()) / FOLDER / FILE
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[1:-1]
    return [dict(zip(COLUMNS, line.split("\t"), strict=False)) for line in lines]


def _append(folder: Path, text: str) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        # What a project's machine did is no part of what the project is.
        (folder / ".gitignore").write_text("*\n")
    with open(folder / FILE, "ab", buffering=0) as file:
        head = "" if file.tell() else "\t".join(COLUMNS) + "\n"
        file.write((head + text).encode())


def _cell(value: object) -> str:
    return str(value).replace("\t", "\\t").replace("\n", "\\n")


@functools.cache
def _git_state(folder: Path) -> tuple[str, str]:
    """Return the commit of a checkout, and yes where files of it differ from that; empty without one."""
    found = []
    for arguments in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(
                ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments], capture_output=True, text=True,
                timeout=GIT_LIMIT_S, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return "", ""
        if done.returncode:
            return "", ""
        found.append(done.stdout.strip())
    return found[0], "yes" if found[1] else "no"
