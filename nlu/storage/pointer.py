"""Which objects of a folder in a bucket count, and which process may write the next ones: numbered pointers.

    FOLDER/.pointer/0000000007.json    a Pointer: who wrote it, and the key, size and sha256 of each file
    FOLDER/.saves/WRITER/3/log.txt     a file, whose key no other writer uses and no other content gets

The highest number counts. A pointer is put on the condition that its number is free. A process takes the folder by a
pointer that names the files of the one before; only then does it write and delete.

Why two writers never mix, wherever one is suspended and however long. Its next number is either taken, and its put
refused; or its successor has deleted that number, the put succeeds, and the list after it shows a higher one. In both
cases it ends before it deletes anything, and what it has sent counts for nobody. A writer deletes a file in this order:
it puts a pointer without the file, lists the files, lists the pointers, and finds its own the highest. So a listed file
is of its own or of a former writer, since a successor puts a pointer before its first file. No later pointer can name
the file again, and the deletion harms nobody even if it is carried out hours later.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nlu.config.errors import Temporary, UserError
from nlu.storage.locks import may_follow, own_writer
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Pauses, Unreachable
from nlu.storage.transfer_in_parts import download_progress

FOLDER, SAVES = ".pointer", ".saves"
"""pointers; files until a run has ended"""
PROOF = f"{FOLDER}/conditional-put"
KEPT = 3
"""pointers that are kept, for readers that have just listed them"""
AT_ONCE = 8
AGAIN_S = Pauses(0.2, 1.0, 8)
"""before pointers are read again that changed while they were read"""


class MirrorUnavailable(UserError, Temporary):
    """The service does not respond at the start, when the content of the mirror is unknown, or at the end."""


class TakenOver(UserError):
    """Another process writes to the folder; this one must not write there any more."""


@dataclass(frozen=True)
class Stored:
    """An object with the content of a file."""

    key: str
    size: int
    """in bytes"""
    sha256: str
    """empty of a file that no mirror keeps, which may have any content"""


@dataclass(frozen=True)
class Pointer:
    """The state of a folder in a bucket."""

    number: int
    id: str
    """of this pointer, by which its writer recognizes it if the answer to the put was lost"""
    writer: Mapping[str, Any]
    save: str | None = None
    """identifies the files; a process that takes or releases the folder changes only the pointer"""
    files: Mapping[str, Stored] = field(default_factory=dict)
    """by path in the folder"""
    ended: bool = False
    """whether the run has ended, so that its files change no more"""
    released: bool = False
    gone: tuple[str, ...] = ()
    """keys that are to be deleted, also after a kill"""

    @property
    def keys(self) -> set[str]:
        return {file.key for file in self.files.values()}


class Pointers:
    """The pointers of a folder, for a reader (`newest`) or for the one writer (`take` first). Not thread-safe.

    Every method raises Unreachable if the service does not respond.
    """

    def __init__(self, store: ObjectStore):
        self._store = store
        self.writer = own_writer()
        self.last: Pointer | None = None
        """the newest one that this process knows"""

    def newest(self, listed: Iterable[str] = ()) -> Pointer | None:
        """Return the newest pointer, None without one; keys that were `listed` a moment ago save a request."""
        number = max(map(_number, listed), default=0) or self._highest()
        for pause_s in (*AGAIN_S, None):
            if not number:
                return None
            if (found := self._read(number)) is not None:
                return found
            # Its writer has put later ones since, and deleted it.
            if pause_s is not None:
                time.sleep(pause_s)
            number = self._highest()
        raise Unreachable(f"{self._store.shown} changes faster than it can be read; try again later")

    def take(self, seen: Pointer | None, *, force: bool = False) -> bool:
        """Become the writer of a folder whose newest pointer was `seen`; returns False if another is the newest by now.

        Raises TakenOver if another process writes there; with `force` that one is kept out from now on.
        """
        if seen is None:
            self._store.prove_conditional_put(PROOF)
        elif not (force or seen.released or may_follow(self.writer, seen.writer)):
            raise self._refusal(seen.writer)
        self.last = seen
        try:
            self.put(save=seen and seen.save, released=False)
        except TakenOver:
            return False
        return True

    def put(self, **changed: Any) -> Pointer:
        """Put the next pointer, with what changes in it. Raises TakenOver if another process has put one."""
        last = self.last or Pointer(0, "", {})
        new = replace(last, number=last.number + 1, id=uuid.uuid4().hex, writer=self.writer, **changed)
        content = json.dumps(asdict(new), ensure_ascii=False).encode()
        if not self._store.put_new(_key(new.number), content):
            if (there := self._read(new.number)) is None:
                # S3 also answers 409 for a conflict with another put, which may then have failed.
                raise Unreachable(f"{self._store.shown} refuses {_key(new.number)}, which does not exist")
            if there.writer.get("id") != self.writer["id"]:
                raise self._refusal(there.writer)
            if there.id != new.id:
                # An earlier put of this process, whose answer was lost.
                self.last = there
                return self.put(**changed)
        self.last = new
        self._require_newest()
        return new

    def _require_newest(self) -> list[str]:
        """Return the keys of all pointers. Raises TakenOver if the last one of this process is not the highest."""
        assert self.last is not None
        listed = list(self._store.list(FOLDER))
        highest = max(map(_number, listed), default=0)
        if highest < self.last.number:
            raise Unreachable(f"{self._store.shown} lists its objects as they were; try again later")
        if highest > self.last.number:
            raise self._refusal(there.writer if (there := self._read(highest)) else {})
        return listed

    def clean(self, before: Pointer) -> None:
        """Delete files that the last pointer of this process does not name, and old pointers.

        `before` is an earlier pointer. Raises TakenOver, and then deletes nothing.
        """
        assert self.last is not None
        sent = list(self._store.list(SAVES))
        pointers = [key for key in self._require_newest() if 0 < _number(key) <= self.last.number - KEPT]
        # The writer that ends a run puts its files at their paths, so such a key is not deleted.
        former = {file.key for place, file in before.files.items() if file.key != place}
        for key in [*sorted({*sent, *former, *self.last.gone} - self.last.keys), *pointers]:
            self._store.delete(key)

    def release(self) -> None:
        """Let the next process continue without being told to take the folder, if this one has it."""
        if self.last is not None and self.last.writer == self.writer and not self.last.released:
            self.put(released=True)

    def _highest(self) -> int:
        return max(map(_number, self._store.list(FOLDER)), default=0)

    def _read(self, number: int) -> Pointer | None:
        try:
            return _pointer(json.loads(self._store.get(_key(number))))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self._store.shown}/{_key(number)} does not say what the folder holds; choose another "
                f"{self._store.reference.what}"
            ) from error

    def _refusal(self, writer: Mapping[str, Any]) -> TakenOver:
        whose = f"process {writer.get('pid')} on {writer.get('host')}" if writer else "another process"
        return TakenOver(
            f"{self._store.reference.what} {self._store.shown} is written by {whose}; wait for it or stop it; if it is "
            "gone for good, add --take to the same command"
        )


def fetch(store: ObjectStore, files: Mapping[Path, Stored]) -> None:
    """Download files, several at once, each complete or not at all.

    Raises UserError for one that is damaged, FileNotFoundError for one that is there no more.
    """

    def one(path: Path, file: Stored) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = store.get_file(file.key, path, advance)
        if file.sha256 and digest != file.sha256:
            path.unlink()
            raise UserError(
                f"{store.shown}/{file.key} is damaged: its sha256 is {digest}, not {file.sha256}; restore that object, "
                f"or choose another {store.reference.what}"
            )

    total = sum(file.size for file in files.values())
    with download_progress(store.reference.name, total) as advance, ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, files.keys(), files.values()))


def _pointer(found: Mapping[str, Any]) -> Pointer:
    known = {item.name: found[item.name] for item in fields(Pointer)}
    files = {place: Stored(**file) for place, file in known["files"].items()}
    return Pointer(**{**known, "files": files, "gone": tuple(known["gone"])})


def _key(number: int) -> str:
    return f"{FOLDER}/{number:010d}.json"


def _number(key: str) -> int:
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isdigit() else 0
