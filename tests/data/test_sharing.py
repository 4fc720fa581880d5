"""Stores that machines share, in an object store of this process; tests/services has a real one."""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.data.dataset import Files
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.store_plan import SharedStores, plan_of
from nlu.data.tokenizing import WordPiece
from nlu.storage.refusals import Unreachable

TARGET = "nlu.data.targets.Classes"


class Objects:
    """The objects of a bucket, with the verbs of ObjectStore that are used here."""

    shown = "s3://bucket/stores"

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.is_away = False
        self.before_new: Callable[[str], None] = lambda key: None

    def _ask(self) -> None:
        if self.is_away:
            raise Unreachable("the store does not answer")

    def get(self, key: str) -> bytes:
        self._ask()
        if key not in self.content:
            raise FileNotFoundError(key)
        return self.content[key]

    def get_file(self, key: str, path: Path, advance: Any = None) -> str:
        path.write_bytes(self.get(key))
        return hashlib.sha256(self.content[key]).hexdigest()

    def put(self, key: str, content: bytes) -> None:
        self._ask()
        self.content[key] = content

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def put_new(self, key: str, content: bytes) -> bool:
        self.before_new(key)
        if key in self.content:
            return False
        self.put(key, content)
        return True

    def delete(self, key: str) -> None:
        self._ask()
        self.content.pop(key, None)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Objects:
    objects = Objects()
    monkeypatch.setattr("nlu.data.store_plan.ObjectStore", lambda url, what: objects)
    return objects


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was logged since it was asked last."""
    monkeypatch.setattr(logging.getLogger("nlu"), "propagate", True)
    caplog.set_level(logging.INFO, "nlu")

    def messages() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return messages


@pytest.fixture
def on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Open the store on a machine with a separate cache."""
    for name, rows in (("train", 9), ("dev", 3)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"text {n}\t{n % 2}\n" for n in range(rows)))
    monkeypatch.setattr("nlu.data.reading.CHUNK_ROWS", 4)

    def opened(name: str) -> Any:
        monkeypatch.setenv("NLU_CACHE", str(tmp_path / name))
        files = Files(
            train=str(tmp_path / "train.tsv"), dev=str(tmp_path / "dev.tsv"), fields={"text": 0, "label": 1},
            header=False,
        )  # fmt: skip
        plan = plan_of(files, WordPiece(), TARGET, ["single"], pretrained=None, vocab=None, shared="s3://bucket/stores")
        return prepare(plan)

    return opened


def files_of(store: Store) -> dict[str, bytes]:
    return {
        path.relative_to(store.folder).as_posix(): path.read_bytes()
        for path in store.folder.rglob("*") if path.is_file()
    }  # fmt: skip


def test_a_machine_fetches_a_store_that_another_built_file_by_file(
    on_machine: Callable[..., Any], bucket: Objects, said: Callable[[], list[str]]
) -> None:
    built = on_machine("a")
    name, files = built.folder.name, files_of(built)
    assert [text.rpartition(": ")[2] for text in said()] == ["built", "shared in s3://bucket/stores"]
    marker = json.loads(bucket.content[f"{name}/COMPLETE"])
    folder = marker["folder"]
    assert marker["files"] == {
        file: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for file, content in files.items() if file != "COMPLETE"
    }  # fmt: skip
    assert bucket.content.keys() == {f"{name}/COMPLETE", *(f"{name}/{folder}/{file}" for file in marker["files"])}
    before = dict(bucket.content)
    fetched = on_machine("b")
    assert files_of(fetched).keys() == files.keys() and fetched.folder != built.folder
    assert all(content == files[file] for file, content in files_of(fetched).items() if file != "COMPLETE")
    assert said() == [f"data store {fetched.folder}: fetched from s3://bucket/stores"] and bucket.content == before
    on_machine("b")
    assert said() == [f"data store {fetched.folder}: found"]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda marker: b"[]", "indices"), (lambda marker: json.dumps({**marker, "folder": "gone"}).encode(), "gone"),
        (lambda marker: json.dumps({**marker, "files": {"../x": {"size": 1, "sha256": ""}}}).encode(), "../x"),
        (lambda marker: json.dumps(marker).replace(marker["files"]["meta.json"]["sha256"], "0" * 64).encode(),
         "meta.json is damaged: its sha256 is"),
    ],
)  # fmt: skip
def test_a_damaged_shared_store_is_built_here(
    on_machine: Callable[..., Any], bucket: Objects, said: Callable[[], list[str]], tmp_path: Path,
    harm: Callable[[dict[str, Any]], bytes], reason: str,
) -> None:  # fmt: skip
    built = on_machine("a")
    key = f"{built.folder.name}/COMPLETE"
    bucket.content[key] = harm(json.loads(bucket.content[key]))
    said()
    again = on_machine("b")
    warning, *others = said()
    assert "cannot be fetched and is built: " in warning and reason in warning
    assert others[0] == f"data store {again.folder}: built"
    assert files_of(again).keys() == files_of(built).keys()
    assert not list((tmp_path / "b/staging").iterdir()) and not list(tmp_path.rglob("x"))


def test_a_store_that_is_damaged_here_is_shared_after_it_is_built_again(
    on_machine: Callable[..., Any], bucket: Objects
) -> None:
    whole = files_of(built := on_machine("a"))
    bucket.content.clear()
    next((built.folder / "train").glob("*.arrow")).unlink()
    again = on_machine("a")
    marker = json.loads(bucket.content[f"{again.folder.name}/COMPLETE"])
    assert {*marker["files"], "COMPLETE"} == whole.keys()


def test_an_unreachable_shared_store_causes_two_warnings(
    on_machine: Callable[..., Any], bucket: Objects, said: Callable[[], list[str]]
) -> None:
    bucket.is_away = True
    built = on_machine("a")
    first, *others = said()
    assert first.endswith("cannot be fetched and is built: the store does not answer")
    assert others[-1] == f"the data store {built.folder} is not shared: the store does not answer"
    bucket.is_away = False
    on_machine("a")
    assert said() == [
        f"data store {built.folder}: found", f"data store {built.folder}: shared in s3://bucket/stores"
    ]  # fmt: skip


@pytest.mark.parametrize("is_lost", [False, True], ids=["another came first", "the answer was lost"])
def test_one_of_two_concurrent_builds_counts_and_the_other_removes_its_files(
    tmp_path: Path, bucket: Objects, said: Callable[[], list[str]], is_lost: bool
) -> None:
    (tmp_path / "mine/train").mkdir(parents=True)
    (tmp_path / "mine/train/0.arrow").write_bytes(b"mine")
    (tmp_path / "mine/COMPLETE").touch()
    other = {"name/other/train/0.arrow": b"other"}
    bucket.content |= {} if is_lost else other
    marker = json.dumps({"folder": "other", "files": {}}).encode()

    def come_first(key: str) -> None:
        assert sum(name.endswith("0.arrow") for name in bucket.content) == 2 - is_lost, "files come before the mark"
        if is_lost:
            # It is there, though put_new says that it was not written.
            (own,) = {name.split("/")[1] for name in bucket.content}
            bucket.content[key] = json.dumps({"folder": own, "files": {}}).encode()
        else:
            bucket.content[key] = marker

    bucket.before_new = come_first
    SharedStores("s3://bucket/stores").push("name", tmp_path / "mine")
    if is_lost:
        assert len(bucket.content) == 2 and "shared in" in said()[0]
    else:
        assert bucket.content == {"name/COMPLETE": marker, **other} and said() == []
    before = dict(bucket.content)
    bucket.before_new = lambda key: pytest.fail("what is shared is not sent again")
    SharedStores("s3://bucket/stores").push("name", tmp_path / "mine")
    assert bucket.content == before
