"""Claims on a folder of an object store: one holder at a time, and no record of one that was taken over."""

import json
import math
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage import ledger
from nlu.storage.backend import FileInfo
from nlu.storage.bucket import Unreachable
from nlu.storage.ledger import CLAIM, KEPT, RELEASE, SAVE, Ledger, TakenOver
from nlu.storage.objects import ObjectStore
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


def work_of_a_successor(url: str) -> tuple[Ledger, dict[str, bytes]]:
    """Take the folder over, and save so often that all records but the newest are deleted; returns what is there."""
    successor = claimed(Elsewhere(url))
    for number in range(2 * KEPT):
        successor.append(SAVE, {"state": f"successor's {number}"})
        successor.forget_old()
    successor.stop_beating()
    return successor, records(url)


def records(url: str) -> dict[str, bytes]:
    """All that the ledger holds but beats."""
    store = ObjectStore(url, "mirror")
    return {key: store.get(key) for key in store.list(".ledger") if "beat" not in key}


def newest_of(url: str, listing: type[ObjectStore] = ObjectStore) -> Any:
    record = Ledger(listing(url, "mirror")).newest()
    assert record is not None
    return record.content["state"]


@pytest.mark.thorough
@pytest.mark.parametrize("ask", [Ledger.require_held, lambda ledger: ledger.append(SAVE, {"state": "sleeper's"})])
def test_a_holder_that_slept_through_many_saves_of_its_successor_adds_nothing(
    url: str, ask: Callable[[Ledger], object]
) -> None:
    sleeper = claimed(Elsewhere(url))
    sleeper.append(SAVE, {"state": "sleeper's"})
    sleeper.stop_beating()
    before = work_of_a_successor(url)[1]
    with pytest.raises(TakenOver, match="written by process"):
        ask(sleeper)
    assert records(url) == before and newest_of(url) == f"successor's {2 * KEPT - 1}"


def test_a_holder_that_got_no_answer_to_its_last_record_adds_nothing_later(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = claimed(Elsewhere(url))
    with monkeypatch.context() as losing:
        losing.setattr(ObjectStore, "put_new", _carried_out_and_not_answered)
        with pytest.raises(Unreachable):
            sleeper.append(SAVE, {"state": "sleeper's"})
    sleeper.stop_beating()
    before = work_of_a_successor(url)[1]
    for ask in (sleeper.require_held, lambda: sleeper.append(SAVE, {"state": "sleeper's again"})):
        with pytest.raises(TakenOver, match="written by process"):
            ask()
    assert records(url) == before and newest_of(url) == f"successor's {2 * KEPT - 1}"


def _carried_out_and_not_answered(self: ObjectStore, key: str, content: bytes) -> bool:
    self._bucket.put_new(self._key(key), content)
    raise Unreachable("the answer is lost")


@pytest.mark.thorough
def test_a_holder_that_slept_while_deleting_keeps_the_records_of_its_successor(url: str) -> None:
    sleeper = claimed(Elsewhere(url))
    for number in range(2 * KEPT):
        sleeper.append(SAVE, {"state": f"sleeper's {number}"})
    sleeper.stop_beating()
    successor, _ = work_of_a_successor(url)
    # It had asked a moment before it slept.
    sleeper._held_until_s = math.inf
    sleeper.forget_old()
    for listing in (ObjectStore, Behind, Blind):
        assert newest_of(url, listing) == f"successor's {2 * KEPT - 1}"
    successor.append(SAVE, {"state": "one more"})
    for listing in (ObjectStore, Behind, Blind):
        assert newest_of(url, listing) == "one more"


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


def test_a_folder_that_an_earlier_version_kept_is_found_and_taken_over(url: str) -> None:
    store = ObjectStore(url, "mirror")
    for number in range(3, 12):
        document = {"id": f"{number}", "kind": SAVE, "holder": {"host": "elsewhere"}, "content": {"state": number}}
        store.put(f".ledger/{number:010d}.json", json.dumps(document).encode())
    store.put(".ledger/newest.json", b'{"number": 11}')
    successor, _ = work_of_a_successor(url)
    assert successor.newest().claim == 12
    for listing in (ObjectStore, Behind, Blind):
        assert newest_of(url, listing) == f"successor's {2 * KEPT - 1}"


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


def test_how_many_records_there_are_is_noted_before_one_is_deleted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, done = claimed(Ledger(ObjectStore(url, "mirror"), beat_s=1000)), list[str]()
    for number in range(2 + KEPT):
        writer.append(SAVE, {"state": number})
    for verb in ("put", "delete"):
        monkeypatch.setattr(ObjectStore, verb, _noting(done, getattr(ObjectStore, verb)))
    writer.forget_old()
    deleted = [f"delete .ledger/000000000{number}.json" for number in (2, 3)]
    assert done == ["put .ledger/newest-1.json", *deleted]
    writer.release()


def _noting(done: list[str], verb: Callable[..., None]) -> Callable[..., None]:
    def call(self: ObjectStore, key: str, *content: bytes) -> None:
        done.append(f"{verb.__name__} {key}")
        verb(self, key, *content)

    return call


def test_an_invalid_record_is_refused_and_not_changed(url: str) -> None:
    store = ObjectStore(url, "mirror")
    store.put(".ledger/0000000001.json", json.dumps({"other": "program"}).encode())
    with pytest.raises(UserError, match="not a record of nlu"):
        Ledger(store).newest()
    assert json.loads(store.get(".ledger/0000000001.json")) == {"other": "program"}


def test_the_error_of_a_store_that_does_not_answer_names_the_variables(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", ())
    with pytest.raises(Unreachable, match="AWS_ENDPOINT_URL"):
        Ledger(ObjectStore(url, "mirror")).newest()


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


def test_a_holder_checks_at_intervals_that_it_still_holds_and_not_at_every_write(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = claimed(Ledger(ObjectStore(url, "mirror"), beat_s=1000))
    now_s, asked = [100.0], list[str]()
    monkeypatch.setattr(ledger, "elapsed_s", lambda: now_s[0])
    get = ObjectStore.get
    monkeypatch.setattr(ObjectStore, "get", lambda self, key: asked.append(key) or get(self, key))
    holder._held_until_s = 0.0
    for time_s, count in (
        (100.0, 1),
        (100.0 + ledger.HELD_FOR_S - 0.01, 1),
        (100.0 + ledger.HELD_FOR_S, 2),
        (200.0, 3),
    ):
        now_s[0] = time_s
        holder.require_held()
        assert len(asked) == count
    holder.release()


def test_a_replaced_holder_stops_beating_and_one_without_an_answer_does_not(url: str) -> None:
    store, holder = ObjectStore(url, "mirror"), claimed(Elsewhere(url, beat_s=1000))
    own = holder.append(SAVE, {"state": 1})
    # Its own thread beats once, and must not do so between the two calls below.
    holder.stop_beating()
    # The answer to its last record was lost.
    holder._newest = ledger.Record(own.number - 1, "x", CLAIM, 1, holder._own, {})
    assert holder._beat(7) is True and json.loads(store.get(ledger.BEAT)) == {"holder": holder._own["id"], "count": 7}
    holder.stop_beating()
    second = claimed(Elsewhere(url, silence_s=0.01, beat_s=1000))
    second.stop_beating()
    store.put(ledger.BEAT, b"as it was")
    holder._newest = own
    assert holder._beat(8) is False and store.get(ledger.BEAT) == b"as it was"


def test_a_folder_that_is_given_back_while_another_waits_says_so(url: str) -> None:
    holder = claimed(Elsewhere(url, beat_s=1000))
    asked: list[Any] = []

    class Waiting(Ledger):
        def _heard_of(self, other: Any) -> int | None:
            asked.append(other)
            if len(asked) == 2:
                holder.release()
            return super()._heard_of(other)

    waiting = Waiting(ObjectStore(url, "mirror"), silence_s=0.6)
    with pytest.raises(TakenOver, match="was released a moment ago; run the same command again"):
        waiting.claim(lambda text: None, waiting.newest())
    assert len(asked) == 2 or len(asked) == 3


class Refusing(ObjectStore):
    """Refuses every record, and has none."""

    def put_new(self, key: str, content: bytes) -> bool:
        return False


def test_the_error_names_a_store_that_refuses_a_record_that_it_does_not_have(url: str) -> None:
    with pytest.raises(Unreachable, match="refuses record 1, which does not exist"):
        Ledger(Refusing(url, "mirror")).append(SAVE, {})


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
