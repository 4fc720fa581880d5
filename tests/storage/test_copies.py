"""Copies of mirrored runs: files of other processes stay, lost files are named, few requests are made."""

import hashlib
from pathlib import Path

import pytest

from nlu.config.errors import DataError
from nlu.storage import copies
from nlu.storage.copies import complete, records_of
from nlu.storage.ledger import SAVE, Ledger
from nlu.storage.objects import ObjectStore
from nlu.storage.temporary import Pauses
from tests.buckets import Server

WEIGHTS = "checkpoints/last/model.safetensors"


@pytest.fixture
def url(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(copies, "_copies", {})
    monkeypatch.setattr(copies, "AGAIN_S", Pauses(0, 0, 9))
    return f"{s3.bucket(monkeypatch)}/runs"


class Run:
    """A run that is mirrored: its state of a step, and a log."""

    def __init__(self, url: str):
        self.store = ObjectStore(url, "mirror")
        self._ledger = Ledger(self.store)

    def save(self, step: int) -> None:
        content = b"weights of step %d" % step
        key = f"checkpoints/last-{step}/model.safetensors"
        entry = {
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "place": WEIGHTS,
            "named": WEIGHTS,
        }
        self.store.put(key, content)
        self.store.put("log.txt", b"step %d" % step)
        self._ledger.append(SAVE, {"id": f"save-{step}", "fixed": {key: entry}, "loose": {"log.txt": 6}})


def test_an_object_that_is_gone_for_good_is_damage(url: str) -> None:
    run = Run(url)
    run.save(1)
    run.store.delete("checkpoints/last-1/model.safetensors")
    with pytest.raises(DataError, match="is damaged: .* names .*last-1/model.safetensors, which does not exist"):
        records_of(url, "runs")


def test_changed_files_of_a_copy_are_fetched_again_and_deleted_ones_are_removed(url: str) -> None:
    store = ObjectStore(url, "mirror")
    for name in ("a/same.txt", "a/changed.txt", "a/gone.txt", "a/checkpoints/w.bin", "a/checkpoints/x.json", ".begun"):
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
