"""A journal in a local file that stays usable when a writer is killed.

Optuna's own locks are files: if a killed process leaves one behind, other processes wait for its grace period of 30 s,
and a line that the kill cut makes the next line unreadable. This lock belongs to the kernel, which releases it when its
holder ends, and the next holder removes a cut line. Readers, also Optuna's own, such as its dashboard, take no lock and
change nothing.

A journal of an Optuna study in an object store: batches of log entries as numbered objects, by conditional puts.

    PREFIX/batches/0000000042.jsonl          batch 42: one line, {"id": ..., "logs": [...]}
    PREFIX/conditional-put                   shows, at each opening, that the store refuses to overwrite an object

A batch gets the first free number, by a put that the store must refuse if the object exists (`If-None-Match: *`; OSS:
`x-oss-forbid-overwrite`). If several writers try the same number, exactly one succeeds; the others read its batch and
try the next number. The numbers are therefore a total order for all readers. It needs no locks, which could be left
behind or time out, and a writer that is killed has either written its batch or not. Nothing is ever overwritten or
deleted. Each batch has a unique id. If the answer to a put is lost, the writer looks for the id, so no batch is written
twice.

Readers ask for one batch, and for twice as many while there are more, up to 32 at a time.

This implements BaseJournalBackend of Optuna, whose own journals in files and Redis use locks and counters.
"""

import json
import logging
import math
import os
import shlex
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from nlu.config.errors import UserError
from nlu.search.faults import StorageUnavailable
from nlu.storage.locks import hold_lock
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Denied, Pauses, Unreachable

_BLOCK_BYTES = 4096


class KernelLock:
    """An exclusive lock between processes and threads; acquiring it removes a cut line from the journal.

    The lock file lies beside the journal. NFS forwards such locks to the server since Linux 2.6.12.
    """

    def __init__(self, path: str):
        self._path = path
        # Optuna shares one lock among threads, but each thread must release its own file.
        self._held = threading.local()

    def __reduce__(self) -> tuple[type["KernelLock"], tuple[str]]:
        # A copy, such as that of another process, holds nothing.
        return KernelLock, (self._path,)

    def acquire(self) -> bool:
        with ExitStack() as held:
            held.enter_context(hold_lock(f"{self._path}.flock", wait_s=math.inf, what=self._path))
            # Under the lock, so that no line is cut while its writer is alive.
            remove_cut_line(self._path)
            self._held.stack = held.pop_all()
        return True

    def release(self) -> None:
        self._held.stack.close()


def remove_cut_line(path: str) -> None:
    """Truncate a file after its last line break; a file without one becomes empty."""
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        kept = end
        # From the end, in blocks: a journal may be large, and a cut line is short.
        while kept > 0:
            start = max(0, kept - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(kept - start)
            if (found := block.rfind(b"\n")) >= 0:
                kept = start + found + 1
                break
            kept = start
        if kept < end:
            file.truncate(kept)


class JournalFile(JournalFileBackend):
    """The journal in the file at `path`, which is created if it is absent; its folder must exist.

    Reading raises UserError if a line is damaged. No kill does that: a cut last line is not read, and then removed.
    """

    def __init__(self, path: str):
        super().__init__(path, lock_obj=KernelLock(path))  # type: ignore[arg-type]  # wants one of Optuna's locks

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Yield the entries from this number on."""
        try:
            for entry in super().read_logs(log_number_from):
                if not isinstance(entry, dict):
                    raise ValueError("no entry of a journal")
                yield entry
        except ValueError as error:
            path = self._file_path
            if (number := _damaged_line(path)) is None:
                raise
            raise UserError(
                f"{path} is damaged in line {number}; restore it from a copy, or remove that line, which loses what it "
                f"noted: sed -i {number}d {shlex.quote(path)}; if it began a trial ('\"op_code\":4'), choose another "
                "hydra.sweep.dir"
            ) from error


def _damaged_line(path: str) -> int | None:
    """Return the number of the first line of a journal that is no entry."""
    with open(path, "rb") as file:
        return next((number for number, line in enumerate(file, start=1) if not _is_entry(line)), None)


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


logger = logging.getLogger(__name__)

AT_ONCE = 32
"""the number of objects that are fetched at a time"""
RETRY_DELAYS_S = Pauses(0.5, 2.0, 3)
REQUEST_DELAYS_S = Pauses(0.2, 0.2, 1)
"""One repetition, for short failures. PatientStorage waits for longer ones, and stops waiting when a search ends."""


class ObjectJournalBackend(BaseJournalBackend):
    """The journal under a prefix of a bucket, `s3://bucket/prefix` or `oss://bucket/prefix`.

    All readers see the same entries in the same order, each exactly once. Once `append_logs` has returned, every later
    `read_logs` sees its entries. Many processes may share a journal; it can be pickled and inherited by a fork.
    Endpoint and credentials come from the environment (AWS_*, OSS_*, FSSPEC_*).

    Raises UserError for another scheme and for a store that ignores the condition. Any method raises UserError for a
    prefix that holds something else, and StorageUnavailable for a store that does not answer or denies access.
    """

    def __init__(self, url: str):
        self._objects = JournalObjects(url)
        self._objects.prove_conditional_put()
        self._batch_count = 0
        self._log_count = 0
        self._unread: list[dict[str, object]] = []

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        """Append the entries as one batch. After an error, the batch may or may not have been written."""
        identity = uuid.uuid4().hex
        line = json.dumps({"id": identity, "logs": logs}, separators=(",", ":")).encode() + b"\n"
        delays_s = iter(RETRY_DELAYS_S)
        while True:
            number = self._batch_count
            failure: Exception | None = None
            try:
                created = self._objects.create(number, line)
            except Exception as error:  # the answer may be lost although the batch was written
                created, failure = False, error
            if created:
                self._take([line])
                return
            # The put succeeded, and only its answer was lost.
            if identity in self._catch_up():
                return
            # No other writer took the number, so the put failed for another reason; with a number that was taken, the
            # next one is tried at once.
            if self._batch_count == number:
                delay_s = next(delays_s, None)
                if delay_s is None:
                    raise self._objects.error("written", failure or "it refuses a number that is free") from failure
                logger.warning("%s: %s; trying again in %g s", self._objects.shown, failure or "conflict", delay_s)
                time.sleep(delay_s)

    def read_logs(self, log_number_from: int) -> list[dict[str, object]]:
        """Return the entries from this number on. Only new entries are fetched, unless earlier ones are requested."""
        # Entries that were given out are not kept, so a reader that starts again gets them from the store.
        if log_number_from < self._log_count - len(self._unread):
            self._batch_count = self._log_count = 0
            self._unread = []
        self._catch_up()
        logs = self._unread[log_number_from - (self._log_count - len(self._unread)) :]
        self._unread = []
        return logs

    def _catch_up(self) -> set[str]:
        """Fetch the new batches; returns their ids."""
        return self._take(self._objects.batches(self._batch_count))

    def _take(self, lines: list[bytes]) -> set[str]:
        identities = set()
        for line in lines:
            identity, logs = self._objects.parse(line)
            identities.add(identity)
            self._unread.extend(logs)
            self._log_count += len(logs)
            self._batch_count += 1
        return identities


class JournalObjects:
    """The objects under the prefix of a journal: written once, read in order. Each process connects by itself."""

    def __init__(self, url: str):
        self._store = ObjectStore(url, "storage", REQUEST_DELAYS_S)
        self.shown = self._store.shown

    def prove_conditional_put(self) -> None:
        """Raise UserError unless the store refuses to overwrite an object."""
        try:
            self._store.prove_conditional_put("conditional-put")
        except (Unreachable, Denied) as error:
            raise self.error("opened", error) from error

    def create(self, number: int, content: bytes) -> bool:
        """Write a batch; returns False, and changes nothing, if one of this number exists."""
        return self._store.put_new(_path(number), content)

    def batches(self, first: int) -> list[bytes]:
        """Return the lines of the batches from `first` up to the first that does not exist."""
        lines: list[bytes] = []
        # Small at first, since most reads find one new batch or none.
        width = 1
        while True:
            paths = [_path(first + len(lines) + offset) for offset in range(width)]
            for path, content in zip(paths, self._store.get_several(paths), strict=True):
                if isinstance(content, FileNotFoundError):
                    return lines
                if isinstance(content, BaseException):
                    raise self.error("read", content) from content
                if content.count(b"\n") != 1 or not content.endswith(b"\n"):
                    raise self._foreign(path)
                lines.append(content)
            width = min(2 * width, AT_ONCE)

    def parse(self, line: bytes) -> tuple[str, list[dict[str, object]]]:
        """Return the id and the entries of a batch."""
        try:
            batch = json.loads(line)
            return batch["id"], batch["logs"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign(repr(line[:40])) from error

    def error(self, action: str, reason: object) -> UserError:
        """Return the error for a store that cannot be written, read or opened."""
        # While a search waits, credentials may be renewed or get more rights.
        if isinstance(reason, Unreachable | Denied):
            return StorageUnavailable(*reason.problems)
        if isinstance(reason, UserError):
            return reason
        return StorageUnavailable(f"storage {self.shown} cannot be {action}: {reason}")

    def _foreign(self, path: str) -> UserError:
        return UserError(
            f"storage {self.shown} holds {path}, which is not part of a journal; give the storage of each search a "
            "separate prefix"
        )


def _path(number: int) -> str:
    return f"batches/{number:010d}.jsonl"
