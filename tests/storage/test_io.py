"""python -m nlu.io on this machine and from web servers, and what it refuses before anything is asked."""

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.io import main
from nlu.storage.parts import MIB, is_content, multipart_etag, part_bytes_of
from tests.folders import contents, write

FILES = {"a.txt": b"a", "deep/b.bin": b"b" * 1000, "COMPLETE": b"yes"}


@pytest.mark.parametrize("flags", [["-rf"], ["-f"], ["-r", "-f"]])
def test_rm_refuses_force(tmp_path: Path, flags: list[str]) -> None:
    write(tmp_path, FILES)
    with pytest.raises(UserError, match="^rm has no -f, since it never asks before it removes; write -r for a folder$"):
        main(["rm", *flags, str(tmp_path)])
    assert contents(tmp_path) == FILES


def test_files_and_folders_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = write(tmp_path / "here", FILES), tmp_path / "there"
    assert main(["exists", str(here), str(there)]) == 1
    assert capsys.readouterr().out == f"{here} exists\n{there} does not exist\n"
    assert main(["cp", "--recursive", str(here), str(there)]) == 0
    assert contents(there) == FILES
    assert main(["cp", "-r", str(here), str(there)]) == 0
    assert "copied 0 files, 0.0 MB; 3 files lay there already" in capsys.readouterr().err
    (there / "a.txt").write_bytes(b"b")
    write(there, {"more": b""})
    assert main(["sync", "--dry", "--delete", str(here), str(there)]) == 0
    said = capsys.readouterr()
    lines = [f"remove {there}/more", f"replace {there}/a.txt", f"copy {here}/a.txt {there}/a.txt"]
    assert said.out.splitlines() == lines and said.err == "nlu: would copy 1 file, 0.0 MB; 2 files lay there already\n"
    assert main(["sync", "--delete", str(here), str(there)]) == 0
    assert contents(there) == FILES and capsys.readouterr().out == f"remove {there}/more\n"
    assert main(["size", str(there)]) == 0 and capsys.readouterr().out == f"1004\t{there}\n"
    assert main(["md5", f"{there}/a.txt"]) == 0
    assert capsys.readouterr().out.startswith("0cc175b9c0f1b6a831c399e269772661  ")
    assert main(["mv", "-r", str(there), str(tmp_path / "moved")]) == 0
    assert not there.exists() and contents(tmp_path / "moved") == FILES
    assert main(["rm", "-r", str(tmp_path / "moved")]) == 0 and not (tmp_path / "moved").exists()
    assert main(["mkdir", str(tmp_path / "x/y")]) == 0 and main(["writable", str(tmp_path / "x/y/z")]) == 0
    assert main(["writable", f"{here}/a.txt/x"]) == 1


@pytest.mark.parametrize("verb", ["cp", "mv"])
@pytest.mark.parametrize("flags", [(), ("-r",)])
def test_a_file_with_another_content_is_replaced_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, flags: tuple[str, ...]
) -> None:
    here, there = write(tmp_path / "here", FILES), write(tmp_path / "there", {"a.txt": b"mine", "own": b"o"})
    source, target = (str(here), str(there)) if flags else (f"{here}/a.txt", str(there))
    done = "copied" if verb == "cp" else "moved"
    said = f"^{there}/a.txt exists with another content; nothing was {done}; add --force to replace what --dry lists"
    with pytest.raises(UserError, match=said):
        main([verb, *flags, source, target])
    assert contents(there) == {"a.txt": b"mine", "own": b"o"} and contents(here) == FILES
    assert main([verb, *flags, "--dry", source, target]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == f"replace {there}/a.txt"
    assert "--force is needed to replace 1 file" in shown.err and (there / "a.txt").read_bytes() == b"mine"
    assert main([verb, *flags, "-f", source, target]) == 0
    assert "; 1 of them replaced\n" in capsys.readouterr().err
    assert contents(there) == {**(FILES if flags else {"a.txt": b"a"}), "own": b"o"}
    assert (here / "a.txt").exists() == (verb == "cp")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rm", "-r", "s3://bucket"], "is a whole bucket, which is never removed"),
        (["rm", "-r", "oss://bucket/"], "is a whole bucket, which is never removed"),
        (["rm", "-r", "/"], "is the whole disk, which is never removed"),
        (["mv", "-r", "s3://bucket", "x"], "never moved"),
        (["sync", "x", "s3://bucket"], "never synchronized onto"),
        (["sync", "x", "/"], "never synchronized onto"),
        (["rm", "s3://bucket/a/../b"], "a key with '..'"),
        (["rm", "s3://bucket//b"], "an empty part"),
        (["rm", "s3:///b"], "does not name a bucket"),
        (["cp", "x", "https://host/x"], "is read-only"),
        (["rm", "hf://org/name"], "is read-only"),
        (["cp", "x", "gs://bucket/x"], "has an unknown scheme"),
        (["cp", "x", "s3://key:secret@bucket/x"], "a password or token before @"),
        (["cp", "x", f"s3://bucket/x#sha256={'0' * 64}"], "a pin is for reading"),
        (["cp", "nothing-here", "x"], "does not exist"),
        (["cp", ".", "x"], "is a folder; give --recursive"),
        (["rm", "nlu"], "is a folder; give --recursive"),
        (["cp", "-r", ".", "./x"], ", or in it"),
        (["cat", "."], "is a folder; name a file"),
        (["sync", "setup.cfg", "x"], "is a file, but sync takes folders"),
        (["cpy", "x", "y"], "unknown command cpy of nlu.io; nearest: cp"),
        (["copytree", "x", "y"], "unknown command copytree of nlu.io; write cp -r"),
        (["cp", "x"], "TARGET"),
        (["cp", "x", "y", "--dri"], "unknown flag"),
        (["exists", ""], "is empty"),
    ],
)
def test_a_refusal_is_one_sentence(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"nlu/a": b"", "setup.cfg": b""})
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(UserError) as caught:
        main(arguments)
    assert says in str(caught.value) and len(caught.value.problems) == 1
    assert contents(tmp_path) == before


class Server(ThreadingHTTPServer):
    """Serves `content` at /NAME.bin; counts the bytes of each answer; `gives_ranges` or does not."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = os.urandom(5 * MIB)
        self.gives_ranges = True
        self.answered: list[int] = []


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if not self.path.startswith("/name.bin"):
            self.send_error(404)
            return
        content = self.server.content
        if self.server.gives_ranges and (asked := self.headers.get("Range")):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        else:
            part = content
            self.send_response(200)
        self.server.answered.append(len(part))
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"version-1"')
        self.end_headers()
        try:
            self.wfile.write(part)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


@pytest.fixture
def web() -> Iterator[tuple[Server, str]]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server, f"http://127.0.0.1:{server.server_port}/name.bin"
    server.shutdown()
    thread.join()
    server.server_close()


def test_etags_of_objects_in_parts_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (16 * MIB) + b"y")
    digests = [hashlib.md5(b"x" * (16 * MIB)).digest(), hashlib.md5(b"y").digest()]
    etag = f"{hashlib.md5(b''.join(digests)).hexdigest()}-2"
    assert multipart_etag(path, 16 * MIB) == etag
    assert is_content(path, etag.upper()) is True
    assert is_content(path, f"{'0' * 32}-2") is None and is_content(path, "0" * 32) is False
    assert is_content(path, "version-1") is None
    assert part_bytes_of(10**12) * 9000 >= 10**12 and part_bytes_of(1) == 16 * MIB


def test_a_file_that_is_moved_onto_itself_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("x")
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "there").symlink_to("folder")
    for arguments in (
        ["folder/file", "folder/file"], ["folder/file", "folder"], ["folder/file", "link"], ["-r", "folder", "there"],
        ["folder/file", "there/file"],
    ):  # fmt: skip
        with pytest.raises(UserError, match="itself; name another target"):
            main(["mv", *arguments])
        assert (tmp_path / "folder/file").read_text() == "x"
    main(["mv", "folder/file", "other"])
    assert (tmp_path / "other").read_text() == "x" and not (tmp_path / "folder/file").exists()
