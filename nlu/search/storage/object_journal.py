"""A journal of an Optuna study in an object store: batches of log entries as numbered objects, by conditional puts.

    PREFIX/batches/0000000042.jsonl          batch 42: one line, {"id": ..., "logs": [...]}
    PREFIX/conditional-put                   shows, at each opening, that the store refuses to overwrite an object

A batch gets the first free number, by a put that the store must refuse if the object exists (`If-None-Match: *`; OSS:
`x-oss-forbid-overwrite`). If several writers try the same number, exactly one succeeds; the others read its batch and
try the next number. The numbers are therefore a total order for all readers. It needs no locks, which could be left
behind or time out, and a writer that is killed has either written its batch or not. Nothing is ever overwritten or
deleted. Each batch has a unique id. If the answer to a put is lost, the writer looks for the id, so no batch is written
twice.

Readers ask for one batch, and for twice as many while there are more, up to 32 at a time. (Former versions also merged
batches, which is not read any more.)

This implements BaseJournalBackend of Optuna, whose own journals in files and Redis use locks and counters.
"""

import json
import logging
import time
import uuid

from optuna.storages.journal import BaseJournalBackend

from nlu.config.errors import UserError
from nlu.search.faults import StorageUnavailable
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Denied, Pauses, Unreachable

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
