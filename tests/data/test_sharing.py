"""Stores that machines share, in an object store of this process; tests/services has a real one."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from nlu.data import store_plan
from nlu.data.dataset import Files
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import WordPiece
from nlu.storage.refusals import Unreachable
from tests.buckets import Server

TARGET = "nlu.data.targets.Classes"


@pytest.fixture
def stores(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return f"{s3.bucket(monkeypatch)}/stores"


def objects_of(stores: str) -> dict[str, Any]:
    """The objects of the stores in a bucket, by key."""
    objects = boto3.resource("s3").Bucket(stores.split("/")[2]).objects
    return {one.key.removeprefix("stores/"): one for one in objects.all()}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was logged since it was asked last."""
    monkeypatch.setattr(logging.getLogger("nlu"), "propagate", True)
    caplog.set_level(logging.INFO, "nlu")

    def messages() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name.startswith("nlu")]
        caplog.clear()
        return found

    return messages


@pytest.fixture
def on_machine(tmp_path: Path, stores: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
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
        plan = plan_of(files, WordPiece(), TARGET, ["single"], pretrained=None, vocab=None, shared=stores)
        return prepare(plan)

    return opened


def files_of(store: Store) -> dict[str, bytes]:
    return {
        path.relative_to(store.folder).as_posix(): path.read_bytes()
        for path in store.folder.rglob("*") if path.is_file()
    }  # fmt: skip


def test_a_machine_fetches_a_store_that_another_built_file_by_file(
    on_machine: Callable[..., Any], stores: str, said: Callable[[], list[str]]
) -> None:
    built = on_machine("a")
    name, files = built.folder.name, files_of(built)
    assert [text.rpartition(": ")[2] for text in said()] == ["built", f"shared in {stores}"]
    shared = objects_of(stores)
    assert shared.keys() == {f"{name}/{file}" for file in files}
    assert max(one.last_modified for one in shared.values()) == shared[f"{name}/COMPLETE"].last_modified
    fetched = on_machine("b")
    assert files_of(fetched).keys() == files.keys() and fetched.folder != built.folder
    assert all(content == files[file] for file, content in files_of(fetched).items() if file != "COMPLETE")
    assert said() == [f"data store {fetched.folder}: fetched from {stores}"] and objects_of(stores) == shared
    on_machine("b")
    assert said() == [f"data store {fetched.folder}: found"]


def test_a_damaged_shared_store_is_built_here(
    on_machine: Callable[..., Any], stores: str, said: Callable[[], list[str]], tmp_path: Path
) -> None:
    built = on_machine("a")
    shard = objects_of(stores)[f"{built.folder.name}/train/00000.arrow"]
    whole = shard.get()["Body"].read()
    shard.put(Body=whole[:-100] + b"x" + whole[-99:])
    said()
    again = on_machine("b")
    assert any("00000.arrow cannot be read" in text and "it is built again" in text for text in said())
    assert files_of(again).keys() == files_of(built).keys() and not list((tmp_path / "b/staging").iterdir())


def test_a_store_that_was_sent_in_part_is_built_here(
    on_machine: Callable[..., Any], stores: str, said: Callable[[], list[str]]
) -> None:
    built = on_machine("a")
    objects_of(stores)[f"{built.folder.name}/COMPLETE"].delete()
    said()
    again = on_machine("b")
    assert said()[0] == f"data store {again.folder}: built"
    assert f"{built.folder.name}/COMPLETE" in objects_of(stores)


def test_an_unreachable_shared_store_causes_two_warnings(
    on_machine: Callable[..., Any], stores: str, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(place: Any) -> None:
        raise Unreachable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(store_plan, "stat", away)
        built = on_machine("a")
    first, *others = said()
    assert first.endswith("cannot be fetched and is built: the store does not answer")
    assert others[-1] == f"the data store {built.folder} is not shared: the store does not answer"
    on_machine("a")
    assert said() == [f"data store {built.folder}: found", f"data store {built.folder}: shared in {stores}"]
