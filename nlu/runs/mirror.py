"""A run folder that is mirrored to a bucket: claimed, fetched, sent after every save, and released.

A thread sends the files, from links to them as they were at the save. Training never waits, and continues while the
service does not respond: what could not be sent is sent later, the newest state first. Only the end of the process
waits. A process that continues elsewhere finds the newest state that a record names (`nlu.storage.ledger`), with the
digest of each of its files.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.runs.mirrored import (
    BEGUN,
    LAST,
    NOTE,
    OUTBOX,
    RESULT,
    FileEntry,
    RecordedFile,
    Snapshot,
    Version,
    final_names,
    install,
    mirrors_below,
    receive,
    versions,
)
from nlu.runs.takeover import CHECKPOINTS
from nlu.storage.files import read_json, write_json
from nlu.storage.ledger import FOLDER, SAVE, Ledger, MirrorUnavailable, TakenOver
from nlu.storage.objects import ObjectStore
from nlu.storage.progress import download_progress
from nlu.storage.refusals import Unreachable
from nlu.storage.settle import remove
from nlu.storage.temporary import Pauses

log = logging.getLogger(__name__)

KEY = "mirror"
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LOG_EVERY_S = 60.0
EXIT_WAIT_S = 1800.0
"""how long a run that ends, also after a signal, waits for a service that does not respond"""
FAILED_WAIT_S = 60.0
"""the same for a run that failed"""
GIVE_UP_S = 5.0
BRING_TRIES = 5
SINGLE_PUT_BYTES = 64 << 20


class Mirror:
    """The mirror of one folder, for the process that writes to the folder.

    `open` claims and fetches it, `saved` is called after each save, `close` sends the rest and releases the claim. The
    constructor raises UserError for an invalid address; the methods raise TakenOver if another process has the mirror.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        ledger: Ledger | None = None,
        say: Callable[[str], None] = log.info,
        is_search: bool = False,
    ):
        self.store, self._say = ObjectStore(url, KEY), say
        self._folder, self._is_search = folder, is_search
        self._ledger = ledger or Ledger(self.store)
        self._outbox = folder / OUTBOX
        self._sent: dict[str, tuple[int, int, int]] = {}
        """by key: the identity of the file that was sent"""
        self._kept: dict[str, FileEntry] = {}
        """by key: each file of a checkpoint in the newest record"""
        self._saves: list[str] = []
        """the newest record that the mirror has, and later ones that it may have; the folder is at or ahead of them"""
        self._pending: Snapshot | None = None
        self._failure: Exception | None = None
        """why sending has ended"""
        self._closing = self._given_up = False
        self._count = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._send_all, name="mirror", daemon=True)

    def open(self, *, may_hold_a_run: bool) -> None:
        """Claim the mirror, and fetch its content unless the folder has it already.

        Raises UserError, before anything is changed, if the mirror holds a run and must not, or if mirror and folder
        hold unrelated runs; MirrorUnavailable if the service does not respond.
        """
        try:
            self._open(may_hold_a_run)
        except (Unreachable, FileNotFoundError) as error:
            raise MirrorUnavailable(f"{error}; or leave out {KEY}={self.store.shown}") from error

    def _open(self, may_hold_a_run: bool) -> None:
        newest = self._ledger.newest()
        there = newest.content if newest else {}
        if there and not may_hold_a_run:
            raise UserError(
                f"{KEY} is {self.store.shown}, which holds a run; nothing was written; set resume=auto to continue "
                "it, or choose another"
            )
        # All refusals come before the claim, so that they leave no trace in the bucket.
        strange = [] if newest else [key for key in self.store.list() if not key.startswith(f"{FOLDER}/")]
        if strange:
            raise UserError(f"{KEY} is {self.store.shown}, which holds {strange[0]} but not a mirror; choose another")
        note = read_json(self._folder / NOTE) or {}
        if there and note.get("mirror") != self.store.shown and self._began():
            raise UserError(
                f"{self._folder} and {self.store.shown} both hold a run, and the one is not the mirror of the other; "
                f"choose another {KEY} or another hydra.run.dir"
            )
        self._ledger.claim(self._say, newest)
        try:
            remove(self._outbox)
            if there:
                # Otherwise the folder is at or ahead of the mirror, and fetching would drop what was not sent.
                if there["id"] not in note.get("saves", []):
                    self._fetch(there)
                self._saves = [there["id"]]
                self._kept = dict(there["fixed"])
        # Also after a signal: with a claim that is not released, the next process would have to wait for its heartbeat
        # to stop.
        except BaseException:
            self._release()
            raise
        self._thread.start()

    def saved(self) -> None:
        """Send the files as they are now, in the background. Raises TakenOver if another process has the mirror."""
        self._raise_failure()
        self._count += 1
        outbox = self._outbox / str(self._count)
        has_ended = (self._folder / RESULT).is_file()
        # Linked by the thread that writes the files, so that none changes meanwhile.
        files = versions(self._folder, outbox, is_search=self._is_search)
        snapshot = Snapshot(files, outbox, has_ended, final_names(self._folder, is_search=self._is_search))
        with self._changed:
            # A snapshot that was not begun is superseded: a continued run needs only the newest one.
            if self._pending is not None:
                remove(self._pending.outbox)
            self._pending = snapshot
            self._changed.notify_all()

    def close(self, *, failed: bool = False) -> None:
        """Send what is missing and release the claim; a folder in which no run has begun is not sent.

        Raises MirrorUnavailable if the service still does not respond after EXIT_WAIT_S or FAILED_WAIT_S seconds.
        """
        began = self._began()
        if began and self._failure is None:
            # The end of a run writes files after its last save: result, figures, the last lines of the log.
            self.saved()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        try:
            self._wait(FAILED_WAIT_S if failed else EXIT_WAIT_S)
        finally:
            with self._changed:
                self._given_up = True
                self._changed.notify_all()
            self._thread.join(GIVE_UP_S)
            remove(self._outbox)
            if not began:
                (self._folder / NOTE).unlink(missing_ok=True)
            if self._failure is None and not self._thread.is_alive():
                self._release()
            # If the thread still writes under the claim, it is not released, but its heartbeat ends.
            self._ledger.stop_beating()
        self._raise_failure()

    def _release(self) -> None:
        try:
            self._ledger.release()
        except (Unreachable, UserError) as error:
            log.warning("the claim on %s is not released: %s", self.store.shown, error)

    def _began(self) -> bool:
        """Return whether a run or a search has begun in the folder."""
        return any((self._folder / name).is_file() for name in BEGUN)

    def _wait(self, limit_s: float) -> None:
        began_s = logged_s = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.2)
            now_s = time.monotonic()
            if now_s - logged_s > LOG_EVERY_S:
                self._say(f"ended; waiting until all of it is in {self.store.shown}")
                logged_s = now_s
            if now_s - began_s > limit_s:
                raise MirrorUnavailable(
                    f"the run in {self._folder} is not in {self.store.shown}, which did not accept it for "
                    f"{limit_s / 60:.0f} minutes; the same command with resume=auto sends the rest"
                )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._ledger.stop_beating()
            raise self._failure

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
                self._put_back(snapshot)
                with self._changed:
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

    def _put_back(self, snapshot: Snapshot) -> None:
        with self._changed:
            # A newer snapshot takes precedence over one that could not be sent.
            if self._pending is None:
                self._pending = snapshot
            else:
                remove(snapshot.outbox)

    def _send(self, snapshot: Snapshot) -> None:
        """Send a snapshot in this order: files of checkpoints, other files, the result, the record."""
        fixed: dict[str, RecordedFile] = {}
        loose: dict[str, int] = {}
        files = sorted(snapshot.files, key=lambda file: (not file.is_fixed, file.place == RESULT))
        for file in files:
            # This process may have been suspended after the last file.
            self._ledger.require_held()
            if file.is_fixed:
                named = _final(file.key, snapshot.names)
                key, place = (named, named) if snapshot.has_ended else (file.key, file.place)
                fixed[key] = {**self._with_fixed(file, key), "place": place, "named": named}
            else:
                loose[file.place] = file.size
                self._with_loose(file)
        own_id = uuid.uuid4().hex
        # The note is written first: after a kill in between, the folder must recognize its own save. The earlier ids
        # stay in it until a record is known to exist, since one whose response was lost may exist too.
        self._note([*self._saves, own_id])
        self._ledger.append(SAVE, {"id": own_id, "fixed": fixed, "loose": loose, "ended": snapshot.has_ended}, own_id)
        self._saves = [own_id]
        gone, self._kept = self._kept.keys() - fixed.keys(), dict(fixed)
        # Later records do not name them either: a process that takes over continues from this record.
        for key in sorted(gone):
            self._ledger.require_held()
            self._sent.pop(key, None)
            self.store.delete(key)
        if snapshot.has_ended:
            self._clean({*fixed, *loose})
        self._ledger.forget_old()

    def _clean(self, named: set[str]) -> None:
        """Delete files of checkpoints that killed processes left without a record, except in mirrors below this one."""
        keys = list(self.store.list())
        others = mirrors_below(keys)
        for key in keys:
            if CHECKPOINTS in key.split("/") and key not in named and not key.startswith(others):
                self._ledger.require_held()
                self.store.delete(key)

    def _with_fixed(self, file: Version, key: str) -> FileEntry:
        """Send a file of a checkpoint to a key, unless it is there; returns its entry for the record."""
        known = self._kept.get(key)
        if known is None or known["size"] != file.size or self._sent.get(key, file.identity) != file.identity:
            known = {"size": file.size, "sha256": file.sha256()}
            earlier = self._kept.get(file.key)
            # At the end a checkpoint gets its final name; the store copies it, so it is not sent again.
            if earlier is not None and earlier["sha256"] == known["sha256"]:
                self.store.copy(file.key, key)
            else:
                self.store.put_file(key, file.file)
            self._kept[key] = known
        self._sent[key] = file.identity
        return {"size": known["size"], "sha256": known["sha256"]}

    def _with_loose(self, file: Version) -> None:
        if self._sent.get(file.key) == file.identity:
            return
        if file.size <= SINGLE_PUT_BYTES:
            self.store.put(file.key, file.content())
        else:
            self.store.put_file(file.key, file.file)
        self._sent[file.key] = file.identity

    def _note(self, saves: list[str]) -> None:
        """Note, in the folder, the saves of the mirror that it is at or ahead of."""
        self._saves = saves
        write_json(self._folder / NOTE, {"mirror": self.store.shown, "saves": saves})

    def _fetch(self, content: Mapping[str, Any]) -> None:
        """Fetch the files that a record names into the folder."""
        incoming = self._outbox / "incoming"
        # Everything in `incoming` is installed, so leftovers of an earlier fetch must go.
        remove(incoming)
        total = sum(entry["size"] for entry in content["fixed"].values()) + sum(content["loose"].values())
        self._say(f"fetching {self._folder} from {self.store.shown}, {total / 1e6:.0f} MB")
        self._folder.mkdir(parents=True, exist_ok=True)
        # An empty list: after a kill during the fetch the folder holds parts of two states, and the next process
        # fetches again.
        self._note([])
        with download_progress(self.store.reference.name, total) as advance:
            receive(self.store, content, incoming, advance)
        install(self._folder, incoming)
        remove(incoming)
        self._note([content["id"]])


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
            mirror.close(failed=not was_stopped)
        except UserError as left:
            if was_stopped:
                log.warning("%s", left)
        raise
    mirror.close()


def bring_back(url: str, folder: Path, say: Callable[[str], None] = log.info) -> bool:
    """Fetch a run of another process into a folder, even while it is written; returns whether the mirror holds one.

    `last` is left out, since a command that continues the run fetches it. Raises UserError if the address is wrong or
    an object is damaged, Unreachable if the service does not respond.
    """
    with _BRINGING[hash(str(folder.absolute())) % len(_BRINGING)]:
        return _brought(url, folder, say)


_BRINGING = [threading.Lock() for _ in range(16)]
"""so that threads that fetch the same folder take turns, and the second one finds it complete"""


def _brought(url: str, folder: Path, say: Callable[[str], None]) -> bool:
    for _ in range(BRING_TRIES):
        mirror = Mirror(url, folder, say=say)
        newest = mirror._ledger.newest()
        if newest is None or "fixed" not in newest.content:
            return False
        note, content = read_json(folder / NOTE) or {}, newest.content
        if note.get("brought") == content["id"] or content["id"] in note.get("saves", []):
            return True
        if note.get("mirror") != mirror.store.shown and mirror._began():
            raise UserError(
                f"{folder} holds a different run than {mirror.store.shown}; move it away, then give the same command "
                "again"
            )
        fixed = {key: entry for key, entry in content["fixed"].items() if LAST not in Path(entry["place"]).parts}
        try:
            mirror._fetch({**content, "fixed": fixed})
        except FileNotFoundError:
            # The run has saved again, and its files were replaced.
            continue
        write_json(folder / NOTE, {"mirror": mirror.store.shown, "saves": [], "brought": content["id"]})
        return True
    raise Unreachable(f"{url} changes faster than it can be read; try again later")


def _final(key: str, names: Mapping[str, str]) -> str:
    folder, _, name = key.rpartition("/")
    return f"{names[folder]}/{name}" if folder in names else key
