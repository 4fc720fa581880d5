"""Claims on a folder of an object store: one holder at a time, and no record of one that was taken over."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage.answers import Unreachable
from nlu.storage.ledger import CLAIM, KEPT, RELEASE, SAVE, Ledger, TakenOver
from nlu.storage.objects import ObjectStore
from nlu.storage.store import Found
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


def test_a_holder_that_is_heard_of_keeps_others_out_however_long_they_wait(url: str) -> None:
    holder = claimed(Elsewhere(url))
    told: list[str] = []
    second = Ledger(ObjectStore(url, "mirror"), beat_s=0.05, silence_s=30)
    with pytest.raises(TakenOver, match=r"written by process \d+ on elsewhere"):
        second.claim(told.append, second.newest())
    assert "belongs to process" in told[0] and "30 s" in told[0]
    holder.append(SAVE, {"state": 1})
    holder.release()


def test_of_a_silent_holder_the_folder_is_taken_and_it_can_add_nothing_when_it_wakes(url: str) -> None:
    sleeper = claimed(Elsewhere(url))
    sleeper.append(SAVE, {"state": 1})
    sleeper.stop_beating()
    second = claimed(Elsewhere(url))
    assert second.newest().content == {"state": 1}, "what the folder is goes on with the claim"
    with pytest.raises(TakenOver):
        sleeper.append(SAVE, {"state": 2})
    assert second.append(SAVE, {"state": 3}).number == 4
    assert Ledger(ObjectStore(url, "mirror")).newest().content == {"state": 3}
    second.stop_beating()


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


def test_of_two_that_claim_at_once_one_learns_that_it_was_later(url: str) -> None:
    first, second = (Ledger(ObjectStore(url, "mirror")) for _ in range(2))
    seen = [first.newest(), second.newest()]
    first.claim(lambda text: None, seen[0])
    with pytest.raises(TakenOver):
        second.claim(lambda text: None, seen[1])
    first.release()


class Losing(ObjectStore):
    """Carries out every put and then loses the answer: a driver that tries again is told that an object stands."""

    def put_new(self, key: str, content: bytes) -> bool:
        super().put_new(key, content)
        return False


def test_a_record_whose_answer_was_lost_is_found_by_its_own_id(url: str) -> None:
    ledger = Ledger(Losing(url, "mirror"))
    ledger._newest = ledger.newest()
    assert [ledger.append(SAVE, {"state": number}).number for number in range(3)] == [1, 2, 3]


class Behind(ObjectStore):
    """Lists what was there some writes ago."""

    def list(self, prefix: str = "") -> dict[str, Found]:
        return dict(list(super().list(prefix).items())[:2])


class Blind(ObjectStore):
    """Lists nothing of what is there."""

    def list(self, prefix: str = "") -> dict[str, Found]:
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
    assert sum(key.removesuffix(".json")[-1].isdigit() for key in store.list(".ledger")) == KEPT
    for listing in (ObjectStore, Behind, Blind):
        assert Ledger(listing(url, "mirror")).newest().content == {"state": 3 * KEPT - 1}
    writer.release()


def test_what_is_no_record_is_refused_and_left_alone(url: str) -> None:
    store = ObjectStore(url, "mirror")
    store.put(".ledger/0000000001.json", json.dumps({"other": "program"}).encode())
    with pytest.raises(UserError, match="no record of ours"):
        Ledger(store).newest()
    assert json.loads(store.get(".ledger/0000000001.json")) == {"other": "program"}


def test_a_store_that_does_not_answer_says_so_and_names_the_variables(
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
