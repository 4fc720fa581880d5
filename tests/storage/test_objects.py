"""The objects of a folder that runs write to: read again where they change, listed and refused within the folder."""

from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.storage.bucket import Bucket
from nlu.storage.buckets import open_bucket
from nlu.storage.objects import ObjectStore
from tests.buckets import Server


@pytest.fixture
def url(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return s3.bucket(monkeypatch)


@pytest.fixture
def bucket(url: str) -> Bucket:
    return open_bucket("s3", url.removeprefix("s3://"))


def test_objects_are_those_below_the_folder_by_their_keys_in_it(url: str, bucket: Bucket) -> None:
    store = ObjectStore(f"{url}/run/a/", "mirror")
    assert store.list() == {} == store.list("deep/") and store.shown == f"{url}/run/a"
    for key in ("run/a/z", "run/a/deep/x", "run/a/deep/mark/", "run/a-2/y", "run/a/deeper/y"):
        bucket.put(key, key.encode())
    assert list(store.list()) == ["deep/x", "deeper/y", "z"] and list(store.list("deep")) == ["deep/x"]
    assert store.list("deep/") == {"deep/x": bucket.head("run/a/deep/x")} and store.stat("z") == bucket.head("run/a/z")
    absent, *found = store.get_several(["none", "z", "deep/x"])
    assert isinstance(absent, FileNotFoundError) and found == [b"run/a/z", b"run/a/deep/x"]
    assert store.get_several(["z"]) == [b"run/a/z"] and store.get_several([]) == []
    store.copy("z", "copy")
    assert store.get("copy") == b"run/a/z"
    with pytest.raises(FileNotFoundError):
        store.copy("none", "copy")


@pytest.mark.parametrize("there", [[], [b"first\n"], [b"second\n"]])
def test_a_store_is_proved_to_refuse_to_overwrite(url: str, there: list[bytes]) -> None:
    store = ObjectStore(f"{url}/run", "mirror")
    for content in there:
        store.put("proof", content)
    if there == [b"second\n"]:
        with pytest.raises(UserError, match=r"the service overwrites .* of If-None-Match: \*, so one of two"):
            store.prove_conditional_put("proof")
    else:
        store.prove_conditional_put("proof")
        assert store.get("proof") == b"first\n"


def test_a_store_that_overwrites_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lax(self: ObjectStore, key: str, content: bytes) -> bool:
        self.put(key, content)
        return True

    monkeypatch.setattr(ObjectStore, "put_new", lax)
    with pytest.raises(UserError, match="mirror s3://.*/run cannot be shared"):
        ObjectStore(f"{url}/run", "mirror").prove_conditional_put("proof")


def test_writing_to_a_missing_bucket_is_reported(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = ObjectStore(f"{url}-none/run", "mirror")
    for write in (
        lambda: store.put("a", b""), lambda: store.put_new("a", b""), lambda: store.put_file("a", tmp_path / "file"),
    ):  # fmt: skip
        with pytest.raises(UserError, match="mirror s3://.*-none/run cannot be written: its bucket does not exist"):
            write()
    assert store.list() == {} and store.stat("a") is None
