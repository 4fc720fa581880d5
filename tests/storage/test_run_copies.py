"""Copies of mirrored runs: files of other processes stay, lost files are named, few requests are made."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError
from nlu.storage import run_copies
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import Pointer, Pointers, Stored
from nlu.storage.refusals import Pauses
from nlu.storage.run_copies import complete, records_of
from tests.buckets import Server

WEIGHTS = "checkpoints/last/model.safetensors"


@pytest.fixture
def url(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_copies, "_copies", {})
    monkeypatch.setattr(run_copies, "AGAIN_S", Pauses(0, 0, 9))
    return f"{s3.bucket(monkeypatch)}/runs"


class Run:
    """A run that is mirrored: its state of a step, and a log."""

    def __init__(self, url: str):
        self.store = ObjectStore(url, "mirror")
        self._pointers = Pointers(self.store)

    def save(self, step: int) -> None:
        files = {}
        for place, content in ((WEIGHTS, b"weights of step %d" % step), ("log.txt", b"step %d" % step)):
            key = f".saves/x/{step}/{place}"
            self.store.put(key, content)
            files[place] = Stored(key, len(content), hashlib.sha256(content).hexdigest())
        before = self._pointers.last or Pointer(0, "", {})
        self._pointers.put(save=f"save-{step}", files=files)
        self._pointers.clean(before)


def test_a_copy_of_a_run_that_goes_on_is_of_one_moment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, get_file, step = Run(url), ObjectStore.get_file, 1
    run.save(step)

    def overtaken(self: ObjectStore, key: str, path: Path, *given: Any, **named: Any) -> str | None:
        nonlocal step
        if step < 6:
            # Before each of the first reads the run saves again, and deletes what is about to be read.
            run.save(step := step + 1)
        return get_file(self, key, path, *given, **named)

    monkeypatch.setattr(ObjectStore, "get_file", overtaken)
    top = records_of(url, "runs")
    assert complete(top / "checkpoints/last") == top / "checkpoints/last"
    assert (top / "log.txt").read_text() == "step 6" and (top / WEIGHTS).read_text() == "weights of step 6"
    assert sorted(path.name for path in top.iterdir()) == ["checkpoints", "log.txt"]


def test_an_object_that_is_gone_for_good_is_named(url: str) -> None:
    run = Run(url)
    run.save(1)
    run.store.delete(".saves/x/1/log.txt")
    with pytest.raises(DataError, match=r"lacks a file that it should have .*1/log\.txt.*; restore that object"):
        records_of(url, "runs")


def test_changed_files_of_a_copy_are_fetched_again_and_deleted_ones_are_removed(url: str) -> None:
    store = ObjectStore(url, "mirror")
    for name in ("a/same.txt", "a/changed.txt", "a/gone.txt", "a/checkpoints/w.bin", "a/checkpoints/x.json"):
        store.put(name, b"first")
    top = records_of(url, "runs")
    there = sorted(path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())
    assert there == ["a/changed.txt", "a/checkpoints/x.json", "a/gone.txt", "a/same.txt"]
    identity = (top / "a/same.txt").stat().st_ino
    store.put("a/changed.txt", b"second")
    store.delete("a/gone.txt")
    assert records_of(f"{url}/", "runs") == top
    assert (top / "a/changed.txt").read_bytes() == b"second" and not (top / "a/gone.txt").exists()
    assert (top / "a/same.txt").stat().st_ino == identity, "what is there as the store has it stays"
    assert complete(top / "a/checkpoints") == top / "a/checkpoints"
    assert (top / "a/checkpoints/w.bin").read_bytes() == b"first"
