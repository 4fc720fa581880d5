"""Claims on a folder of an object store: one holder at a time, and no record of one that was taken over."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage import ledger
from nlu.storage.access import FileInfo
from nlu.storage.ledger import CLAIM, KEPT, RELEASE, SAVE, Ledger, TakenOver
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Unreachable
from nlu.storage.temporary import Pauses
from tests.buckets import Server


@pytest.fixture
def url(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return f"{s3.bucket(monkeypatch)}/folder"


class Elsewhere(Ledger):
    """A ledger as a process of another machine writes it, of which nothing is known but what it says."""

    def __init__(self, url: str, **options: Any):
        super().__init__(ObjectStore(url, "mirror"), **{"beat_s": 0.05, "silence_s": 0.6, **options})
        self._own = {**self._own, "host": "elsewhere", "machine": "another"}


def claimed(ledger: Ledger) -> Ledger:
    ledger.claim(lambda text: None, ledger.newest())
    return ledger


def test_a_beating_holder_keeps_others_out_however_long_they_wait(url: str) -> None:
    holder = claimed(Elsewhere(url))
    told: list[str] = []
    second = Ledger(ObjectStore(url, "mirror"), beat_s=0.05, silence_s=30)
    with pytest.raises(TakenOver, match=r"written by process \d+ on elsewhere"):
        second.claim(told.append, second.newest())
    assert "belongs to process" in told[0] and "30 s" in told[0]
    holder.append(SAVE, {"state": 1})
    holder.release()


def test_the_folder_of_a_silent_holder_is_taken_and_it_adds_nothing_when_it_wakes(url: str) -> None:
    sleeper = claimed(Elsewhere(url))
    sleeper.append(SAVE, {"state": 1})
    sleeper.stop_beating()
    second = claimed(Elsewhere(url))
    assert second.newest().content == {"state": 1}, "the claim keeps the content of the folder"
    with pytest.raises(TakenOver):
        sleeper.append(SAVE, {"state": 2})
    assert second.append(SAVE, {"state": 3}).number == 4
    assert Ledger(ObjectStore(url, "mirror")).newest().content == {"state": 3}
    second.stop_beating()


def records(url: str) -> dict[str, bytes]:
    """All that the ledger holds but beats."""
    store = ObjectStore(url, "mirror")
    return {key: store.get(key) for key in store.list(".ledger") if "beat" not in key}


def newest_of(url: str, listing: type[ObjectStore] = ObjectStore) -> Any:
    record = Ledger(listing(url, "mirror")).newest()
    assert record is not None
    return record.content["state"]


PUT_NEW = ObjectStore.put_new


def _carried_out_and_not_answered(self: ObjectStore, key: str, content: bytes) -> bool:
    PUT_NEW(self, key, content)
    raise Unreachable("the answer is lost")


def test_who_slept_between_looking_and_claiming_withdraws_where_the_holder_went_on(url: str) -> None:
    holder = claimed(Elsewhere(url))
    holder.append(SAVE, {"state": "early"})
    late = Elsewhere(url)
    looked_at = late.newest()
    for number in range(2 * KEPT):
        holder.append(SAVE, {"state": number})
        holder.forget_old()
    holder.stop_beating()
    before = records(url)
    with pytest.raises(TakenOver, match="written by process"):
        late.claim(lambda text: None, looked_at)
    after = records(url)
    assert after.pop(".ledger/conditional-put") and {**before, ".ledger/conditional-put": b""}.keys() >= after.keys()
    assert newest_of(url) == 2 * KEPT - 1 and holder.append(SAVE, {"state": "next"}).number == 2 * KEPT + 3


def test_a_folder_that_was_given_back_is_free_at_once(url: str) -> None:
    first = claimed(Elsewhere(url, silence_s=1000))
    first.append(SAVE, {"state": 1})
    first.release()
    assert first.newest().kind == RELEASE
    second = claimed(Elsewhere(url, silence_s=1000))
    assert (second.newest().kind, second.newest().content) == (CLAIM, {"state": 1})
    second.stop_beating()


def _claim_and_wait(url: str, ready: Any) -> None:
    claimed(Ledger(ObjectStore(url, "mirror")))
    ready.set()
    signal.pause()


def test_the_folder_of_a_process_of_this_machine_that_was_killed_is_free_at_once(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_claim_and_wait, args=(url, ready))
    process.start()
    assert ready.wait(60)
    waiting = Ledger(ObjectStore(url, "mirror"), beat_s=0.05, silence_s=0.2)
    waiting._silence_s = 1000
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    claimed(waiting).release()


def test_the_later_of_two_concurrent_claims_fails(url: str) -> None:
    first, second = (Ledger(ObjectStore(url, "mirror")) for _ in range(2))
    seen = [first.newest(), second.newest()]
    first.claim(lambda text: None, seen[0])
    with pytest.raises(TakenOver):
        second.claim(lambda text: None, seen[1])
    first.release()


class Losing(ObjectStore):
    """Carries out every put and then loses the answer, so a driver that tries again finds the object."""

    def put_new(self, key: str, content: bytes) -> bool:
        super().put_new(key, content)
        return False


def test_a_record_whose_answer_was_lost_is_found_by_its_own_id(url: str) -> None:
    ledger = Ledger(Losing(url, "mirror"))
    ledger._newest = ledger.newest()
    assert [ledger.append(SAVE, {"state": number}).number for number in range(3)] == [1, 2, 3]


class Behind(ObjectStore):
    """Lists what was there some writes ago."""

    def list(self, prefix: str = "") -> dict[str, FileInfo]:
        return dict(list(super().list(prefix).items())[:2])


class Blind(ObjectStore):
    """Lists no objects."""

    def list(self, prefix: str = "") -> dict[str, FileInfo]:
        return {}


def test_records_that_a_listing_does_not_show_yet_are_found(url: str) -> None:
    writer = claimed(Ledger(ObjectStore(url, "mirror")))
    for number in range(5):
        writer.append(SAVE, {"state": number})
    assert Ledger(Behind(url, "mirror")).newest().content == {"state": 4}
    writer.release()


def test_old_records_go_and_the_newest_is_still_found(url: str) -> None:
    store = ObjectStore(url, "mirror")
    writer = claimed(Ledger(store))
    for number in range(3 * KEPT):
        writer.append(SAVE, {"state": number})
        writer.forget_old()
    records = sorted(key for key in store.list(".ledger") if key.startswith(".ledger/0"))
    assert records[0] == ".ledger/0000000001.json" and len(records) == 1 + KEPT, "the claim, and the newest saves"
    for listing in (ObjectStore, Behind, Blind):
        assert Ledger(listing(url, "mirror")).newest().content == {"state": 3 * KEPT - 1}
    writer.release()


@pytest.mark.parametrize("key", ["../other", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_a_key_that_leads_out_of_the_folder_is_refused(url: str, key: str) -> None:
    store = ObjectStore(url, "mirror")
    calls: list[Callable[[], object]] = [lambda: store.put(key, b""), lambda: store.get(key), lambda: store.delete(key)]
    for call in calls:
        with pytest.raises(UserError, match="must not lead out"):
            call()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"id": "x", "kind": "save"}'])
def test_an_invalid_record_is_named(url: str, content: bytes) -> None:
    ObjectStore(url, "mirror").put(".ledger/0000000001.json", content)
    with pytest.raises(UserError, match=r"0000000001\.json is not a record of nlu; choose another mirror"):
        Ledger(ObjectStore(url, "mirror")).newest()


@pytest.mark.parametrize("arrives", [False, True])
def test_a_claim_is_retried_without_an_answer_and_stored_once(
    url: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    monkeypatch.setattr(ledger, "CLAIM_AGAIN_S", Pauses(0, 0, 4))
    put_new, tries = ObjectStore.put_new, list[str]()

    def sometimes(self: ObjectStore, key: str, content: bytes) -> bool:
        if not key.startswith(".ledger/0"):
            return put_new(self, key, content)
        tries.append(key)
        if len(tries) < 5:
            if arrives:
                _carried_out_and_not_answered(self, key, content)
            raise Unreachable("no answer")
        return put_new(self, key, content)

    monkeypatch.setattr(ObjectStore, "put_new", sometimes)
    holder = claimed(Ledger(ObjectStore(url, "mirror"), beat_s=1000))
    holder.stop_beating()
    assert tries == [".ledger/0000000001.json"] * 5
    assert [key for key in records(url) if key.startswith(".ledger/0")] == tries[:1]
