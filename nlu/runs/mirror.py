"""A run folder that is mirrored to a bucket: taken, fetched, sent after every save, and released.

A thread sends the files, from links to them as they were at the save. Training never waits, and continues while the
service does not respond: what could not be sent is sent later, the newest state first. Only the end of the process
waits. A process that continues elsewhere finds the files that the newest pointer names (`nlu.storage.pointer`).
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.runs.freeing import RESULT
from nlu.runs.logs import end_stays_last, record_end
from nlu.runs.mirror_files import KEY, OUTBOX, TRIES, Note, Version, bring, has_begun, require_own_run, versions
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import (
    FOLDER,
    SAVES,
    MirrorUnavailable,
    Pointer,
    Pointers,
    Stored,
    TakenOver,
)
from nlu.storage.refusals import Pauses, Unreachable
from nlu.storage.settle import remove

log = logging.getLogger(__name__)

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
SAID_AFTER_S = 30.0
EXIT_WAIT_S = 1800.0
"""how long a run that ends, also after a signal, waits for a service that does not respond"""
FAILED_WAIT_S = 60.0
"""the same for a run that failed"""
GIVE_UP_S = 5.0


@dataclass(frozen=True)
class Snapshot:
    """All files at one moment, and the folder with the links to them."""

    files: list[Version]
    outbox: Path
    has_ended: bool


class Mirror:
    """The mirror of one folder, for the process that writes to the folder.

    `open` takes and fetches it, `saved` is called after each save, `close` sends the rest and releases it. The
    constructor raises UserError for an invalid address; the methods raise TakenOver if another process has the mirror.
    """

    def __init__(
        self, url: str, folder: Path, *, say: Callable[[str], None] = log.info, is_search: bool = False
    ) -> None:
        self.store, self._say = ObjectStore(url, KEY), say
        self._folder, self._is_search = folder, is_search
        self._pointers = Pointers(self.store)
        self._outbox = folder / OUTBOX
        self._digests: dict[tuple[int, int, int], str] = {}
        """by the identity of a file"""
        self._sent: dict[tuple[str | None, int], Stored] = {}
        """by digest and size: what was sent since the last pointer, which therefore does not name it"""
        self._note = Note(folder, self.store.shown)
        self._pending: Snapshot | None = None
        self._failure: Exception | None = None
        """why sending has ended"""
        self._closing = self._given_up = False
        self._count = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._send_all, name="mirror", daemon=True)

    def open(self, *, may_hold_a_run: bool, take: bool = False) -> None:
        """Take the mirror, and fetch its content unless the folder has it already.

        With `take` a process that has not released it is kept out from now on. Raises UserError, before anything is
        changed, if the mirror holds a run and must not, if mirror and folder hold unrelated runs, or if another process
        writes there; MirrorUnavailable if the service does not respond.
        """
        try:
            self._open(may_hold_a_run, take)
        except (Unreachable, FileNotFoundError) as error:
            raise MirrorUnavailable(f"{error}; or leave out {KEY}={self.store.shown}") from error

    def _open(self, may_hold_a_run: bool, take: bool) -> None:
        try:
            there = self._taken(may_hold_a_run, take)
            remove(self._outbox)
            # Otherwise the folder is at or ahead of the mirror, and fetching would drop what was not sent.
            if there is not None and there.files and there.save not in self._note.saves:
                bring(self.store, there.files, self._folder, self._say)
                self._note.write(there.save)
            if there is not None and there.ended:
                # A process that was killed amid it has left the rest.
                self._publish()
        # Also after a signal: the next process would be refused.
        except BaseException:
            self._release()
            raise
        self._thread.start()

    def _taken(self, may_hold_a_run: bool, take: bool) -> Pointer | None:
        """Take the mirror; returns what it held."""
        writers = set()
        for _ in range(TRIES):
            there = self._pointers.newest()
            self._require_fit(there, may_hold_a_run)
            writers.add(there and there.writer.get("id"))
            # Not from a process that has the mirror since a moment ago, which the user has not seen.
            if self._pointers.take(there, force=take and len(writers) == 1):
                return there
        raise Unreachable(f"{self.store.shown} changes faster than it can be taken; try again later")

    def _require_fit(self, there: Pointer | None, may_hold_a_run: bool) -> None:
        """Raise UserError before the mirror is taken, so that it leaves no trace there."""
        if there is None:
            if strange := [key for key in self.store.list() if not key.startswith(f"{FOLDER}/")]:
                raise UserError(
                    f"{KEY} is {self.store.shown}, which holds {strange[0]} but not a mirror; choose another"
                )
        elif there.files and not may_hold_a_run:
            raise UserError(
                f"{KEY} is {self.store.shown}, which holds a run; nothing was written; set resume=auto to continue "
                "it, or choose another"
            )
        elif there.files:
            require_own_run(self._folder, self._note, f"choose another {KEY} or another hydra.run.dir")

    def saved(self) -> None:
        """Send the files as they are now, in the background. Raises TakenOver if another process has the mirror."""
        if self._failure is not None:
            raise self._failure
        has_ended = (self._folder / RESULT).is_file()
        if has_ended and self._pointers.last is not None and self._pointers.last.ended:
            # Its files have got their names there, which are written once.
            return
        self._count += 1
        outbox = self._outbox / str(self._count)
        # Linked by the thread that writes the files, so that none changes meanwhile.
        snapshot = Snapshot(versions(self._folder, outbox, is_search=self._is_search), outbox, has_ended)
        with self._changed:
            # A snapshot that was not begun is superseded: a continued run needs only the newest one.
            if self._pending is not None:
                remove(self._pending.outbox)
            self._pending = snapshot
            self._changed.notify_all()

    def close(self, *, failed: bool = False) -> None:
        """Send what is missing and release the mirror; a folder in which no run has begun is not sent.

        Raises MirrorUnavailable if the service still does not respond after EXIT_WAIT_S or FAILED_WAIT_S seconds.
        """
        began = has_begun(self._folder)
        try:
            if began and self._failure is None:
                # The end of a run writes files after its last save: result, figures, the last lines of the log.
                self.saved()
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._wait(FAILED_WAIT_S if failed else EXIT_WAIT_S)
        finally:
            with self._changed:
                self._closing = self._given_up = True
                self._changed.notify_all()
            self._thread.join(GIVE_UP_S)
            remove(self._outbox)
            if not began:
                self._note.path.unlink(missing_ok=True)
            if self._failure is None and not self._thread.is_alive():
                self._release()
        if self._failure is not None:
            raise self._failure

    def _release(self) -> None:
        try:
            self._pointers.release()
        except (Unreachable, UserError) as error:
            log.warning("%s is not released: %s", self.store.shown, error)

    def _wait(self, limit_s: float) -> None:
        self._thread.join(min(SAID_AFTER_S, limit_s))
        if self._thread.is_alive():
            self._say(f"ended; waiting until all of it is in {self.store.shown}")
            self._thread.join(max(0.0, limit_s - SAID_AFTER_S))
        if self._thread.is_alive():
            raise MirrorUnavailable(
                f"the run in {self._folder} is not in {self.store.shown}, which did not accept it for "
                f"{limit_s / 60:.0f} minutes; the same command with resume=auto sends the rest"
            )

    def _send_all(self) -> None:
        """Run the thread: send the newest snapshot, until all are sent and the mirror is closing."""
        pauses, is_logged = iter(Pauses(PAUSE_S, LONGEST_PAUSE_S)), False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending is not None or self._closing)
                snapshot, self._pending = self._pending, None
            if snapshot is None:
                return
            try:
                self._send(snapshot)
            except TakenOver as error:
                self._failure = error
                return
            except (UserError, OSError) as error:
                if self._given_up:
                    return
                if not is_logged:
                    log.warning("%s; training continues, and the missing files are sent later", error)
                    is_logged = True
                with self._changed:
                    # A newer snapshot takes precedence over one that could not be sent.
                    if self._pending is None:
                        self._pending = snapshot
                    else:
                        remove(snapshot.outbox)
                    self._changed.wait_for(lambda: self._given_up, next(pauses))
                continue
            except Exception as error:
                # A bug, after which the mirror must not be reported as complete.
                self._failure = error
                return
            if is_logged:
                log.info("%s responds again, and has all saved files", self.store.shown)
            pauses, is_logged = iter(Pauses(PAUSE_S, LONGEST_PAUSE_S)), False
            remove(snapshot.outbox)

    def _send(self, snapshot: Snapshot) -> None:
        """Send what the mirror lacks of a snapshot, and put the pointer that names all of it."""
        before = self._pointers.last
        assert before is not None
        known = {(file.sha256, file.size): file for file in before.files.values()} | self._sent
        digests = {file.identity: self._digests.get(file.identity) or file.sha256() for file in snapshot.files}
        self._digests = digests
        files = {}
        for file in snapshot.files:
            content = digests[file.identity], file.size
            if content not in known:
                key = f"{SAVES}/{self._pointers.writer['id']}/{snapshot.outbox.name}/{file.place}"
                self.store.put_file(key, file.whole())
                known[content] = self._sent[content] = Stored(key, file.size, content[0])
            files[file.place] = known[content]
        # The note is written first: after a kill in between, the folder must recognize its own save. The earlier ones
        # stay in it until a pointer is known to exist, since one whose answer was lost may exist too.
        save = uuid.uuid4().hex
        self._note.write(*self._note.saves, save)
        self._pointers.put(save=save, files=files, ended=snapshot.has_ended, gone=())
        self._sent = {}
        self._note.write(save)
        self._pointers.clean(before)
        if snapshot.has_ended:
            self._publish()

    def _publish(self) -> None:
        """Give the files of a run that has ended their paths as keys, so that other programs can read the folder."""
        before = self._pointers.last
        assert before is not None
        if all(file.key == place for place, file in before.files.items()):
            return
        for place, file in before.files.items():
            if file.key != place:
                self.store.copy(file.key, place)
        self._pointers.put(files={place: replace(file, key=place) for place, file in before.files.items()})
        self._pointers.clean(before)


@contextmanager
def closed_at_the_end(mirror: Mirror) -> Iterator[None]:
    """Close the mirror after the block. An error of the block takes precedence over errors of closing.

    A signal does not count as a failure: the saved files are sent, as at any other end.
    """
    try:
        yield
    except BaseException as error:
        was_stopped = stopping.received() is not None and isinstance(error, KeyboardInterrupt | SystemExit)
        try:
            with end_stays_last(mirror._folder):
                mirror.close(failed=not was_stopped)
        except UserError as left:
            if was_stopped:
                log.warning("%s", left)
        raise
    try:
        mirror.close()
    except UserError as error:
        # After the last word of the run itself.
        record_end(mirror._folder, error)
        raise
