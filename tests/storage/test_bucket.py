"""What every bucket promises, of S3 (moto) and of OSS (moto behind a door that speaks OSS): one request a verb."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nlu.config.errors import UserError
from nlu.io import main as io_main
from nlu.storage import temporary
from nlu.storage.backend import FileInfo
from nlu.storage.bucket import (
    CHANGED,
    LASTING_STATUS,
    TRANSIENT_CODES,
    Bucket,
    Changed,
    Unreachable,
    Upload,
    UploadPart,
    etag_of,
    whole,
)
from nlu.storage.buckets import S3Bucket, endpoint_of, open_bucket
from nlu.storage.objects import BucketBackend, backend_of
from nlu.storage.outputs import send_file
from nlu.storage.places import parse_place

pytest.importorskip("ossfs", reason="the driver of oss:// comes with the extra pai")
from fsspec.config import conf, set_conf_env

from tests.oss_server import BUCKET, OssServer

MD5 = {b"abc": "900150983cd24fb0d6963f7d28e17f72", b"": "d41d8cd98f00b204e9800998ecf8427e"}
PART = bytes(5 << 20)


@pytest.fixture(scope="module")
def oss() -> Iterator[OssServer]:
    with OssServer() as server:
        yield server


def adopt(oss: OssServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment to the server, as if fsspec was imported in it."""
    for name, value in oss.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(conf, "oss", {})
    set_conf_env(conf)


@pytest.fixture(params=["s3", "oss"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket of each kind, whose requests are tried once."""
    if request.param == "s3":
        name = request.getfixturevalue("s3").bucket(monkeypatch).removeprefix("s3://")
    else:
        name = BUCKET
        adopt(request.getfixturevalue("oss"), monkeypatch)
    found = open_bucket(request.param, name, delays_s=())
    yield found
    for upload in list(found.uploads_below("")):
        found.abort(upload)
    for key, _ in list(found.entries("")):
        found.delete(key)


def far_environment(oss: OssServer, far: OssServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment to two servers, each of which has one bucket."""
    adopt(oss, monkeypatch)
    monkeypatch.setenv("OSS_ENDPOINTS", f"other=cn-beijing, far={far.environment['OSS_ENDPOINT']}")


def test_one_process_uses_buckets_of_two_regions_and_copies_between_them(
    oss: OssServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    with OssServer("far", elsewhere=BUCKET) as far:
        far_environment(oss, far, monkeypatch)
        near, there = open_bucket("oss", BUCKET, delays_s=()), open_bucket("oss", "far", delays_s=())
        near.put("a/x", b"content")
        assert there.head("a/x") is None
        # Neither server copies from the other, so the content passes through this machine.
        assert io_main(["cp", f"oss://{BUCKET}/a/x", "oss://far/b/x"]) == 0
        assert io_main(["cp", "--recursive", "oss://far/b", f"oss://{BUCKET}/c"]) == 0
        assert there.get("b/x") == near.get("c/x") == b"content"
        assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        near.delete("a/x")
        near.delete("c/x")


def test_endpoints_of_buckets_are_regions_or_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSS_ENDPOINT", "https://all")
    monkeypatch.setenv(
        "OSS_ENDPOINTS", "a=cn-beijing,b=oss-cn-x-internal, c = https://host:1/ ,d=oss-cn-y.aliyuncs.com,"
    )
    regions = [f"https://oss-{region}.aliyuncs.com" for region in ("cn-beijing", "cn-x-internal")]
    expected = [(place, "OSS_ENDPOINTS") for place in (*regions, "https://host:1/", "oss-cn-y.aliyuncs.com")]
    assert [endpoint_of(name) for name in "abcd"] == expected
    assert endpoint_of("e") == ("https://all", "OSS_ENDPOINT")
    for wrong in ("a", "a=", "=cn-beijing", "a=b c"):
        monkeypatch.setenv("OSS_ENDPOINTS", f"z=cn-x,{wrong}")
        with pytest.raises(UserError, match=rf"OSS_ENDPOINTS holds '{wrong}', but must be written BUCKET=REGION"):
            endpoint_of("e")


def test_an_object_is_put_looked_at_read_copied_and_deleted(bucket: Bucket) -> None:
    began_s = time.time()
    bucket.put("a/x", b"abc")
    found = bucket.head("a/x")
    assert found is not None and (found.is_folder, found.size, found.etag) == (False, 3, MD5[b"abc"])
    assert found.modified_s is not None and began_s - 2 < found.modified_s < time.time() + 2
    assert bucket.head("a/y") is None and bucket.head("a") is None
    assert bucket.get("a/x") == b"abc" == bucket.get("a/x", etag=found.etag)
    assert bucket.get("a/x", (1, 3)) == b"bc" and bucket.get("a/x", (0, 1), found.etag) == b"a"
    with pytest.raises(Changed, match="a/x changed while it was read; try again"):
        bucket.get("a/x", (0, 1), "0" * 32)
    with pytest.raises(FileNotFoundError, match=f"^{bucket.scheme}://{bucket.name}/a/y$"):
        bucket.get("a/y")
    bucket.put("a/z", b"other")
    bucket.copy(bucket.name, "a/x", "a/z")
    assert bucket.get("a/z") == b"abc" == bucket.get("a/x")
    for _ in range(2):
        bucket.delete("a/x")
    assert bucket.head("a/x") is None and bucket.head("a/z") is not None


def test_a_conditional_put_does_not_replace_an_object(bucket: Bucket) -> None:
    assert bucket.put_new("a", b"first") is True
    assert bucket.put_new("a", b"second") is False and bucket.get("a") == b"first"


def paged(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, method: str, size: int) -> list[str]:
    """Have a listing give so many at a time; returns the methods that are called."""
    call, called = type(bucket)._call, list[str]()  # type: ignore[attr-defined]
    option = {"list_objects_v2": ("MaxKeys", "max_keys"), "list_parts": ("MaxParts", "max_parts")}[method]

    def limited(self: Bucket, action: str, key: str, name: str, *values: Any, **options: Any) -> Any:
        called.append(name)
        return call(self, action, key, name, *values, **options | {option[bucket.scheme == "oss"]: size})

    monkeypatch.setattr(type(bucket), "_call", limited)
    return called


def test_all_keys_are_listed_however_many_each_with_what_head_says(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["a/1", "a/2", "a/b/3", "a/b/4", "a/c/5", "a/d", "b"]
    for key in keys:
        bucket.put(key, key.encode())
    heads = {key: bucket.head(key) for key in keys}
    with monkeypatch.context() as limiting:
        called = paged(bucket, limiting, "list_objects_v2", 2)
        assert dict(bucket.entries("")) == heads and [key for key, _ in bucket.entries("")] == keys
        assert len(called) == 8, "four pages, twice"
        assert list(dict(bucket.entries("a/"))) == keys[:-1] and list(bucket.entries("c")) == []
        flat = dict(bucket.entries("a/", nested=False))
    assert flat == {
        **{key: heads[key] for key in ("a/1", "a/2", "a/d")},
        **{key: FileInfo(is_folder=True) for key in ("a/b/", "a/c/")},
    }


def test_an_upload_in_parts_is_begun_found_again_and_becomes_an_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, other = bucket.begin("big"), bucket.begin("bigger")
    assert bucket.uploads("big") == [upload] and {found.name for found in bucket.uploads_below("big")} == {
        upload,
        other,
    }
    assert {found.key for found in bucket.uploads_below("big")} == {"big", "bigger"}
    sent = [bucket.put_part("big", upload, number, content) for number, content in ((2, PART), (1, PART), (3, b"abc"))]
    assert [(part.number, part.size) for part in sent] == [(2, len(PART)), (1, len(PART)), (3, 3)]
    assert sent[2].etag == MD5[b"abc"]
    with monkeypatch.context() as limiting:
        called = paged(bucket, limiting, "list_parts", 2)
        there = bucket.parts("big", upload)
    assert [(part.number, part.size, part.etag) for part in there] == [
        (1, len(PART), sent[1].etag), (2, len(PART), sent[0].etag), (3, 3, MD5[b"abc"]),
    ]  # fmt: skip
    assert called == ["list_parts"] * 2 and all(abs(part.arrived_s - time.time()) < 60 for part in there)
    assert bucket.parts("bigger", other) == []
    bucket.complete("big", upload, there)
    assert bucket.get("big", (2 * len(PART) - 1, 2 * len(PART) + 3)) == b"\0abc"
    for _ in range(2):
        bucket.abort(Upload("bigger", other, 0.0))
    assert list(bucket.uploads_below("big")) == [] and bucket.head("bigger") is None


def test_a_bucket_is_looked_at_as_a_folder_of_folders(bucket: Bucket, tmp_path: Path) -> None:
    url = f"{bucket.scheme}://{bucket.name}"
    for key in ("top", "deep/a", "deep/er/b", "marked/"):
        bucket.put(key, b"abc" if not key.endswith("/") else b"")
    store = BucketBackend(bucket)

    def look(text: str) -> FileInfo | None:
        return store.stat(parse_place(text))

    file, folder = bucket.head("top"), FileInfo(is_folder=True)
    assert look(f"{url}/top") == file and look(f"{url}/top/") is None and look(f"{url}/to") is None
    assert look(f"{url}/deep") == look(f"{url}/deep/") == look(url) == folder
    assert look(f"{url}/marked") is None, "a mark does not make a folder"
    absent = parse_place(f"{bucket.scheme}://no-such-bucket")
    assert backend_of(absent).stat(absent) is None
    assert store.children(parse_place(url)) == {"deep": folder, "marked": folder, "top": file}
    assert store.children(parse_place(f"{url}/deep")) == {"a": bucket.head("deep/a"), "er": folder}
    assert list(store.files(parse_place(url))) == ["deep/a", "deep/er/b", "top"]
    assert store.make_folder(parse_place(url)) is True and store.make_folder(parse_place(f"{url}/new")) is False
    store.try_writing(parse_place(f"{url}/new"))
    store.remove_folder_marks(parse_place(f"{url}/marked"))
    assert [key for key, _ in bucket.entries("")] == ["deep/a", "deep/er/b", "top"]
    (tmp_path / "sent").write_bytes(b"abc")
    send_file(tmp_path / "sent", parse_place(f"{url}/deep/sent"))
    assert bucket.get("deep/sent") == b"abc"


def answer(status: int, code: str = "Odd") -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")  # type: ignore[arg-type]


def failing(errors: list[Exception]) -> tuple[Callable[[], str], list[int]]:
    tries: list[int] = []

    def verb() -> str:
        tries.append(1)
        if errors:
            raise errors.pop(0)
        return "done"

    return verb, tries


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> tuple[Bucket, list[float]]:
    """A bucket whose requests are tried three times, and the pauses between them."""
    slept: list[float] = []
    monkeypatch.setattr(temporary, "time", SimpleNamespace(sleep=slept.append))
    return S3Bucket("b", None, "the mirror", (0.25, 0.5)), slept


LASTING = (400, 405, 409, 411, 416, 501)
PASSING = (399, 408, 410, 429, 500, 502, 503, 504)


def test_temporary_errors_are_retried_and_lasting_ones_are_not(patient: tuple[Bucket, list[float]]) -> None:
    bucket, slept = patient
    assert set(LASTING) | {CHANGED} == LASTING_STATUS
    lasting = [answer(status) for status in (*LASTING, 401, 403, 412)]
    passing = [answer(status) for status in PASSING] + [answer(400, code) for code in sorted(TRANSIENT_CODES)]
    for is_lasting, errors in ((True, lasting), (False, [*passing, OSError("a broken pipe")])):
        for error in errors:
            slept.clear()
            verb, tries = failing([error, error])
            if is_lasting:
                with pytest.raises(UserError, match="^the mirror "):
                    bucket.tried("written", "k", verb)
                assert (len(tries), slept) == (1, []), error
            else:
                assert bucket.tried("written", "k", verb) == "done" and slept == [0.25, 0.5], error


@pytest.mark.parametrize(("status", "written"), [(409, False), (412, False), (400, None), (405, None)])
def test_a_conditional_put_fails_only_if_the_object_exists(status: int, written: bool | None) -> None:
    class Refusing(S3Bucket):
        def put(self, key: str, content: bytes, *, only_new: bool = False) -> None:
            self.tried("written", key, failing([answer(status)])[0])

    bucket = Refusing("b", None, delays_s=())
    if written is None:
        with pytest.raises(Unreachable):
            bucket.put_new("k", b"")
    else:
        assert bucket.put_new("k", b"") is written


def test_etags_lose_their_quotes_and_a_truncated_body_is_rejected() -> None:
    assert [etag_of(text) for text in ('"ab"', "ab", '""', "", None)] == ["ab", "ab", None, None, None]
    assert whole(b"abc", 3) == b"abc" and whole(b"", 0) == b""
    for size in (2, 4):
        with pytest.raises(ConnectionError, match=f"3 of {size} bytes came"):
            whole(b"abc", size)
    assert UploadPart(1, 3, "x").arrived_s == 0.0
