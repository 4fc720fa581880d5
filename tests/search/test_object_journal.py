"""The journal of objects over a store in memory: numbers, lost replies."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import JournalStorage
from optuna.testing.pytest_storages import StorageTestCase

from nlu.config.errors import UserError
from nlu.search.faults import StorageUnavailable
from nlu.search.storage import journals
from nlu.search.storage.journals import JournalFile, ObjectJournalBackend
from nlu.storage.refusals import Denied, Unreachable


class Memory:
    """As much of an object store as a journal uses; all that open one address share it."""

    objects: dict[str, bytes]
    asked: list[str]
    failures: list[Exception | str]
    """what happens to the next puts of batches: raised after it was carried out ("lost"), before it, or refused"""
    shown = "s3://bucket/journal"

    def __init__(self, url: str, what: str, delays_s: Iterable[float]):
        assert (url, what) == (self.shown, "storage")

    def prove_conditional_put(self, key: str) -> None:
        assert key == "conditional-put"

    def put_new(self, key: str, content: bytes) -> bool:
        failure = self.failures.pop(0) if self.failures and key.startswith("batches/") else None
        if isinstance(failure, Exception):
            raise failure
        if failure == "refused" or key in self.objects:
            return False
        self.objects[key] = content
        if failure == "lost":
            raise Unreachable("no answer")
        return True

    def get_several(self, keys: Sequence[str]) -> list[bytes | Exception]:
        self.asked.extend(keys)
        return [self.objects.get(key) or FileNotFoundError(key) for key in keys]


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    monkeypatch.setattr(journals, "ObjectStore", Memory)
    monkeypatch.setattr(journals, "AT_ONCE", 4)
    monkeypatch.setattr(journals, "RETRY_DELAYS_S", (0.0, 0.0))
    Memory.objects, Memory.asked, Memory.failures = {}, [], []
    return Memory


def opened() -> ObjectJournalBackend:
    return ObjectJournalBackend(Memory.shown)


def logs(first: int, stop: int) -> list[dict[str, Any]]:
    return [{"number": number} for number in range(first, stop)]


@pytest.mark.parametrize("count", [0, 1, 3, 10, 40])
def test_a_reader_finds_every_entry_once_in_order_and_asks_little_beyond(count: int) -> None:
    writer, follower = opened(), opened()
    followed: list[dict[str, Any]] = []
    for number in range(count):
        writer.append_logs(logs(2 * number, 2 * number + 2))
        if number % 4 == 1:
            followed += follower.read_logs(len(followed))
    everything = logs(0, 2 * count)
    Memory.asked.clear()
    late = opened()
    assert late.read_logs(0) == everything
    assert len(Memory.asked) <= count + 4
    assert followed + follower.read_logs(len(followed)) == everything
    assert late.read_logs(2 * count) == [] and late.read_logs(max(0, 2 * count - 3)) == everything[-3:]
    assert writer.read_logs(0) == everything and late.read_logs(0) == everything


@pytest.mark.parametrize("failure", ["lost", Unreachable("no answer"), "refused"])
def test_an_entry_is_stored_once_after_any_failures_of_the_first_tries(failure: Exception | str) -> None:
    writer, other = opened(), opened()
    other.append_logs(logs(0, 1))
    Memory.failures = [failure, failure]
    writer.append_logs(logs(1, 2))
    other.append_logs(logs(2, 3))
    assert opened().read_logs(0) == logs(0, 3)


def test_a_failing_store_is_unavailable_but_a_user_error_stays_a_user_error() -> None:
    for failure, kind, said in [
        (Unreachable("no answer"), StorageUnavailable, "^no answer$"),
        (Denied("no right"), StorageUnavailable, "^no right$"),
        (RuntimeError("odd"), StorageUnavailable, "storage s3://bucket/journal cannot be written: odd"),
        ("refused", StorageUnavailable, "cannot be written: it refuses a number that is free"),
        (UserError("a mistake"), UserError, "^a mistake$"),
    ]:
        Memory.failures = [failure] * 9
        with pytest.raises(kind, match=said) as raised:
            opened().append_logs(logs(0, 1))
        assert type(raised.value) is kind and len(Memory.failures) == 6, "tried three times"
    assert Memory.objects == {}


@pytest.mark.parametrize("body", [b"{}\n", b"[]\n", b"no json\n", b'{"id": "x", "logs": []}', b"{}\n{}\n"])
def test_an_object_that_does_not_belong_to_a_journal_is_refused(body: bytes) -> None:
    Memory.objects["batches/0000000000.jsonl"] = body
    with pytest.raises(UserError, match="which is not part of a journal; give the storage of each search a separate"):
        opened().read_logs(0)


class TestOptunasOwnCases(StorageTestCase):
    """What Optuna asks of any storage, of a journal of objects and of one in a file, as a search opens it."""

    @pytest.fixture(params=["objects", "file"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> JournalStorage:
        return JournalStorage(opened() if request.param == "objects" else JournalFile(str(tmp_path / "journal.log")))
