"""The history of a project: a line for every job that was ever submitted from it, PROJECT/.nlu/submissions.tsv.

The project is the checkout in which a command is started, or else its working folder. No secret is written down.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nlu.launching.queue import Ticket

COLUMNS = ("time", "queue", "job", "id", "folder", "log", "commit", "changed", "command")
FOLDER, FILE = ".nlu", "submissions.tsv"
GIT_LIMIT_S = 10


def project_folder(start: Path | None = None) -> Path:
    """Return the top of the checkout that holds `start`, by default the working folder; without one, `start` itself."""
    start = start or Path.cwd()
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)


def note(queue: str, tickets: Sequence[Ticket], command: str) -> None:
    """Add a line for each ticket, with the command as `redaction.command_text` shows it; a project that cannot be
    written to has no history."""
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
    """Return the rows of this project's history, oldest first; those of jobs below `folder` alone, where one is given,
    from its own project's history as well."""
    projects = dict.fromkeys([project_folder(), *([project_folder(folder.resolve())] if folder is not None else [])])
    rows = [row for project in projects for row in _rows(project)]
    if folder is not None:
        top = folder.resolve()
        rows = [row for row in rows if "folder" in row and Path(row["folder"]).resolve().is_relative_to(top)]
    return sorted(rows, key=lambda row: row.get("time", ""))


def _rows(project: Path) -> list[dict[str, str]]:
    file = project / FOLDER / FILE
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
