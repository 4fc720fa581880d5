"""Data stores that machines share on a real S3 server; each machine is a separate cache here."""

import json
import os
import threading
from pathlib import Path

import pytest

from nlu.commands import preprocess
from nlu.data import reading
from nlu.data.store_plan import SharedStores
from nlu.storage.objects import ObjectStore
from tests.training.in_process import MODEL, program

pytestmark = pytest.mark.services


@pytest.fixture
def keys(tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setattr(reading, "CHUNK_ROWS", 5)
    rows = [{"text": f"word{number % 7} text {number}", "label": "ab"[number % 2]} for number in range(57)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = "data.fields={text: text, label: label}"
    return (*MODEL, "data=files", f"data.train={tmp_path}/train.jsonl", fields, f"stores={s3_url}/stores")


class Machine:
    """A separate cache."""

    def __init__(self, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.cache, self._monkeypatch, self._capsys = cache, monkeypatch, capsys

    def preprocess(self, *overrides: str) -> tuple[dict[str, bytes], str]:
        """The store that is there after the command, and what it said."""
        self._monkeypatch.setenv("NLU_CACHE", str(self.cache))
        self._capsys.readouterr()
        program(preprocess.main, "preprocess", *overrides)
        said = self._capsys.readouterr().err
        found = list((self.cache / "stores").glob("*")) or [Path("none")]
        files = {path.name: path.read_bytes() for path in found[0].rglob("*") if path.is_file()}
        return files, said


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[Machine]:
    return [Machine(tmp_path / f"cache-{number}", monkeypatch, capsys) for number in range(3)]


def test_one_builds_and_the_others_fetch(keys: tuple[str, ...], machines: list[Machine], s3_url: str) -> None:
    built, said = machines[0].preprocess(*keys)
    assert ": built" in said and ": shared in" in said
    fetched, said = machines[1].preprocess(*keys)
    assert fetched == built and "fetched from" in said and ": built" not in said
    assert ": found" in machines[1].preprocess(*keys)[1]

    store = ObjectStore(f"{s3_url}/stores", "stores")
    damaged = next(key for key in store.list() if key.endswith(".arrow"))
    store.put(damaged, b"x" * 100)
    found, said = machines[2].preprocess(*keys)
    assert found == built and "is damaged" in said and ": built" in said


def test_one_of_several_concurrent_builds_counts_and_the_others_are_removed(tmp_path: Path, s3_url: str) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        (folder / "train").mkdir(parents=True)
        (folder / "train/0.arrow").write_bytes(os.urandom(100_000))
    stores = SharedStores(f"{s3_url}/stores")
    threads = [threading.Thread(target=stores.push, args=("name", folder)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ObjectStore(f"{s3_url}/stores", "stores").list()) == 2
    assert stores.fetch("name", tmp_path / "fetched")
    content = (tmp_path / "fetched/train/0.arrow").read_bytes()
    assert content in [(folder / "train/0.arrow").read_bytes() for folder in folders]


def test_without_the_shared_store_the_data_are_built_here(
    keys: tuple[str, ...], machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    built, said = machines[0].preprocess(*keys)
    assert built and "and is built" in said and "is not shared" in said
