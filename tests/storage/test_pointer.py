"""Pointers of a folder of an object store: one writer at a time, and nothing of one that was taken over counts."""

import multiprocessing
import os
import signal
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage import pointer
from nlu.storage.access import FileInfo
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import KEPT, Pointer, Pointers, Stored, TakenOver
from nlu.storage.refusals import Pauses, Unreachable
from tests.buckets import Server


@pytest.fixture
def url(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pointer, "AGAIN_S", Pauses(0, 0, 3))
    return f"{s3.bucket(monkeypatch)}/folder"


def elsewhere(url: str, **own: object) -> Pointers:
    """Return the pointers as a process of another machine writes them, of which nothing is known but what it says."""
    found = Pointers(ObjectStore(url, "mirror"))
    found.writer |= {"host": "elsewhere", "machine": "another", **own}
    return found


def taken(pointers: Pointers, *, force: bool = False) -> Pointers:
    assert pointers.take(pointers.newest(), force=force)
    return pointers


def save(pointers: Pointers, name: str) -> Pointer:
    """Send a file and put the pointer that names it."""
    before, key = pointers.last, f".saves/{pointers.writer['id']}/{name}"
    pointers._store.put(key, name.encode())
    assert before is not None
    pointers.put(save=name, files={"log.txt": Stored(key, len(name), "")})
    pointers.clean(before)
    return before


def newest(url: str) -> str | None:
    found = Pointers(ObjectStore(url, "mirror")).newest()
    assert found is not None
    return found.save


def test_a_second_writer_is_refused_and_told_how_to_take_the_folder(url: str) -> None:
    save(taken(elsewhere(url)), "first")
    with pytest.raises(TakenOver, match=r"is written by process \d+ on elsewhere; .*add --take"):
        taken(Pointers(ObjectStore(url, "mirror")))


@pytest.mark.parametrize("saves", [0, 1, 2 * KEPT])
def test_a_writer_whose_folder_was_taken_adds_and_deletes_nothing(url: str, saves: int) -> None:
    sleeper = taken(elsewhere(url))
    before = save(sleeper, "first")
    successor = taken(elsewhere(url), force=True)
    for number in range(saves):
        save(successor, f"save-{number}")
    store = ObjectStore(url, "mirror")
    there = {key for key in store.list() if not key.startswith(".pointer/")}
    for act in (lambda: sleeper.put(save="late"), lambda: sleeper.clean(before), sleeper.release):
        with pytest.raises(TakenOver):
            act()
    assert {key for key in store.list() if not key.startswith(".pointer/")} == there
    assert newest(url) == (f"save-{saves - 1}" if saves else "first")
    save(successor, "next")
    assert newest(url) == "next"


def test_who_slept_between_looking_and_taking_withdraws(url: str) -> None:
    holder = taken(elsewhere(url))
    holder.release()
    late = elsewhere(url)
    seen = late.newest()
    taken(holder)
    for number in range(2 * KEPT):
        save(holder, str(number))
    assert not late.take(seen), "the number after that one was free again"
    assert newest(url) == str(2 * KEPT - 1) and save(holder, "next")


def _take_and_wait(url: str, ready: Any) -> None:
    taken(Pointers(ObjectStore(url, "mirror")))
    ready.set()
    signal.pause()


def test_a_process_of_this_machine_is_followed_once_it_has_ended(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_take_and_wait, args=(url, ready))
    process.start()
    assert ready.wait(60)
    with pytest.raises(TakenOver):
        taken(Pointers(ObjectStore(url, "mirror")))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    taken(Pointers(ObjectStore(url, "mirror")))


@pytest.mark.parametrize(
    ("variables", "again"),
    [({"NLU_JOB": "7"}, {}), ({"SLURM_JOB_ID": "7"}, {"SLURM_RESTART_COUNT": "1"})],
)
def test_a_job_that_its_queue_starts_again_follows_itself(
    url: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], again: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    taken(elsewhere(url))
    if again:
        with pytest.raises(TakenOver):
            taken(elsewhere(url, machine="a third"))
    for name, value in again.items():
        monkeypatch.setenv(name, value)
    taken(elsewhere(url, machine="a third"))
    monkeypatch.setenv(next(iter(variables)), "8")
    with pytest.raises(TakenOver):
        taken(elsewhere(url, machine="a fourth"))


class Losing(ObjectStore):
    """Carries out every put and then loses the answer, so a driver that tries again finds the object."""

    def put_new(self, key: str, content: bytes) -> bool:
        super().put_new(key, content)
        return False


class Silent(ObjectStore):
    """Carries out the put of each even number and does not answer it."""

    def put_new(self, key: str, content: bytes) -> bool:
        if (found := super().put_new(key, content)) and int(key[-6]) % 2 == 0:
            raise Unreachable("no answer")
        return found


def test_a_pointer_whose_answer_was_lost_is_recognized(url: str) -> None:
    losing = Pointers(Losing(url, "mirror"))
    assert [losing.put(save=str(number)).number for number in range(3)] == [1, 2, 3]
    silent = Pointers(Silent(url, "mirror"))
    silent.last = losing.last
    assert silent.last is not None and silent.last.number == 3
    for number in range(3):
        with pytest.raises(Unreachable):
            silent.put(save=f"lost {number}")
        assert silent.put(save=f"found {number}").save == newest(url) == f"found {number}"


class Behind(ObjectStore):
    """Lists what was there some writes ago."""

    def list(self, prefix: str = "") -> dict[str, FileInfo]:
        return dict(list(super().list(prefix).items())[:2])


def test_a_writer_whose_store_lists_what_was_there_before_deletes_nothing(url: str) -> None:
    current, behind = taken(Pointers(ObjectStore(url, "mirror"))), Pointers(Behind(url, "mirror"))
    before = save(current, "first")
    behind.last = current.last
    with pytest.raises(Unreachable, match="lists its objects as they were"):
        behind.put(save="second", files={})
    there = ObjectStore(url, "mirror").list()
    with pytest.raises(Unreachable, match="lists its objects as they were"):
        behind.clean(before)
    assert list(ObjectStore(url, "mirror").list()) == list(there) and behind.last.number == 3


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"id": "x", "kind": "save"}'])
def test_an_invalid_pointer_is_named(url: str, content: bytes) -> None:
    ObjectStore(url, "mirror").put(".pointer/0000000001.json", content)
    with pytest.raises(UserError, match=r"0000000001\.json does not say what the folder holds; choose another mirror"):
        Pointers(ObjectStore(url, "mirror")).newest()
