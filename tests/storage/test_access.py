"""What every place promises: a folder of this machine, a bucket of S3 and one of OSS; and servers on the web."""

import gzip
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from nlu.config.errors import DataError, UserError
from nlu.storage import access
from nlu.storage.access import FileInfo, children, copy, delete, files, read, read_all, stat, write, write_new
from nlu.storage.filesystems import endpoint_of
from nlu.storage.locations import Place, parse_place
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Changed, Refused, Unreachable
from tests.oss_server import OssServer
from tests.storage.conftest import adopt

MD5 = {b"abc": "900150983cd24fb0d6963f7d28e17f72"}
FOLDER = FileInfo(is_folder=True)


def put(top: str, *keys: str) -> None:
    for key in keys:
        place = parse_place(f"{top}/{key}")
        if place.is_local:
            Path(place.path).parent.mkdir(parents=True, exist_ok=True)
            Path(place.path).write_bytes(b"abc")
        else:
            write(place, b"abc")


def test_a_place_is_a_file_a_folder_or_nothing(top: str) -> None:
    began_s = time.time()
    put(top, "a/x", "a/deep/er/y", "b")
    found = stat(parse_place(f"{top}/a/x"))
    assert found is not None and (found.is_folder, found.size) == (False, 3)
    assert found.etag in (None, MD5[b"abc"]) and found.modified_s and began_s - 2 < found.modified_s < time.time() + 2
    for folder in ("", "/a", "/a/", "/a/deep"):
        info = stat(parse_place(f"{top}{folder}"))
        assert info is not None and info.is_folder
    assert [stat(parse_place(f"{top}/{name}")) for name in ("c", "a/x/y", "a/deep/e")] == [None] * 3
    assert list(files(parse_place(top))) == ["a/deep/er/y", "a/x", "b"]
    assert files(parse_place(f"{top}/a"))["x"] == found and files(parse_place(f"{top}/none")) == {}
    within = children(parse_place(top))
    assert {name: info.is_folder for name, info in within.items()} == {"a": True, "b": False}
    assert children(parse_place(f"{top}/a"))["x"] == found


def test_a_file_is_read_in_ranges_and_removed(top: str) -> None:
    put(top, "x")
    place = parse_place(f"{top}/x")
    info = stat(place)
    assert info is not None and read(place, 1, 3, info) == b"bc" and read(place, 0, 1, info) == b"a"
    for _ in range(2):
        delete(place)
    assert stat(place) is None


def test_an_object_is_replaced_copied_and_read_as_one_version(remote: str) -> None:
    place, other = parse_place(f"{remote}/x"), parse_place(f"{remote}/y")
    write(place, b"first")
    info = stat(place)
    assert info is not None and read_all(place) == b"first"
    copy(place, other)
    write(place, b"other")
    assert (read_all(place), read_all(other)) == (b"other", b"first")
    with pytest.raises(Changed, match="/x changed while it was read; try again"):
        read(place, 0, 1, info)
    for ask in (lambda: read_all(parse_place(f"{remote}/z")), lambda: copy(parse_place(f"{remote}/z"), other)):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_large_object_of_oss_is_copied_in_parts(oss: OssServer, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt(oss, monkeypatch)
    monkeypatch.setattr("nlu.storage.oss.COPIED_BYTES", 5 << 20)
    content = bytes(range(256)) * 45_000
    source, target = (parse_place(f"oss://{oss.bucket}/large/{name}") for name in "ab")
    write(source, content)
    copy(source, target)
    info = stat(target)
    assert read_all(target) == content and info is not None and (info.etag or "").endswith("-3")
    assert files(parse_place(f"oss://{oss.bucket}/large")).keys() == {"a", "b"}


def test_a_conditional_write_replaces_nothing(remote: str) -> None:
    place = parse_place(f"{remote}/x")
    assert write_new(place, b"first") is True
    assert write_new(place, b"second") is False and read_all(place) == b"first"


def test_marks_of_folders_are_no_files_and_make_no_folder(remote: str) -> None:
    put(remote, "full/x")
    for key in ("marked/", "full/"):
        _mark(parse_place(remote), key)
    assert stat(parse_place(f"{remote}/marked")) is None
    assert stat(parse_place(f"{remote}/full")) == FOLDER and list(files(parse_place(remote))) == ["full/x"]


def _mark(folder: Place, key: str) -> None:
    """Create an empty object whose key ends with a slash, as the consoles of services do."""
    filesystem, _ = access.filesystem_of(folder)
    if folder.scheme == "s3":
        filesystem.call_s3("put_object", Bucket=folder.bucket, Key=f"{folder.path}/{key}")
    else:
        filesystem.bucket(folder.bucket).put_object(f"{folder.path}/{key}", b"")


def test_a_key_that_would_lead_out_of_the_folder_is_refused(s3: object, monkeypatch: pytest.MonkeyPatch) -> None:
    place = parse_place(f"{s3.bucket(monkeypatch)}/top")  # type: ignore[attr-defined]
    filesystem, _ = access.filesystem_of(place)
    filesystem.call_s3("put_object", Bucket=place.bucket, Key="top/../x", Body=b"")
    with pytest.raises(DataError, match="holds '../x', a key outside its folder; it is not safe, remove it"):
        files(place)


def test_a_missing_bucket_holds_nothing_and_is_not_written(remote: str) -> None:
    scheme = remote.partition("://")[0]
    place = parse_place(f"{scheme}://no-such-bucket/x")
    assert stat(place) is None and stat(parse_place(f"{scheme}://no-such-bucket")) is None
    with pytest.raises(Refused, match="cannot be written: its bucket does not exist; create it first"):
        write(place, b"")


def test_an_answer_that_ends_early_is_asked_for_again(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = parse_place(f"{remote}/x")
    write(place, b"abc")
    info, (filesystem, _) = stat(place), access.filesystem_of(place)
    whole, cut = filesystem.read_range, [b"a"]
    monkeypatch.setattr(filesystem, "read_range", lambda *asked: cut.pop() if cut else whole(*asked))
    assert info is not None and read(place, 0, 3, info, delays_s=(0,)) == b"abc" and cut == []
    cut.append(b"a")
    with pytest.raises(Unreachable, match="1 of 3 bytes came"):
        read(place, 0, 3, info)


def test_buckets_of_oss_have_endpoints_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_one_process_uses_buckets_of_two_regions(oss: OssServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with OssServer("far", elsewhere=oss.bucket) as far:
        adopt(oss, monkeypatch)
        monkeypatch.setenv("OSS_ENDPOINTS", f"far={far.environment['OSS_ENDPOINT']}")
        write(parse_place("oss://far/x"), b"far")
        write(parse_place(f"oss://{oss.bucket}/x"), b"near")
        assert read_all(parse_place("oss://far/x")) == b"far"
        monkeypatch.delenv("OSS_ENDPOINTS")
        with pytest.raises(Refused, match="in another region; set OSS_ENDPOINTS=BUCKET=REGION"):
            write(parse_place("oss://far/x"), b"")


class Web(ThreadingHTTPServer):
    """Answers as `answers` says, one after another; the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[str | None] = []
        self.versions: list[str | None] = []
        """as If-Match asks for them"""
        self.place = parse_place(f"http://127.0.0.1:{self.server_port}/x%2Fy?signed=a%2Fb")


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        assert self.path == "/x%2Fy?signed=a%2Fb", "an address keeps its form"
        assert self.headers["Accept-Encoding"] == "identity"
        self.server.asked.append(self.headers.get("Range"))
        self.server.versions.append(self.headers.get("If-Match"))
        answers = self.server.answers
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", (0.0, 0.0))
    server = Web()
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


RANGE = {"Content-Range": "bytes 0-0/10"}
ALL = {**RANGE, "ETag": '"v1"', "Last-Modified": formatdate(1e9)}


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([(206, ALL, b"0")], FileInfo(False, 10, "v1", 1e9)),
        ([(206, {"Content-Range": "bytes 0-0/*", "ETag": '""'}, b"0")], FileInfo(False)),
        ([(200, RANGE, b"0")], FileInfo(False)),
        ([(416, {}, b""), (200, {}, b"")], FileInfo(False)),
        ([(503, {}, b""), (206, RANGE, b"0")], FileInfo(False, 10)),
        ([(404, {}, b"")], None),
        ([(410, {}, b"")], None),
    ],
)
def test_a_file_on_the_web_is_described_by_the_answer_for_its_first_byte(
    web: Web, answers: list[tuple[int, dict[str, str], bytes]], found: FileInfo | None
) -> None:
    web.answers = answers
    assert stat(web.place) == found and web.asked[0] == "bytes=0-0"


def test_a_refusal_of_a_web_server_is_told_with_its_status(web: Web) -> None:
    web.answers = [(403, {}, b"")]
    with pytest.raises(Refused, match=r"http://127\S+/x%2Fy cannot be read: the server answers 403 Forbidden; correct"):
        stat(web.place)
    web.answers = [(503, {}, b"")]
    with pytest.raises(Unreachable, match="the server answers 503 .*; try again later"):
        stat(web.place)
    with pytest.raises(UserError, match="web servers do not list folders; name each file"):
        files(web.place)


def test_a_range_on_the_web_is_complete_or_requested_again(web: Web) -> None:
    web.answers = [(206, {}, b"23"), (206, {}, b"234")]
    assert read(web.place, 2, 5, FileInfo(False, 10)) == b"234" and web.asked == ["bytes=2-4"] * 2
    web.answers = [(200, {}, b"0123456789")]
    with pytest.raises(Changed, match="changed while it was read; try again"):
        read(web.place, 2, 5, FileInfo(False, 10))


def test_ranges_on_the_web_are_of_one_version(web: Web) -> None:
    web.answers = [(206, {}, b"234"), (206, {}, b"234"), (412, {}, b"")]
    for etag in ("v1", 'W/"v1'):
        assert read(web.place, 2, 5, FileInfo(False, 10, etag)) == b"234"
    with pytest.raises(Changed, match="changed while it was read; try again"):
        read(web.place, 5, 7, FileInfo(False, 10, "v1"))
    assert web.versions == ['"v1"', None, '"v1"']


def test_a_file_on_the_web_that_is_stored_compressed_comes_as_it_is_stored(web: Web) -> None:
    packed = gzip.compress(b"content")
    web.answers = [(200, {"Content-Encoding": "gzip"}, packed)]
    assert stat(web.place) == FileInfo(False) and read_all(web.place) == packed


def test_a_store_has_the_objects_below_its_folder_by_their_keys_in_it(remote: str, tmp_path: Path) -> None:
    store = ObjectStore(f"{remote}/a/", "mirror")
    assert store.list() == {} == store.list("deep/") and store.shown == f"{remote}/a"
    for key in ("a/z", "a/deep/x", "a-2/y", "a/deeper/y"):
        write(parse_place(f"{remote}/{key}"), key.encode())
    assert list(store.list()) == ["deep/x", "deeper/y", "z"] and list(store.list("deep")) == ["deep/x"]
    assert store.stat("z") == store.list()["z"] and store.stat("deep") is None
    absent, *found = store.get_several(["none", "z", "deep/x"])
    assert isinstance(absent, FileNotFoundError) and found == [b"a/z", b"a/deep/x"] and store.get_several([]) == []
    store.copy("z", "copy")
    assert store.get("copy") == b"a/z" and store.get_file("copy", tmp_path / "z")
    for key in ("", "/x", "../x", "a/../../x", "a\\x"):
        with pytest.raises(UserError, match="a key must not lead out of its folder"):
            store.put(key, b"")


@pytest.mark.parametrize("there", [None, b"first\n", b"second\n"])
def test_a_store_is_proved_to_refuse_to_overwrite(remote: str, there: bytes | None) -> None:
    store = ObjectStore(f"{remote}/run", "mirror")
    if there is not None:
        store.put("proof", there)
    if there == b"second\n":
        with pytest.raises(UserError, match=r"mirror .*/run cannot be shared: the service overwrites an object"):
            store.prove_conditional_put("proof")
    else:
        store.prove_conditional_put("proof")
        assert store.get("proof") == b"first\n"
