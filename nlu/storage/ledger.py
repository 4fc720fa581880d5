"""Who may write to a folder of an object store, and what of it counts: records with numbers, each put on condition.

    FOLDER/.ledger/0000000007.json     {"id", "kind": "claim" | "save" | "release", "claim": 5, "holder", "content"}
    FOLDER/.ledger/newest-5.json       {"number": 7}: the holder of claim 5 has written at least so many records
    FOLDER/.ledger/beat.json           {"holder": ..., "count": ...}

A record is written under the number after the last one, by a put that the store refuses where an object stands. So of
two that write the same number one succeeds, and the other learns of it. Only what the newest record names counts. A
lost answer is found out by the record's own id.

**The fence.** A claim is written directly after the last record of the holder before, and is never deleted; a holder
deletes none but its own records, and never its claim. So the next number of a holder that was suspended stays taken
for ever, however many records its successor has written and deleted, and the put itself is refused: there is no moment
between a check and the put. The same holds where the suspended holder does not know whether its last record arrived.
Each holder notes its newest number under a name of its own, so that none that wakes up takes back another's note.

A claim is free to take where the last record is a release, where its holder was a process of this machine that has
ended, or where the holder has fallen silent (`nlu.storage.heartbeat`). Whoever claims
may itself have been suspended since it read the newest record, and the number after that one been used and deleted: it
then finds the higher note of the holder before, and withdraws.
"""

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nlu.config.errors import UserError
from nlu.storage.bucket import Unreachable
from nlu.storage.heartbeat import BEAT_S, SILENCE_S, Heartbeat, elapsed_s, falls_silent, has_ended, identity_of
from nlu.storage.objects import ObjectStore
from nlu.storage.temporary import Pauses, Temporary

log = logging.getLogger(__name__)

FOLDER = ".ledger"
BEAT = f"{FOLDER}/beat.json"
PROOF = f"{FOLDER}/conditional-put"
CLAIM, SAVE, RELEASE = "claim", "save", "release"
KEPT = 4
"""records of a holder that stay beside its claim, for readers that have just read the number of one"""
HELD_FOR_S = 1.0
"""for how long an answer that the folder is still held counts; far less than any silence"""
LISTED_AGAIN_S = Pauses(0.2, 1.0, 12)
"""after how long a store is asked again that lists records which it does not have"""
CLAIM_AGAIN_S = Pauses(0.5, 2.0, 4)
"""after how long a store is asked again that did not answer a claim"""
NEWER_TRIES = 20


class MirrorAway(UserError, Temporary):
    """The store does not answer at the start, so that nothing is known of what it holds, or at the end."""


class TakenOver(UserError):
    """Another process has claimed the folder since this one did; this one must not write there any more."""


@dataclass(frozen=True)
class Record:
    """One entry, with the number that says where it stands."""

    number: int
    id: str
    kind: str
    claim: int
    """number of the claim under which it was written; 0 in records of earlier versions"""
    holder: Mapping[str, Any]
    content: Mapping[str, Any]
    """what the folder is as of this record: carried on by a claim and a release, new in a save"""


class Ledger:
    """The records of a folder, and the claim on it. One process holds it at a time; not for several threads at once."""

    def __init__(self, store: ObjectStore, *, beat_s: float = BEAT_S, silence_s: float = SILENCE_S):
        self._store, self._silence_s = store, silence_s
        self._own = {"id": uuid.uuid4().hex, "host": socket.gethostname(), **identity_of(os.getpid())}
        self._newest: Record | None = None
        self._claim = 0
        self._held_until_s = 0.0
        self._heartbeat = Heartbeat(self._beat, name="ledger", interval_s=beat_s, away=(Unreachable, UserError))

    def newest(self, listed: Iterable[str] = ()) -> Record | None:
        """Return the last record that the store has; None where there is none.

        Where its keys were `listed` a moment ago, two requests do.
        """
        if (record := self._last_from(max(filter(None, map(_number, listed)), default=0))) is not None:
            return record
        for pause_s in (*LISTED_AGAIN_S, None):
            # A listing may be some records old, or show none, and the first claim is always there. Earlier versions
            # deleted it, and noted how many there are.
            known = max(filter(None, map(_number, self._store.list(FOLDER))), default=0)
            record = self._last_from(known) or self._last_from(1) or self._last_from(noted := self._noted(0) or 0)
            if record is not None or not (known or noted):
                return record
            if pause_s is not None:
                time.sleep(pause_s)
        raise Unreachable(f"{self._store.shown} lists records that it does not have; ask again later")

    def _last_from(self, number: int) -> Record | None:
        """Return the last record from a number on; None for 0, and where that number has none."""
        record = self._read(number) if number else None
        while record is not None and (later := self._after(record)) is not None:
            record = later
        return record

    def _after(self, record: Record) -> Record | None:
        """Return a record behind one that was just read: the next one or, behind a claim, one that is still there."""
        later = self._read(record.number + 1)
        if later is not None or record.kind != CLAIM:
            return later
        for _ in range(NEWER_TRIES):
            noted = self._noted(record.number)
            if noted is None or noted <= record.number:
                return None
            if (later := self._read(noted)) is not None:
                return later
        raise Unreachable(f"{self._store.shown} has new records faster than they can be read; ask again later")

    def claim(self, say: Callable[[str], None], expected: Record | None) -> Record:
        """Have the folder from now on, whose last record was `expected`; returns the record of the claim.

        Raises TakenOver where another process has it, or was quicker. Waits, and says so, until it is known whether a
        holder on another machine lives.
        """
        self._store.prove_conditional_put(PROOF)
        if expected is not None and expected.kind != RELEASE and not has_ended(expected.holder):
            self._require_silence(expected, say)
        self._newest = expected
        claimed = self._claimed(expected.content if expected else {})
        if expected is not None and (self._noted(expected.claim) or 0) > claimed.number:
            # This process slept since it read `expected`, and the number was free because it had been deleted.
            self._store.delete(_key(claimed.number))
            raise self._refusal(expected.holder)
        self._claim = claimed.number
        self._heartbeat.start()
        return claimed

    def _claimed(self, content: Mapping[str, Any]) -> Record:
        own_id = uuid.uuid4().hex
        for pause_s in CLAIM_AGAIN_S:
            try:
                return self.append(CLAIM, content, own_id)
            except Unreachable as error:
                log.debug("%s; trying again", error)
                time.sleep(pause_s)
        return self.append(CLAIM, content, own_id)

    def append(self, kind: str, content: Mapping[str, Any], own_id: str | None = None) -> Record:
        """Add a record after the last one that this process knows of; `own_id` is by what it is found again.

        Raises TakenOver where another process has added one, Unreachable where the store does not answer.
        """
        last = self._newest
        number = (last.number if last else 0) + 1
        claim = number if kind == CLAIM else self._claim
        record = Record(number, own_id or uuid.uuid4().hex, kind, claim, self._own, content)
        document = {"id": record.id, "kind": kind, "claim": claim, "holder": self._own, "content": content}
        written = self._store.put_new(_key(record.number), json.dumps(document, ensure_ascii=False).encode())
        if not written:
            there = self._read(record.number)
            if there is None:
                raise Unreachable(f"{self._store.shown} refuses record {record.number}, which it does not have")
            if there.id != record.id:
                self._require_own(there)
                # The answer to an earlier try was lost, and the record stands.
                self._newest = there
                return self.append(kind, content, own_id)
        self._newest = record
        return record

    def require_held(self) -> None:
        """Raise TakenOver where another process has added a record since this one did: nothing may be written then.

        The store is asked once in `HELD_FOR_S` seconds, so this may be called before each write.
        """
        if elapsed_s() < self._held_until_s:
            return
        asked_s = elapsed_s()
        while (later := self._read((self._newest.number if self._newest else 0) + 1)) is not None:
            self._require_own(later)
            # The answer to its put was lost.
            self._newest = later
        self._held_until_s = asked_s + HELD_FOR_S

    def _require_own(self, record: Record) -> None:
        if record.holder.get("id") != self._own["id"]:
            raise self._refusal(record.holder)

    def _noted(self, claim: int) -> int | None:
        """Return the number that the holder of a claim noted last; an object that is asked for by name is never old."""
        try:
            return int(json.loads(self._store.get(_note(claim)))["number"])
        except FileNotFoundError:
            return None

    def forget_old(self) -> None:
        """Note how many records there are, and delete those of this holder that nobody needs any more.

        Raises TakenOver as `require_held` does; a holder that is suspended meanwhile harms none but its own records.
        """
        assert self._newest is not None
        self.require_held()
        newest = self._newest.number
        self._store.put(_note(self._claim), json.dumps({"number": newest}).encode())
        for key in self._store.list(FOLDER):
            if (number := _number(key)) is not None and self._claim < number <= newest - KEPT:
                self._store.delete(key)

    def release(self) -> None:
        """Give the folder back, so that the next one need not wait."""
        self.stop_beating()
        if self._newest is not None and self._newest.kind != RELEASE:
            self.append(RELEASE, self._newest.content)

    def stop_beating(self) -> None:
        self._heartbeat.stop()

    def _read(self, number: int) -> Record | None:
        try:
            found = json.loads(self._store.get(_key(number)))
            return Record(number, found["id"], found["kind"], found.get("claim", 0), found["holder"], found["content"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._store.shown}/{_key(number)} is no record of ours; choose another {self._store.reference.what}"
            ) from error

    def _require_silence(self, last: Record, say: Callable[[str], None]) -> None:
        """Return once the holder has fallen silent. Raises TakenOver where it lives."""
        say(
            f"{self._store.shown} belongs to process {last.holder.get('pid')} on {last.holder.get('host')}; this one "
            f"continues if nothing is heard of it for {self._silence_s:.0f} s"
        )
        if not falls_silent(lambda: (self._read(last.number + 1), self._heard_of(last.holder)), self._silence_s):
            later = self._read(last.number + 1)
            if later is not None and later.kind == RELEASE:
                raise TakenOver(f"{self._store.shown} was released a moment ago; run the same command again")
            raise self._refusal((later or last).holder)

    def _heard_of(self, holder: Mapping[str, Any]) -> int | None:
        """Return the last beat of a holder; None where there is none, or it is another's."""
        try:
            beat = json.loads(self._store.get(BEAT))
        except FileNotFoundError:
            return None
        return beat["count"] if beat["holder"] == holder.get("id") else None

    def _refusal(self, holder: Mapping[str, Any]) -> TakenOver:
        whose = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
        return TakenOver(
            f"{self._store.reference.what} {self._store.shown} is written by {whose}; wait for it, stop it, or choose "
            "another"
        )

    def _beat(self, count: int) -> bool:
        newest = self._newest.number if self._newest else 0
        later = self._read(newest + 1)
        if later is not None and later.holder.get("id") != self._own["id"]:
            # Whoever waits for its successor must not hear of this one.
            return False
        self._store.put(BEAT, json.dumps({"holder": self._own["id"], "count": count}).encode())
        return True


def _key(number: int) -> str:
    return f"{FOLDER}/{number:010d}.json"


def _note(claim: int) -> str:
    """Return where the holder of a claim notes its newest record; earlier versions had one place for all."""
    return f"{FOLDER}/newest-{claim}.json" if claim else f"{FOLDER}/newest.json"


def _number(key: str) -> int | None:
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isdigit() else None
