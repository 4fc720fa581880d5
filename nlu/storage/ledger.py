"""Who may write to a folder of a bucket, and what in it counts: numbered records, each written by a conditional put.

    FOLDER/.ledger/0000000007.json     {"id", "kind": "claim" | "save" | "release", "claim": 5, "holder", "content"}
    FOLDER/.ledger/newest-5.json       {"number": 7}: the holder of claim 5 has written at least so many records
    FOLDER/.ledger/beat.json           {"holder": ..., "count": ...}

A record gets the number after the last one, by a put that the service refuses if the object exists. If two processes
write the same number, one succeeds and the other one notices. Only what the newest record names counts. A record whose
response was lost is recognized by its id.

**The fence.** A claim is written directly after the last record of the previous holder, and is never deleted; a holder
deletes only its own records, and never its claim. The next number of a suspended holder therefore stays taken forever,
however many records its successor has written and deleted, and the put itself is refused, without a gap between a
check and the put. The same holds if the suspended holder does not know whether its last record arrived. Each holder
notes its newest number in its own object, so that one that wakes up cannot revert the note of another.

A folder is free to claim if its last record is a release, if its holder was a process of this machine that has ended,
or if the holder has fallen silent (`nlu.storage.heartbeat`). The claiming process may itself have been suspended after
it read the newest record, while the number after that one was used and deleted: it then finds a higher note of the
previous holder, and withdraws.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nlu.config.errors import Temporary, UserError
from nlu.storage.heartbeat import BEAT_S, SILENCE_S, Heartbeat, elapsed_s, falls_silent, has_ended, identity_of
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Unreachable
from nlu.storage.temporary import Pauses, retried

FOLDER = ".ledger"
BEAT = f"{FOLDER}/beat.json"
PROOF = f"{FOLDER}/conditional-put"
CLAIM, SAVE, RELEASE = "claim", "save", "release"
KEPT = 4
"""records of a holder that are kept beside its claim, for readers that have just read the number of one"""
HELD_FOR_S = 1.0
"""how long to rely on a check that the folder is still held; far less than any silence"""
LISTED_AGAIN_S = Pauses(0.2, 1.0, 12)
"""before a bucket that lists records which do not exist is asked again"""
CLAIM_AGAIN_S = Pauses(0.5, 2.0, 4)
NEWER_TRIES = 20


class MirrorUnavailable(UserError, Temporary):
    """The service does not respond at the start, when the content of the mirror is unknown, or at the end."""


class TakenOver(UserError):
    """Another process has claimed the folder; this one must not write there any more."""


@dataclass(frozen=True)
class Record:
    """One record of the ledger, with its number."""

    number: int
    id: str
    kind: str
    claim: int
    """number of the claim under which it was written; 0 in records of earlier versions"""
    holder: Mapping[str, object]
    content: Mapping[str, Any]
    """the state of the folder as of this record: new in a save, copied by a claim and a release"""


class Ledger:
    """The records of a folder, and the claim on it, which one process holds at a time. It is not thread-safe."""

    def __init__(self, store: ObjectStore, *, beat_s: float = BEAT_S, silence_s: float = SILENCE_S):
        self._store, self._silence_s = store, silence_s
        self._own = {"id": uuid.uuid4().hex, "host": socket.gethostname(), **identity_of(os.getpid())}
        self._newest: Record | None = None
        self._claim = 0
        self._held_until_s = 0.0
        self._heartbeat = Heartbeat(self._beat, name="ledger", interval_s=beat_s, away=(Unreachable, UserError))

    def newest(self, listed: Iterable[str] = ()) -> Record | None:
        """Return the last record, None if the ledger is empty.

        If its keys were `listed` a moment ago, two requests suffice.
        """
        if (record := self._last_from(max(filter(None, map(_number, listed)), default=0))) is not None:
            return record
        for pause_s in (*LISTED_AGAIN_S, None):
            # A listing may be outdated or empty, but the first claim always exists. Earlier versions of nlu deleted it
            # and noted the number of records.
            known = max(filter(None, map(_number, self._store.list(FOLDER))), default=0)
            record = self._last_from(known) or self._last_from(1) or self._last_from(noted := self._noted(0) or 0)
            if record is not None or not (known or noted):
                return record
            if pause_s is not None:
                time.sleep(pause_s)
        raise Unreachable(f"{self._store.shown} lists records that do not exist; try again later")

    def _last_from(self, number: int) -> Record | None:
        """Return the last record from a number on, None for 0 and if this number is not taken."""
        record = self._read(number) if number else None
        while record is not None and (later := self._after(record)) is not None:
            record = later
        return record

    def _after(self, record: Record) -> Record | None:
        """Return a later record than the one just read: the next one or, after a claim, one that was not deleted."""
        later = self._read(record.number + 1)
        if later is not None or record.kind != CLAIM:
            return later
        # Between the two reads the holder may have written, noted and deleted further records.
        for _ in range(NEWER_TRIES):
            noted = self._noted(record.number)
            if noted is None or noted <= record.number:
                return None
            if (later := self._read(noted)) is not None:
                return later
        raise Unreachable(f"{self._store.shown} gets new records faster than they can be read; try again later")

    def claim(self, say: Callable[[str], None], expected: Record | None) -> Record:
        """Claim the folder, whose last record was `expected`; returns the record of the claim.

        Waits, and passes `say` a message, until it is known whether a holder on another machine is alive. Raises
        TakenOver if another process holds the folder, or claims it first.
        """
        self._store.prove_conditional_put(PROOF)
        if expected is not None and expected.kind != RELEASE and not has_ended(expected.holder):
            self._require_silence(expected, say)
        # `append` writes directly after this record, which is what the fence relies on.
        self._newest = expected
        content, own_id = expected.content if expected else {}, uuid.uuid4().hex
        claimed = retried(
            lambda: self.append(CLAIM, content, own_id), CLAIM_AGAIN_S, lambda error: isinstance(error, Unreachable)
        )
        if expected is not None and (self._noted(expected.claim) or 0) > claimed.number:
            # This process was suspended after it read `expected`, and the number was free because it had been deleted.
            self._store.delete(_key(claimed.number))
            raise self._refusal(expected.holder)
        self._claim = claimed.number
        self._heartbeat.start()
        return claimed

    def append(self, kind: str, content: Mapping[str, object], own_id: str | None = None) -> Record:
        """Add a record after the last one that this process knows of; it is recognized by `own_id`.

        Raises TakenOver if another process has added one, Unreachable if the service does not respond.
        """
        last = self._newest
        number = (last.number if last else 0) + 1
        claim = number if kind == CLAIM else self._claim
        record = Record(number, own_id or uuid.uuid4().hex, kind, claim, self._own, content)
        document = {"id": record.id, "kind": kind, "claim": claim, "holder": self._own, "content": content}
        written = self._store.put_new(_key(record.number), json.dumps(document, ensure_ascii=False).encode())
        if not written:
            there = self._read(record.number)
            # S3 also answers 409 for a conflict with another put, which may then have failed.
            if there is None:
                raise Unreachable(f"{self._store.shown} refuses record {record.number}, which does not exist")
            if there.id != record.id:
                self._require_own(there)
                # The response to an earlier try was lost, and the record exists.
                self._newest = there
                return self.append(kind, content, own_id)
        self._newest = record
        return record

    def require_held(self) -> None:
        """Raise TakenOver if another process has added a record, so that this one must not write any more.

        The bucket is asked at most once in `HELD_FOR_S` seconds, so this may be called before each write.
        """
        if elapsed_s() < self._held_until_s:
            return
        # The time before the request: the answer may be as old as that.
        asked_s = elapsed_s()
        while (later := self._read((self._newest.number if self._newest else 0) + 1)) is not None:
            self._require_own(later)
            # The response to its put was lost.
            self._newest = later
        self._held_until_s = asked_s + HELD_FOR_S

    def _require_own(self, record: Record) -> None:
        if record.holder.get("id") != self._own["id"]:
            raise self._refusal(record.holder)

    def _noted(self, claim: int) -> int | None:
        """Return the number that the holder of a claim noted last. A read by key is current, unlike a listing."""
        note = self._json(_note(claim))
        return None if note is None else int(note["number"])

    def forget_old(self) -> None:
        """Note the number of records, and delete those of this holder that are not needed any more.

        Raises TakenOver as `require_held` does. A holder that is suspended meanwhile can only delete its own records.
        """
        assert self._newest is not None
        self.require_held()
        newest = self._newest.number
        # The note comes before the deletions: a reader that finds no record after the claim follows the note
        # (`_after`).
        self._store.put(_note(self._claim), json.dumps({"number": newest}).encode())
        for key in self._store.list(FOLDER):
            if (number := _number(key)) is not None and self._claim < number <= newest - KEPT:
                self._store.delete(key)

    def release(self) -> None:
        """Release the folder, so that the next holder need not wait."""
        self.stop_beating()
        if self._newest is not None and self._newest.kind != RELEASE:
            self.append(RELEASE, self._newest.content)

    def stop_beating(self) -> None:
        self._heartbeat.stop()

    def _json(self, key: str) -> Any:
        """Return the content of an object, None if it does not exist."""
        try:
            return json.loads(self._store.get(key))
        except FileNotFoundError:
            return None

    def _read(self, number: int) -> Record | None:
        try:
            found = json.loads(self._store.get(_key(number)))
            return Record(number, found["id"], found["kind"], found.get("claim", 0), found["holder"], found["content"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._store.shown}/{_key(number)} is not a record of nlu; choose another "
                f"{self._store.reference.what}"
            ) from error

    def _require_silence(self, last: Record, say: Callable[[str], None]) -> None:
        """Return when the holder has fallen silent. Raises TakenOver if it is alive."""
        say(
            f"{self._store.shown} belongs to process {last.holder.get('pid')} on {last.holder.get('host')}; this one "
            f"continues if it gives no sign of life for {self._silence_s:.0f} s"
        )
        if not falls_silent(lambda: (self._read(last.number + 1), self._heard_of(last.holder)), self._silence_s):
            later = self._read(last.number + 1)
            if later is not None and later.kind == RELEASE:
                raise TakenOver(f"{self._store.shown} was released a moment ago; run the same command again")
            raise self._refusal((later or last).holder)

    def _heard_of(self, holder: Mapping[str, object]) -> int | None:
        """Return the last beat of a holder, None if the last beat is missing or from another holder."""
        beat = self._json(BEAT)
        return beat["count"] if beat is not None and beat["holder"] == holder.get("id") else None

    def _refusal(self, holder: Mapping[str, object]) -> TakenOver:
        whose = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
        return TakenOver(
            f"{self._store.reference.what} {self._store.shown} is written by {whose}; wait for it, stop it, or choose "
            "another"
        )

    def _beat(self, count: int) -> bool:
        # This runs in the thread of the heartbeat, and only reads `_newest`. An outdated number only finds a record of
        # this holder.
        newest = self._newest.number if self._newest else 0
        later = self._read(newest + 1)
        if later is not None and later.holder.get("id") != self._own["id"]:
            # A process that waits for the successor must not take this beat for its sign of life.
            return False
        self._store.put(BEAT, json.dumps({"holder": self._own["id"], "count": count}).encode())
        return True


def _key(number: int) -> str:
    return f"{FOLDER}/{number:010d}.json"


def _note(claim: int) -> str:
    """Return the key at which the holder of a claim notes its newest record; earlier versions had one for all."""
    return f"{FOLDER}/newest-{claim}.json" if claim else f"{FOLDER}/newest.json"


def _number(key: str) -> int | None:
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isdigit() else None
